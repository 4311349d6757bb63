"""Import of libraries at their first use.

A command that does not need TVM should not wait a second for its import. Modules that use such a
library name it once, below their imports:

    tvm, te = lazy_module("tvm"), lazy_module("tvm.te")

Python's `importlib.util.LazyLoader` does this only for top-level modules: to find `tvm.te`, it
imports `tvm`. Packages of Tilewright are not imported this way, because import-linter would not see
these imports.
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
    """Return a stand-in for a module that is imported when an attribute is first read.

    An error during the import is raised at that time.

    Args:
        name: full name of the module, such as "tvm.te".
    """
    return _LazyModule(name)
