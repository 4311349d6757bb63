"""Thread pools of native libraries: single-threaded BLAS, and TVM and onnxruntime after a fork.

**BLAS.** Linear algebra in explorers runs on a single thread. The matrices are small. With several
threads, the order of summation would depend on the machine, and the threads would wait for each
other on a busy machine.

**Fork.** A fork copies only the calling thread. In the child process, TVM and onnxruntime would
wait forever for threads that do not exist there. TVM has one pool per calling thread. In the child,
calls to TVM therefore move from the thread that forked to a new thread, which gets its own pool.
Values that belong to a whole process, such as an onnxruntime session, are created again
(`PerProcess`).

The copy of the parent's pool cannot be destroyed in the child, because its destructor waits for the
missing threads. Such a child must therefore end with `os._exit`. Children of `multiprocessing` do
so, and children of `os.fork` should.
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
    """Context manager that limits BLAS to one thread.

    BLAS has a single limit for the whole process. The limit is set when the first user enters the
    context, and the old limit is restored when the last user leaves.
    """

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
"""Context in which BLAS uses one thread. Within the context, calls of `one_thread` functions are
cheap, because the limit is set and restored only once."""


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread within the context.

    The limit on BLAS also applies to calls from other threads.
    """
    # OpenMP has one limit per calling thread, BLAS one per process.
    with BLAS_ON_ONE_THREAD, _controller("openmp").limit(limits=1):
        yield


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls another function while BLAS and OpenMP use one thread.

    Use it as a decorator.

    Args:
        function: the function to call.
    """

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with on_one_thread():
            return function(*args, **kwargs)

    return limited


@cache
def _controller(interface: str) -> ThreadpoolController:
    """Return the thread pool controller of an interface, "blas" or "openmp".

    The controller is cached, because searching the loaded libraries takes milliseconds.
    """
    import scipy.linalg  # noqa: F401  loads its BLAS, which the controller has to find

    return ThreadpoolController().select(user_api=interface)


@cache
def _keeper(process: int) -> ThreadPoolExecutor:
    """Return an executor whose single thread sets and restores the BLAS limit.

    threadpoolctl accepts limits only from the thread that first set one, as long as that thread
    lives.

    Args:
        process: ID of this process, the key of the cache. A forked process needs a new thread.
    """
    return ThreadPoolExecutor(1, "blas-limit")


class _Thread(threading.local):
    """State of the calling thread's TVM thread pool.

    Attributes:
        has_pool: TVM has created a pool for this thread.
        is_orphan: the threads of this pool were lost in a fork.
    """

    has_pool = False
    is_orphan = False


_thread = _Thread()


def with_living_pool(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls another function so that it also works after a fork.

    Use it as a decorator of functions that call compiled code. If a fork has lost the threads of
    the caller's TVM thread pool, another thread runs the function, and the caller waits for it.

    Args:
        function: the function to call.
    """

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
    """A value that is created at its first use in each process, and again after a fork.

    Several threads may use it at the same time.

    Args:
        make: function that creates the value.
    """

    def __init__(self, make: Callable[[], R]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: R | None = None
        _per_process_values.add(self)

    def get(self) -> R:
        """Return the value of this process. Exceptions of `make` are passed on."""
        if self._value is None:
            with self._lock:
                if self._value is None:
                    self._value = self._make()
        return self._value

    def forget(self) -> None:
        """Drop the value inherited from the parent process without running its destructor.

        The destructor would wait for threads that do not exist in this process.
        """
        if self._value is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._value))
        self._value = None
        self._lock = threading.Lock()  # a thread of the parent may hold the old lock


def _begin_in_child() -> None:
    global _stand_in_lock, _stand_in
    _stand_in_lock, _stand_in = threading.Lock(), None
    _thread.is_orphan = _thread.is_orphan or _thread.has_pool
    for value in list(_per_process_values):
        value.forget()


os.register_at_fork(after_in_child=_begin_in_child)
