"""How often Python looks for garbage, in processes that are ours alone: never in a library call."""

from __future__ import annotations

import gc

_EVERY = 20_000  # objects; 700 by default
_YOUNG, _OLD = 20, 20


def collect_seldom() -> None:
    """Look for cycles every 20,000 new objects. A command makes over a million by importing TVM,
    Prefect and MLflow, which all stay: by default a sixth of its start goes into searching them."""
    gc.set_threshold(_EVERY, _YOUNG, _OLD)
