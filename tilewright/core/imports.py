"""Modules of libraries, changed as they are imported, where a library leaves no other way.

Chiefly: a library that looks for a settings file in the working folder does not find it. A folder
may come from a stranger, and what such a file says goes as far as which function is called. So the
file's name in the library's code is another one by the time the module runs: `os.devnull`, which
is there and empty, or a file of the user's choice. See `docs/decisions/settings-files.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType


@dataclass
class _Changes:
    """What is to be done to a module."""

    names: list[tuple[Mapping[str, str], str]] = field(default_factory=list)
    after: list[Callable[[ModuleType], None]] = field(default_factory=list)


_CHANGES: dict[str, _Changes] = {}


def look_elsewhere(module: str, names: Mapping[str, str], *, within: str = "<module>") -> None:
    """When `module` is imported, these names of files in its code are those others: in the function
    `within` and what is nested there, by default everywhere. Call before that import.

    Raises `ImportError` from the import if one of the names is not there.
    """
    _CHANGES.setdefault(module, _Changes()).names.append((dict(names), within))


def after_import(module: str, change: Callable[[ModuleType], None]) -> None:
    """Have `module` changed once it is imported, at once if it is already."""
    if module in sys.modules:
        change(sys.modules[module])
    else:
        _CHANGES.setdefault(module, _Changes()).after.append(change)


class _Finder:
    """Finds the modules that are to be changed; others are left to who comes next."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _CHANGES:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        for names, within in _CHANGES[fullname].names:
            if code is not None:
                code, found = _replaced(code, names, within, False)
                if found != set(names):
                    raise ImportError(
                        f"{fullname} no longer names {sorted(set(names) - found)}: its version "
                        "is not the one of requirements.lock, which 'make setup' installs"
                    )
        return code

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for change in _CHANGES[module.__name__].after:
            change(module)


def _replaced(
    code: CodeType, names: Mapping[str, str], within: str, inside: bool
) -> tuple[CodeType, set[str]]:
    """The code with other names, and those it had."""
    inside = inside or code.co_name == within
    constants: list[object] = []
    found: set[str] = set()
    for value in code.co_consts:
        if isinstance(value, CodeType):
            value, more = _replaced(value, names, within, inside)
            found |= more
        elif inside and isinstance(value, str) and value in names:
            found.add(value)
            value = names[value]
        constants.append(value)
    return code.replace(co_consts=tuple(constants)), found


sys.meta_path.insert(0, _Finder)
