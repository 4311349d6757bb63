"""Decorators that compile the simulators' kernels with numba, without reference counting.

The kernels allocate no memory, so that there is nothing to count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba as nb
from numba.extending import register_jitable

from tilewright.targets.kernel_compilation import KernelSet, cache_of
from tilewright.targets.kernel_listener import announce
from tilewright.targets.kernel_parts import PartCompiler

Kernel = TypeVar("Kernel", bound=Callable[..., object])

KERNELS = 5
"""Number of functions in this package that have the decorator `compiled`."""

# Decorator of a part of a kernel, which only kernels call. The function is registered and not
# compiled by `njit`, which would compile it again for each constant among its arguments.
stage = register_jitable(
    _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=PartCompiler
)


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel so that it releases the GIL, and cache its code between processes.

    Args:
        function: the kernel, a Python function.

    Returns:
        The compiled function.
    """
    with cache_of("gemmini"):
        dispatcher = nb.njit(cache=True, nogil=True, _nrt=False, no_cfunc_wrapper=True)(function)
        cache = nb.core.config.CACHE_DIR
    announce(dispatcher, KernelSet("Gemmini's simulator kernels", KERNELS, cache))
    return cast(Kernel, dispatcher)
