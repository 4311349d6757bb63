"""Records in `kernel_compilation.RUNNING` when numba compiles a registered kernel."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from numba.core.event import Listener, register

from tilewright.targets.kernel_compilation import RUNNING, KernelSet

_announced: dict[int, KernelSet] = {}  # kernel sets by `id` of the dispatcher


def announce(dispatcher: Callable[..., object], kernels: KernelSet) -> None:
    """Register a kernel, so that its compilations are recorded in `kernel_compilation.RUNNING`.

    Args:
        dispatcher: the dispatcher object that `numba.njit` returned for the kernel.
        kernels: the set that the kernel belongs to.
    """
    _announced[id(dispatcher)] = kernels


class _CompilationListener(Listener):  # type: ignore[misc]
    """Listener for the event that numba emits when it compiles a function that is not in its cache.

    It records the kernel that is being compiled. During a compilation, it switches Python's garbage
    collector off: numba creates millions of long-lived objects, and every collection would examine
    all of them.
    """

    _collects = False

    def on_start(self, event: Any) -> None:
        kernels = _announced.get(id(event.data["dispatcher"]))
        if kernels is None:
            return
        if not RUNNING:
            self._collects = gc.isenabled()
            gc.disable()
        RUNNING.append(kernels)

    def on_end(self, event: Any) -> None:
        if id(event.data["dispatcher"]) not in _announced:
            return
        RUNNING.pop()
        if not RUNNING and self._collects:
            gc.enable()


register("numba:compile", _CompilationListener())
