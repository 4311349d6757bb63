"""Set how many threads run compiled code, and on which cores."""

from __future__ import annotations

import os

from tilewright.core.errors import SpecError
from tilewright.core.lazy_module import lazy_module
from tilewright.core.process_info import usable_cores

tvm_ffi = lazy_module("tvm_ffi")

FASTEST_FIRST, SHARING_CORES = 1, -3
"""TVM's codes for two ways to assign threads to cores: one core per thread, the fastest core first;
or all cores for each thread."""


def use_threads(threads: int | None, built_for: int) -> int:
    """Set the number of threads in the calling thread's TVM thread pool.

    On systems with CPU affinity, such as Linux, every thread may use every core of the process. If
    each thread had a fixed core, a thread whose core is busy would delay the others.

    Args:
        threads: number of threads. If None, it is the number of threads for which the library was
            compiled, but at most the number of usable cores.
        built_for: number of threads for which the library was compiled.

    Returns:
        The number of threads.

    Raises:
        SpecError: `threads` is less than 1 or exceeds the number of usable cores.
    """
    count = chosen_threads(threads, built_for)
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if cores:
        configure(SHARING_CORES, count, list(map(str, cores)))
    else:
        configure(FASTEST_FIRST, count)
    return count


def chosen_threads(threads: int | None, built_for: int) -> int:
    """Return the number of threads on which a network runs.

    Args:
        threads: requested number. If None, it is `built_for`, but at most the number of usable
            cores.
        built_for: number of threads for which the library was compiled.

    Raises:
        SpecError: `threads` is less than 1 or exceeds the number of usable cores.
    """
    cores = usable_cores()
    if threads is not None and not 1 <= threads <= cores:
        raise SpecError(
            f"threads={threads} is out of range, because this process may use {cores} "
            f"{'core' if cores == 1 else 'cores'}; choose 1 to {cores}"
        )
    return threads or min(built_for, cores)
