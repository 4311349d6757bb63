"""Sets how many threads run what was compiled, and on which cores."""

from __future__ import annotations

import os

from tilewright.core.errors import SpecError
from tilewright.core.lazy_module import lazy_module
from tilewright.core.process_info import usable_cores

tvm_ffi = lazy_module("tvm_ffi")

FASTEST_FIRST, SHARING_CORES = 1, -3
"""TVM's ways to choose cores: one a thread, the fastest first; all for each thread."""


def use_threads(threads: int | None, built_for: int) -> int:
    """Set the number of threads of the calling thread's pool in TVM.

    All threads may use all cores of the process: a thread that is kept from its own core would hold
    up the others.

    Args:
        threads: how many, or None for as many as the kernels were built for.
        built_for: the number of threads that the library was compiled for.

    Returns:
        The number of threads.

    Raises:
        SpecError: more threads than cores.
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
    """Return how many threads a network runs on.

    Args:
        threads: how many are asked for, or None for as many as the kernels were built for.
        built_for: the number of threads that the library was compiled for.

    Raises:
        SpecError: more threads than cores.
    """
    own = usable_cores()
    if threads is not None and not 1 <= threads <= own:
        raise SpecError(
            f"threads={threads}: this process may use {own} {'core' if own == 1 else 'cores'}; "
            f"name 1 to {own}"
        )
    return threads or min(built_for, own)
