"""Scheduled kernels that are compiled into a network's library, and aligned arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.core.tvm_types import Array, PrimFunc

ALIGNMENT = 64
"""Required alignment in bytes of the tensors that are passed to a kernel."""


def aligned_empty(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
    """Return an uninitialised array whose address is a multiple of `ALIGNMENT`.

    Args:
        shape: shape of the array.
        dtype: element type of the array.
    """
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    # faster than the attribute `ctypes`
    start = -int(raw.__array_interface__["data"][0]) % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(tuple(shape))


@dataclass(frozen=True, eq=False)
class KernelCode:
    """A kernel as TensorIR, with the memory layouts that it expects.

    The parameters of the function are, in this order:

    1. the data,
    2. the weights,
    3. the operands of the epilogue: a bias and a residual if the workload has them; for a quantised
       workload the arguments of `targets.steps.quantised`, which are scales, a bias and an added
       tensor,
    4. the output.

    Images are stored in channel blocks: a tensor of shape (n, c, h, w) is stored as (n, c / block,
    h, w, block). A block size of 0 stands for a matrix whose axes have the same order as in the
    model.

    Attributes:
        function: the kernel as a TensorIR function.
        data_block: channel block size of the input.
        out_block: channel block size of the output.
        pack_weights: converts weights of shape (o, c/groups, kh, kw), or (out, in) for a dense
            layer, to the kernel's layout.
        narrowed: returns a variant of the kernel in which some tensors are bfloat16, stored as
            uint16, instead of float32. Its argument maps the index of each such parameter to the
            channel block size of that tensor. None if the kernel has no such variant.
        stored_block: channel block size in which the kernel reads bfloat16 data fastest; 0 if the
            kernel has no preference.
    """

    function: PrimFunc
    data_block: int
    out_block: int
    pack_weights: Callable[[Array], Array]
    narrowed: Callable[[Mapping[int, int]], PrimFunc] | None = None
    stored_block: int = 0
