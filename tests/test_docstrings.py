"""Checks what the docstring of a public name says, read from the sources.

- Every public module, class, function and method has a docstring. Exceptions: empty modules,
  `__dunder__` methods, overloads and setters, Typer's `register`, and a method that a Protocol of
  the project or a base class documents under the same name.
- A function that takes or returns arrays names a shape: `(n,)`, `(n, knobs)`, or the word.
- A function that raises an error of the project names it, or the error it is a kind of. Exception:
  commands, whose docstrings are their help; all of them end with any error the same way.

Shapes and errors may stand in the function's docstring, its class's, or in the one it inherits. The
module's may give the shapes of parameters, each by name, for functions that return no arrays. A
name is public if neither it nor a class or module around it starts with an underscore.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = (
    "tilewright", "tasks", "flows", "models", "benchmarks", "examples",
)  # fmt: skip

ROOT_ERROR = "TilewrightError"
DUNDER = re.compile(r"__\w+__")
SIZE = r"(?:len\(\w+\)|[^\s,()]+(?: [·×+*/<-]+ [^\s,()]+)*)"
SIZES = rf"\({SIZE},(?:\s+{SIZE},?)*\)"
SHAPE = re.compile(rf"\bshapes?\b|{SIZES}", re.IGNORECASE)
NAMED_SHAPE = re.compile(rf"`(\w+)`\s+{SIZES}")
COMMANDS = "tilewright/cli/commands/"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True)
class Offence:
    """A line of a file that breaks a rule; `rule` is docstring, shape or error."""

    path: str
    line: int
    rule: str
    text: str


class Sources:
    """The parsed modules of the rooms, and what the rules must know about all of them."""

    def __init__(self, root: Path, rooms: tuple[str, ...] = ROOMS) -> None:
        files = sorted(path for room in rooms for path in (root / room).rglob("*.py"))
        self.modules = {
            path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in files
        }
        nodes = [node for module in self.modules.values() for node in module.body]
        self._classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._classes[node.name].append(node)
        self._assigned = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign)]

    @cached_property
    def errors(self) -> frozenset[str]:
        """The project's error classes."""
        return frozenset(
            name for name in self._classes if ROOT_ERROR in (name, *self.ancestors(name))
        )

    @cached_property
    def arrays(self) -> frozenset[str]:
        """Names of types that are arrays or are made of them."""
        found = {"NDArray", "ndarray"}
        while True:
            more = {
                target.id
                for node in self._assigned
                if node.value is not None and names_in(node.value) & found
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if isinstance(target, ast.Name) and is_type(node.value)
            }
            if more <= found:
                return frozenset(found)
            found |= more

    @cached_property
    def promised(self) -> dict[str, str]:
        """The docstrings of the methods of all Protocols, by name."""
        found: dict[str, str] = defaultdict(str)
        for node in (node for named in self._classes.values() for node in named):
            if "Protocol" in map(last_name, node.bases):
                for method in functions(node.body):
                    found[method.name] += ast.get_docstring(method) or ""
        return found

    def ancestors(self, name: str) -> list[str]:
        """The names of a class's bases, theirs included, the nearest first."""
        bases = [base for node in self._classes.get(name, []) for base in node.bases]
        direct = [base for base in map(last_name, bases) if base]
        return [
            *direct,
            *(above for base in direct if base != name for above in self.ancestors(base)),
        ]

    def inherited(self, owner: ast.ClassDef, method: str) -> str:
        """What Protocols and base classes say about a method."""
        said = [self.promised.get(method, "")]
        for name in self.ancestors(owner.name):
            for above in self._classes.get(name, []):
                for node in functions(above.body):
                    said.append((node.name == method and ast.get_docstring(node)) or "")
        return "\n".join(said)


def offences(sources: Sources) -> Iterator[Offence]:
    """Everything that breaks a rule, file by file."""
    for path, module in sources.modules.items():
        if any(part.startswith("_") and part != "__init__.py" for part in path.split("/")):
            continue
        if module.body and not ast.get_docstring(module):
            yield Offence(path, 1, "docstring", "the module has no docstring")
        shaped = set(NAMED_SHAPE.findall(ast.get_docstring(module) or ""))
        for node in module.body:
            if isinstance(node, Function) and is_public(node.name):
                yield from _of_function(sources, path, node, None, shaped)
            elif isinstance(node, ast.ClassDef) and is_public(node.name):
                if not ast.get_docstring(node):
                    yield Offence(path, node.lineno, "docstring", f"{node.name} has no docstring")
                for method in functions(node.body):
                    if is_public(method.name) or DUNDER.fullmatch(method.name):
                        yield from _of_function(sources, path, method, node, shaped)


def _of_function(
    sources: Sources, path: str, node: Function, owner: ast.ClassDef | None, shaped: set[str]
) -> Iterator[Offence]:
    name = node.name if owner is None else f"{owner.name}.{node.name}"
    marks = set(map(last_name, node.decorator_list))
    if marks & {"overload", "setter", "deleter"}:
        return
    inherited = sources.inherited(owner, node.name) if owner else ""
    own, about = ast.get_docstring(node), (ast.get_docstring(owner) if owner else "") or ""
    said = "\n".join((own or "", inherited, about))
    expected = not DUNDER.fullmatch(node.name) and not (owner is None and name == "register")
    if expected and not own and not inherited:
        yield Offence(path, node.lineno, "docstring", f"{name} has no docstring")
    if expected and array_names(node, sources.arrays) - shaped and not SHAPE.search(said):
        yield Offence(path, node.lineno, "shape", f"{name} names no shape of its arrays")
    if path.startswith(COMMANDS):
        return
    for error in sorted(raised(node) & sources.errors):
        kinds = {error, *sources.ancestors(error)} & sources.errors - {ROOT_ERROR} | {error}
        if not any(re.search(rf"\b{kind}\b", said) for kind in kinds):
            yield Offence(path, node.lineno, "error", f"{name} does not say that it raises {error}")


def is_public(name: str) -> bool:
    """Whether a reader is meant to use the name."""
    return not name.startswith("_")


def functions(body: list[ast.stmt]) -> list[Function]:
    """The functions defined in the body of a module or class."""
    return [node for node in body if isinstance(node, Function)]


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`, `a.b.c[...]` and `a.b.c(...)`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return getattr(node, "attr", getattr(node, "id", ""))


def names_in(node: ast.expr) -> set[str]:
    """The identifiers in an annotation, those in its quoted parts included."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found |= set(re.findall(r"\w+", part.value))
    return found


def is_type(node: ast.expr) -> bool:
    """Whether an expression can only be a type: names, subscripts and unions of them."""
    allowed = (
        ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.BinOp, ast.BitOr,
        ast.Constant, ast.expr_context,
    )  # fmt: skip
    return all(isinstance(part, allowed) for part in ast.walk(node))


def array_names(node: Function, arrays: frozenset[str]) -> set[str]:
    """The parameters of a function that are arrays, and `return` if it returns any."""
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    every += [arg for arg in (node.args.vararg, node.args.kwarg) if arg]
    hints = {arg.arg: arg.annotation for arg in every} | {"return": node.returns}
    return {name for name, hint in hints.items() if hint and names_in(hint) & arrays}


def raised(node: Function) -> set[str]:
    """The classes that a function raises itself: not those of functions inside it."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        part = waiting.pop()
        if isinstance(part, Function | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(part, ast.Raise) and part.exc is not None:
            found.add(last_name(part.exc))
        waiting += ast.iter_child_nodes(part)
    return found


def listed(found: list[Offence]) -> str:
    """Offences as text, grouped by file."""
    by_file: dict[str, list[Offence]] = defaultdict(list)
    for offence in found:
        by_file[offence.path].append(offence)
    return "\n".join(
        "\n".join([path, *(f"  {o.line}: {o.text}" for o in items)])
        for path, items in by_file.items()
    )


def test_public_names_are_documented() -> None:
    sources = Sources(ROOT)
    assert len(sources.modules) > 50
    found = list(offences(sources))
    assert not found, f"{len(found)} places lack what a reader needs:\n{listed(found)}"


def test_the_rules_see_what_they_are_about(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "empty.py").write_text("")
    (tmp_path / "room" / "module.py").write_text(SAMPLE)
    found = offences(Sources(tmp_path, ("room",)))
    assert [(offence.line, offence.rule) for offence in found] == [
        (1, "docstring"), (5, "docstring"), (14, "shape"), (17, "error"), (22, "docstring"),
    ]  # fmt: skip


def test_a_module_may_give_shapes_and_a_command_any_error(tmp_path: Path) -> None:
    (tmp_path / COMMANDS).mkdir(parents=True)
    (tmp_path / COMMANDS / "module.py").write_text(SHAPED)
    found = offences(Sources(tmp_path, ("tilewright",)))
    assert [(offence.line, offence.rule) for offence in found] == [(6, "shape"), (8, "shape")]


SAMPLE = '''\
class TilewrightError(Exception):
    """The root of errors."""
class Wrong(TilewrightError):
    """A kind of error."""
def bare(): ...
def _private(x: NDArray): raise Wrong
class Contract(Protocol):
    """A contract."""
    def fit(self, x: Rows):
        """Rows (n, 3)."""
class Kept(Contract):
    """Keeps it."""
    def fit(self, x: Rows): ...
    def more(self, x: "Rows | None"):
        """No word on its form."""
Rows = NDArray[int]
def stop():
    """Stops."""
    raise Wrong("x")
def told():
    """Raises `Wrong`."""
class Bare:
    def __len__(self): raise TypeError
    def _inner(self): ...
'''
SHAPED = '''\
"""Here `out` (instructions, 2) is filled; `code` is a number."""
class Wrong(TilewrightError):
    """A kind of error."""
def fill(out: NDArray, code: int):
    """Fills it."""
def copy(out: NDArray) -> NDArray:
    """Another."""
def both(out: NDArray, code: NDArray):
    """Fills both."""
def command():
    """Helps."""
    raise Wrong("x")
'''
