"""Checks rules of the project that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

Modules = dict[Path, ast.Module]
ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")
FUNCTION_LEVEL_IMPORTS = 120
"""Maximum number of imports inside functions of the package, not counting the commands
(docs/decisions/imports.md). It may only be lowered."""
SLOW = (
    "jax", "lightgbm", "matplotlib", "mlflow", "numba", "numpy", "onnx", "onnxruntime", "pandas",
    "prefect", "rich", "scipy", "sklearn", "tvm", "xgboost",
)  # fmt: skip
GUARDED = {"tilewright", "prefect", "mlflow", "typer", "rich", "matplotlib", "jinja2", "markupsafe"}
"""Packages that import-linter keeps out of some folders. It sees import statements only, so these
packages must not be loaded with `lazy_module`."""


def committed_files() -> list[Path]:
    """Return the text files of the checkout that Git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@pytest.mark.parametrize("name", LOCKS)
def test_locks_hold_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "index-url" not in text
    blocks = re.findall(r"^([a-z0-9][^\s=]*)==.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    hashed = re.findall(
        r"^[a-z0-9][^\s=]*==[^\n]*\\\n\s+--hash=sha256:[0-9a-f]{64}", text, re.MULTILINE
    )
    assert len(blocks) == len(hashed) > 100


def test_the_development_lock_contains_the_other() -> None:
    pins = [
        set(re.findall(r"^[a-z0-9][^\s;\\]*==[^\s;\\]+", (ROOT / name).read_text(), re.MULTILINE))
        for name in LOCKS
    ]
    assert pins[0] < pins[1]


def test_no_file_depends_on_where_it_was_written() -> None:
    # Split into parts, so that the test does not match its own source.
    banned = re.compile("|".join(["\\.\\./" + "shared", "/" + "work/", "/root/" + "\\."]))
    offenders = []
    for path in committed_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if match := banned.search(text):
            offenders.append(f"{path.relative_to(ROOT)}: {match[0]}")
    assert not offenders


def test_nothing_that_can_run_code_on_loading_is_imported() -> None:
    pattern = re.compile(
        r"^\s*(?:import|from)\s+(?:pickle|cloudpickle|joblib|dill|shelve|marshal)\b|"
        r"allow_pickle\s*=\s*True|\bread_pickle\b|\bto_pickle\b",
        re.MULTILINE,
    )
    sources = [path for path in committed_files() if path.suffix == ".py"]
    assert len(sources) > 50
    assert not [path for path in sources if pattern.search(path.read_text())]


def test_a_class_has_a_name_of_its_own(modules: Modules) -> None:
    places: dict[str, list[str]] = {}
    for path, module in modules.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                places.setdefault(node.name, []).append(place)
    assert len(places) > 500
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert not shared, "\n".join(f"{name}: {', '.join(shared[name])}" for name in shared)


@pytest.mark.slow(seconds=5)
def test_imports_stand_at_the_top(modules: Modules) -> None:
    results = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, module in modules.items()
        if "commands" not in path.parts
        for line in _function_level_imports(module)
    ]
    assert len(results) <= FUNCTION_LEVEL_IMPORTS, "\n".join(results)


def test_the_command_line_starts_without_slow_libraries() -> None:
    program = f"import sys, tilewright.cli.app; print(*{{*{SLOW}}} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


def test_lazy_modules_are_libraries_that_no_contract_is_about(modules: Modules) -> None:
    named = {
        ast.literal_eval(node.args[0]).partition(".")[0]
        for module in modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_module"
    }
    assert "tvm" in named
    assert not named & GUARDED


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Return the parsed modules of the package, each once, without those behind links."""
    rooms = [ROOT / name for name in ("flows", "tasks", "models")]
    links = {ROOT / "tilewright" / room.name for room in rooms}
    return {
        path: ast.parse(path.read_text())
        for room in (ROOT / "tilewright", *rooms)
        for path in sorted(room.rglob("*.py"))
        if not links & set(path.parents)
    }


def _function_level_imports(module: ast.Module) -> set[int]:
    """Return the line numbers of imports inside functions."""
    return {
        node.lineno
        for function in ast.walk(module)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
