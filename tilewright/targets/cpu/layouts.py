"""Memory layouts of tensors and weights.

Channels are stored in blocks of at most one vector: shape (N, C, H, W) becomes (N, C / b, H, W, b)
with b channels per block. The block size depends only on the tensor's number of channels. Two
neighbouring layers therefore agree on the layout of the tensor between them, whatever their
schedules are.

Each kernel packs its weights once, when a library is built (`Kernel.pack_weights`). The weights
that one register tile reads are contiguous. In the following shapes, `tile` is the number of output
channels of a register tile, `ib` the input channels per block, and `m` Winograd's tile size:

    conv2d, direct      (o / tile, c / ib, kh, kw, ib, tile)                    `pack_filters`
    conv2d, Winograd    (o / tile, m + 2, m + 2, c / ib, ib, tile), transformed; or, if the kernel
                        transforms the weights itself, (o / tile, c / ib, ib, 3, 3, tile)
    conv2d_int8         (o / tile, 1 + steps, lanes): initial values of the sums, then the weights
                        of one dot-product instruction per step
    depthwise           (c / block, kh, kw, block)
    grouped             (o / tile, kh, kw, input channels per tile, tile), zeros between groups
    dense               (o / tile, c, tile)
    dense_int8          (o / tile, 1 + steps, lanes), as for conv2d_int8
    batch_matmul        unchanged, (batch, depth, columns): both operands are activations
    conv2d_amx          (words,), in the order: blocks of columns, steps of the depth, tiles,
                        32-bit words of the depth, columns of a tile
    matmul_amx          as conv2d_amx
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.tvm_types import Array

ODD = 1.6
"""Relative cost of a vector instruction on a block of channels whose size is not a power of two.

Such a block fills only a part of a vector, which is loaded and stored in pieces. We measured the
factor on convolutions with 12 and 24 channels, on a Xeon with AVX-512. To measure one of them
again, run `tilewright tune --target cpu:threads=1 --workload
conv2d:n=1,c=24,h=56,w=56,o=24,k=3,p=1` and compare it with 32 channels."""


def channel_block(channels: int, lanes: int) -> int:
    """Return the number of channels per block of a tensor.

    The result is the divisor of `channels` that fits a vector and has the lowest cost per channel.

    Args:
        channels: channels of the tensor.
        lanes: float32 values per vector.
    """

    def cost(block: int) -> float:
        return (1.0 if block.bit_count() == 1 else ODD) / block

    return min((d for d in range(1, min(channels, lanes) + 1) if channels % d == 0), key=cost)


def pack_channels(tensor: Array, block: int) -> Array:
    """Split the channels of a tensor into blocks.

    Args:
        tensor: shape (n, c, h, w).
        block: channels per block, a divisor of c.

    Returns:
        Shape (n, c / block, h, w, block).
    """
    n, c, h, w = tensor.shape
    blocked = tensor.reshape(n, c // block, block, h, w)
    return np.ascontiguousarray(blocked.transpose(0, 1, 3, 4, 2))


def unpack_channels(packed: Array) -> Array:
    """Undo `pack_channels`.

    Args:
        packed: shape (n, c / block, h, w, block).

    Returns:
        Shape (n, c, h, w).
    """
    n, blocks, h, w, block = packed.shape
    return np.ascontiguousarray(packed.transpose(0, 1, 4, 2, 3)).reshape(n, blocks * block, h, w)


def pack_filters(weights: NDArray[np.float32], ib: int, tile: int) -> NDArray[np.float32]:
    """Pack the weights of a direct convolution, so that a register tile's weights are contiguous.

    Args:
        weights: float32 array of shape (o, c, kh, kw).
        ib: input channels per block.
        tile: output channels per register tile.

    Returns:
        Float32 array of shape (o / tile, c / ib, kh, kw, ib, tile).
    """
    o, c, kh, kw = weights.shape
    blocked = weights.reshape(o // tile, tile, c // ib, ib, kh, kw)
    return np.ascontiguousarray(blocked.transpose(0, 2, 4, 5, 3, 1))
