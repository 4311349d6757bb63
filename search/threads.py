"""Linear algebra of explorers on one thread: their matrices are small, several threads would sum
in another order on another machine, and they would wait for each other wherever a core is busy."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import scipy.linalg  # noqa: F401  loads its BLAS, which the controller has to find
from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Let BLAS and OpenMP use one thread within `function`."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1):
            return function(*args, **kwargs)

    return limited


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Kept, since looking for the libraries that are loaded takes milliseconds."""
    return ThreadpoolController()
