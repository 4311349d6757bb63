"""Lays tensors out in memory: channels in blocks of a vector, NCHW as N C/b H W b.

The block of a tensor follows from its number of channels alone, so that neighbours agree on what
lies between them, whatever their schedules are.

Each kernel packs its weights (`Kernel.pack_weights`), once, when a library is built: what a
register tile reads lies in one piece. `tile` counts the output channels of a register tile.

    conv2d, direct      (o / tile, c / ib, kh, kw, ib, tile)                    `pack_filters`
    conv2d, Winograd    (o / tile, m + 2, m + 2, c / ib, ib, tile), transformed; or, where the
                        kernel transforms them, (o / tile, c / ib, ib, 3, 3, tile)
    conv2d_int8         (o / tile, 1 + steps, lanes): where sums begin, then steps of dot products
    depthwise           (c / block, kh, kw, block)
    grouped             (o / tile, kh, kw, input channels a tile, tile), zeros between groups
    dense               (o / tile, c, tile)
    dense_int8          (o / tile, 1 + steps, lanes), as conv2d_int8
    batch_matmul        as they are, (batch, depth, columns): both operands are activations
    conv2d_amx, matmul_amx      (words,): blocks of columns, steps, tiles, words, columns of a tile
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.tvm_types import Array

ODD = 1.6
"""What an instruction on a part of a vector costs that is no power of two: such a part is loaded
and stored in pieces. Measured on convolutions with 12 and 24 channels, on a Xeon with
AVX-512. `tilewright tune --target cpu:threads=1 --workload conv2d:n=1,c=24,h=56,w=56,o=24,k=3,p=1`
measures one again, to compare with 32 channels."""


def channel_block(channels: int, lanes: int) -> int:
    """Channels a block: the divisor of `channels` that fits into a vector of `lanes` numbers and
    costs least a channel."""

    def cost(block: int) -> float:
        return (1.0 if block.bit_count() == 1 else ODD) / block

    return min((d for d in range(1, min(channels, lanes) + 1) if channels % d == 0), key=cost)


def pack_channels(tensor: Array, block: int) -> Array:
    """(n, c, h, w) → (n, c / block, h, w, block)."""
    n, c, h, w = tensor.shape
    blocked = tensor.reshape(n, c // block, block, h, w)
    return np.ascontiguousarray(blocked.transpose(0, 1, 3, 4, 2))


def unpack_channels(packed: Array) -> Array:
    """(n, c / block, h, w, block) → (n, c, h, w)."""
    n, blocks, h, w, block = packed.shape
    return np.ascontiguousarray(packed.transpose(0, 1, 4, 2, 3)).reshape(n, blocks * block, h, w)


def pack_filters(weights: NDArray[np.float32], ib: int, tile: int) -> NDArray[np.float32]:
    """(o, c, kh, kw) → (o / tile, c / ib, kh, kw, ib, tile): what one register tile reads lies in
    one piece. `tile` counts output channels."""
    o, c, kh, kw = weights.shape
    blocked = weights.reshape(o // tile, tile, c // ib, ib, kh, kw)
    return np.ascontiguousarray(blocked.transpose(0, 2, 4, 5, 3, 1))
