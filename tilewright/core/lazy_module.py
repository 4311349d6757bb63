"""Imports a library when it is first used.

A command that needs no TVM should not wait a second for it. Modules that use such a library name it
once, below their imports:

    tvm, te = lazy_module("tvm"), lazy_module("tvm.te")

Python's `importlib.util.LazyLoader` does the same for top-level modules only: it imports `tvm` to
find `tvm.te`. Rooms of this package are not imported this way: import-linter would not see it.
"""

from __future__ import annotations

import importlib
from typing import Any


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # not asked for again
        return value


def lazy_module(name: str) -> Any:
    """A stand-in for the module `name` that imports it when an attribute is first read, and raises
    then what the import raises."""
    return _LazyModule(name)
