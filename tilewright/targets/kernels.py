"""Describes a scheduled kernel on its way into a network's library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.core.tvm_types import Array, PrimFunc

ALIGNMENT = 64
"""Bytes; kernels expect tensors at addresses that are multiples of them."""


def aligned_empty(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
    """An array of this shape without values, at a multiple of `ALIGNMENT`."""
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -int(raw.__array_interface__["data"][0]) % ALIGNMENT  # `ctypes` takes longer
    return raw[start : start + size].view(dtype).reshape(tuple(shape))


@dataclass(frozen=True, eq=False)
class KernelCode:
    """`function` is TensorIR: data, weights, then what the epilogue takes (a bias and a residual if
    the workload has them; of a quantised one `targets.steps.quantised.Quantisation`, scales, a
    bias and what is added), and the output; its parameters have the shapes that it wants them in.

    Channels of an image lie in blocks, (n, c, h, w) as (n, c / block, h, w, block), in this order
    of values whatever the parameter's axes are; a block of 0 is a matrix in the order of the model.
    `pack_weights` takes weights as (o, c/groups, kh, kw), or (out, in) of a dense layer. `narrowed`
    gives a function some of whose tensors are bfloat16, as uint16, instead of float32: by number
    the block of channels in which each lies, several of its own. It is None for a kernel that has
    no such function. `stored_block` is the block in which it reads data in bfloat16 best; 0 where
    that does not matter.
    """

    function: PrimFunc
    data_block: int
    out_block: int
    pack_weights: Callable[[Array], Array]
    narrowed: Callable[[Mapping[int, int]], PrimFunc] | None = None
    stored_block: int = 0
