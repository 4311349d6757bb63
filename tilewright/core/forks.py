"""Lets a process that was forked go on with libraries that keep pools of threads.

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Thread(threading.local):
    """Whether the thread has a pool of TVM, and whether the pool's threads are in the parent."""

    has_pool = False
    is_orphan = False


_thread = _Thread()
_making = threading.Lock()
_stand_in: ThreadPoolExecutor | None = None


def with_living_pool(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function that calls compiled code: the thread whose pool was lost in a fork has
    another thread run it, and waits."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if _thread.is_orphan:
            return _stand_in_thread().submit(function, *args, **kwargs).result()
        _thread.has_pool = True
        return function(*args, **kwargs)

    return call


def _stand_in_thread() -> ThreadPoolExecutor:
    global _stand_in
    with _making:
        if _stand_in is None:
            _stand_in = ThreadPoolExecutor(1, "tilewright-after-fork")
        return _stand_in


class PerProcess(Generic[Result]):
    """A value that is made at its first use in a process, and again in a process that was forked.
    Threads may ask for it at the same time."""

    def __init__(self, make: Callable[[], Result]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Result | None = None
        _values.add(self)

    def get(self) -> Result:
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


_values: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _begin_in_child() -> None:
    global _making, _stand_in
    _making, _stand_in = threading.Lock(), None
    _thread.is_orphan = _thread.is_orphan or _thread.has_pool
    for value in list(_values):
        value.forget()


os.register_at_fork(after_in_child=_begin_in_child)
