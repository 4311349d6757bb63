"""Checks that every public name has a docstring.

A name is public if neither it nor a class or module around it starts with an underscore. Exempt are
empty modules, `__dunder__` methods, overloads and setters, Typer's `register`, and a method that a
base class or a Protocol of the project documents under the same name. The last exemption is why
ruff's own D1 rules do not serve here: they do not look at base classes.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("tilewright", "tasks", "flows", "models", "benchmarks", "examples")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """The parsed modules below some folders, and the classes they define, by name."""

    def __init__(self, root: Path, rooms: tuple[str, ...] = ROOMS) -> None:
        files = sorted(path for room in rooms for path in (root / room).rglob("*.py"))
        self.modules = {
            path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in files
        }
        self.classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
        for module in self.modules.values():
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name].append(node)
        self._protocol_methods = {
            method.name
            for named in self.classes.values()
            for node in named
            if "Protocol" in map(last_name, node.bases)
            for method in functions(node.body)
            if ast.get_docstring(method)
        }

    def inherits_docstring(self, owner: ast.ClassDef, method: str) -> bool:
        """Return whether a base class or any Protocol documents a method of that name."""
        if method in self._protocol_methods:
            return True
        for base in filter(None, map(last_name, owner.bases)):
            for above in self.classes.get(base, []):
                documented = (
                    ast.get_docstring(f) for f in functions(above.body) if f.name == method
                )
                if any(documented) or (
                    above is not owner and self.inherits_docstring(above, method)
                ):
                    return True
        return False


def undocumented(sources: Sources) -> Iterator[str]:
    """Yield `path:line name` of each public name without a docstring."""
    for path, module in sources.modules.items():
        if any(part.startswith("_") and part != "__init__.py" for part in path.split("/")):
            continue
        if module.body and not ast.get_docstring(module):
            yield f"{path}:1 the module"
        for node in module.body:
            if isinstance(node, Function) and node.name != "register" and lacks_docstring(node):
                yield f"{path}:{node.lineno} {node.name}"
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    yield f"{path}:{node.lineno} {node.name}"
                for method in functions(node.body):
                    if lacks_docstring(method) and not sources.inherits_docstring(
                        node, method.name
                    ):
                        yield f"{path}:{method.lineno} {node.name}.{method.name}"


def lacks_docstring(node: Function) -> bool:
    """Return whether a function needs a docstring of its own and has none."""
    if node.name.startswith("_"):  # private names and `__dunder__` methods
        return False
    exempt = {"overload", "setter", "deleter"} & set(map(last_name, node.decorator_list))
    return not exempt and not ast.get_docstring(node)


def functions(body: list[ast.stmt]) -> list[Function]:
    """Return the functions defined in the body of a module or class."""
    return [node for node in body if isinstance(node, Function)]


def last_name(node: ast.expr) -> str:
    """Return `c` for `a.b.c`, `a.b.c[...]` and `a.b.c(...)`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return getattr(node, "attr", getattr(node, "id", ""))


@pytest.mark.slow(seconds=5)
def test_public_names_are_documented() -> None:
    sources = Sources(ROOT)
    assert len(sources.modules) > 50
    missing = list(undocumented(sources))
    assert not missing, "\n".join(missing)


def test_missing_docstrings_are_found(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "empty.py").write_text("")
    (tmp_path / "room" / "module.py").write_text(SAMPLE)
    missing = undocumented(Sources(tmp_path, ("room",)))
    assert list(missing) == [
        "room/module.py:1 the module", "room/module.py:1 bare", "room/module.py:9 Kept.more",
        "room/module.py:10 Bare",
    ]  # fmt: skip


SAMPLE = '''\
def bare(): ...
def _private(): ...
class Contract(Protocol):
    """A contract."""
    def fit(self, x):
        """Fit the model."""
class Kept(Contract):
    """An implementation."""; fit = None
    def more(self, x): ...
class Bare:
    def __len__(self): raise TypeError
    def _inner(self): ...
    def fit(self, x): ...
'''
