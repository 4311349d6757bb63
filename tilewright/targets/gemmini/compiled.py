"""Compiles the kernels of this target with numba, without reference counts.

They allocate nothing, so there is nothing to count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba as nb

from tilewright.targets.numba_cache import cache_of

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """A kernel that releases the GIL and whose code is kept between processes."""
    return _compiled(function, called_from_python=True)


def stage(function: Kernel) -> Kernel:
    """A part of a kernel: only kernels can call it, which saves half the time of compiling."""
    return _compiled(function, called_from_python=False)


def _compiled(function: Kernel, called_from_python: bool) -> Kernel:
    decorate = nb.njit(
        cache=True,
        nogil=True,
        _nrt=False,
        no_cpython_wrapper=not called_from_python,
        no_cfunc_wrapper=True,
    )
    with cache_of("gemmini"):
        return cast(Kernel, decorate(function))
