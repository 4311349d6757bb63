"""Thread pools of native libraries: BLAS on one thread, and TVM and onnxruntime after a fork.

The matrices of explorers are small. Several threads would sum in another order on another machine,
and would wait for each other wherever a core is busy. So their linear algebra has one thread.

A fork copies the calling thread alone. TVM and onnxruntime then wait for ever for the answer of
threads that are not there. TVM has a pool per calling thread, so in the child the calls of the
thread that forked move to a fresh thread, which gets a pool of its own. What belongs to a whole
process, such as a session of onnxruntime, is made anew.

What the parent's pool left behind cannot be ended in the child: its destructor waits for the same
threads. So such a child has to end with `os._exit`, as children of `os.fork` should and those of
`multiprocessing` do.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")
_stand_in_lock = threading.Lock()
_stand_in: ThreadPoolExecutor | None = None
_per_process_values: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


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


class _Thread(threading.local):
    """Whether the thread has a pool of TVM, and whether the pool's threads are in the parent."""

    has_pool = False
    is_orphan = False


_thread = _Thread()


def with_living_pool(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that calls compiled code: the thread whose pool was lost in a fork has
    another thread run it, and waits."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _thread.is_orphan:
            return _stand_in_thread().submit(function, *args, **kwargs).result()
        _thread.has_pool = True
        return function(*args, **kwargs)

    return call


def _stand_in_thread() -> ThreadPoolExecutor:
    global _stand_in
    with _stand_in_lock:
        if _stand_in is None:
            _stand_in = ThreadPoolExecutor(1, "tilewright-after-fork")
        return _stand_in


class PerProcess(Generic[R]):
    """A value that is made at its first use in a process, and again in a process that was forked.
    Threads may ask for it at the same time."""

    def __init__(self, make: Callable[[], R]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: R | None = None
        _per_process_values.add(self)

    def get(self) -> R:
        """Return the value of this process. Raises what making it raises."""
        if self._value is None:
            with self._lock:
                if self._value is None:
                    self._value = self._make()
        return self._value

    def forget(self) -> None:
        """Give up the value of the parent, without ending it: that would wait for its threads."""
        if self._value is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._value))
        self._value = None
        self._lock = threading.Lock()  # a thread of the parent may hold the other one


def _begin_in_child() -> None:
    global _stand_in_lock, _stand_in
    _stand_in_lock, _stand_in = threading.Lock(), None
    _thread.is_orphan = _thread.is_orphan or _thread.has_pool
    for value in list(_per_process_values):
        value.forget()


os.register_at_fork(after_in_child=_begin_in_child)
