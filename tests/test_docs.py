"""Every command of the site runs as it stands there, or says why a test cannot run it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import typer.main

from tests import warm
from tests.documents import REASONS, ROOT, Block, blocks, pages, strays
from tests.examples.test_examples import installed
from tests.sharing import OURS
from tilewright.networks import zoo

OWN_TEST = {"own-hardware.md"}
"""Run by `tests/test_own_hardware.py`, which looks at what they print, too."""
SECONDS = {
    "artifact.md": 10, "codesign.md": 9, "index.md": 2, "new-target.md": 6, "new-tuner.md": 9,
    "own-model.md": 8, "reading-results.md": 5, "sweeps.md": 12, "tvm.md": 3,
}  # fmt: skip
PACKAGES = {"new-target.md": ("roofline",), "new-tuner.md": ("greedy",)}
"""Examples that are installed where a page's commands run, in a Python of their own."""
SHELL = re.compile(r"[|<>;&$`*]")
ALL = [block for page in pages() for block in blocks(page)]


def _title(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- which are run -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(), ids=_title)
def test_commands_are_run_or_say_why_not(page: Path) -> None:
    assert strays(page) == []
    assert {block.reason for block in blocks(page)} - {None} <= REASONS


def test_the_pages_that_are_run() -> None:
    run = {block.page.name for block in ALL if block.reason is None}
    assert run - OWN_TEST == set(SECONDS)


def _unrun() -> list[Block]:
    return [block for block in ALL if block.reason and block.language == "sh"]


@pytest.mark.parametrize(
    "block", _unrun(), ids=lambda block: f"{block.page.name}: {block.text[:30]}"
)
def test_what_is_not_run_names_what_there_is(block: Block) -> None:
    """Commands and options of ours, targets of the Makefile, modules, files of the repository."""
    makefile = (ROOT / "Makefile").read_text()
    for command in block.commands:
        words = shlex.split(command)
        program = Path(words[0]).name
        if program == "tilewright":
            _check_options(words[1:])
        elif program == "make" and "-C" not in words:
            targets = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in targets)
        elif program.startswith("python") and words[1] == "-m" and words[2] != "venv":
            assert find_spec(words[2]) is not None, words[2]
        for word in words[1:]:
            if word.startswith(("deployments/", "examples/", "./examples/")):
                assert (ROOT / word).exists(), word


def _check_options(words: list[str]) -> None:
    """Raises what the command line would say of words that are no option of it."""
    from tilewright.cli.app import app

    command = typer.main.get_command(app)
    context = click.Context(command)
    while hasattr(command, "commands"):
        found = command.commands.get(words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    known = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= known, given - known


# -- running them ------------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with models of the user's and the examples."""
    zoo.write("digits_cnn", tmp_path / "model.onnx", 0)
    shutil.copy(ROOT / "tests/data/tflite/kws_ref_model.tflite", tmp_path / "model.tflite")
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    return tmp_path


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow(seconds=s)) for n, s in SECONDS.items()]
)
def test_the_blocks_of_a_page_run(name: str, workplace: Path) -> None:
    """Commands first, and then Python, which reads what they left."""
    packages = [installed(each, workplace) for each in PACKAGES.get(name, ())]
    environment = _environment(workplace, packages)
    mine = [block for block in ALL if block.page.name == name and block.reason is None]
    assert mine
    for command in (each for block in mine if block.language == "sh" for each in block.commands):
        words = shlex.split(command)
        if words[0] == "tilewright" and not packages and not SHELL.search(command):
            done = warm.run(words[1:], workplace, environment, timeout=600)
        else:
            done = subprocess.run(
                ["bash", "-euc", command],
                cwd=workplace, env=environment, capture_output=True, text=True, timeout=600,
            )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    if program := "\n".join(block.text for block in mine if block.language == "python"):
        done = warm.run(["-c", program], workplace, environment, timeout=600, program=program)
        assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"


def _environment(folder: Path, packages: list[Path]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    paths = [str(ROOT), *map(str, packages), kept.get("PYTHONPATH", "")]
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TILEWRIGHT_HOME": str(folder / ".tilewright"),
    }
