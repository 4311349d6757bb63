"""Limits the linear algebra of explorers to one thread.

Their matrices are small. Several threads would sum in another order on another machine, and would
wait for each other wherever a core is busy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


class _OneThread:
    """BLAS has one limit for the process: in force from the first user to the last one's end."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._counting:
            if self._users == 0:
                limit = partial(_controller("blas").limit, limits=1)
                self._limiter = _keeper(os.getpid()).submit(limit).result()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._counting:
            self._users -= 1
            if self._users == 0:
                _keeper(os.getpid()).submit(self._limiter.restore_original_limits).result()


BLAS_ON_ONE_THREAD = _OneThread()
"""A context. Within it `one_thread` costs little: the limit is set and lifted once."""


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let BLAS and OpenMP use one thread within the context, whatever else calls them meanwhile."""
    # OpenMP has a limit for every thread that calls it.
    with BLAS_ON_ONE_THREAD, _controller("openmp").limit(limits=1):
        yield


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Let BLAS and OpenMP use one thread within `function`, whatever else calls it meanwhile."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with on_one_thread():
            return function(*args, **kwargs)

    return limited


@cache
def _controller(interface: str) -> ThreadpoolController:
    """Kept, since looking for the libraries that are loaded takes milliseconds."""
    import scipy.linalg  # noqa: F401  loads its BLAS, which the controller has to find

    return ThreadpoolController().select(user_api=interface)


@cache
def _keeper(process: int) -> ThreadPoolExecutor:
    """The thread that sets the limit of BLAS: threadpoolctl listens to the first that ever did,
    as long as it lives. A process that was forked off has a keeper of its own."""
    return ThreadPoolExecutor(1, "blas-limit")
