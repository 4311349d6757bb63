"""Placeholders for modules that are imported at their first use.

A command that does not need TVM should not wait a second for its import. A module that uses a slow
library declares it once, below its imports:

    tvm, te = lazy_module("tvm"), lazy_module("tvm.te")

Python's `importlib.util.LazyLoader` works only for top-level modules: to find `tvm.te`, it imports
`tvm`. Tilewright's own packages are not imported in this way, because import-linter would not see
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
        setattr(self, attribute, value)  # later reads do not call __getattr__
        return value


def lazy_module(name: str) -> Any:
    """Return a placeholder that imports a module when one of its attributes is first read.

    An import error is raised at that time.

    Args:
        name: full name of the module, such as "tvm.te".
    """
    return _LazyModule(name)
