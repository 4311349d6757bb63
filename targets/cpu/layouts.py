"""How tensors lie in memory: channels in blocks of a vector, NCHW as N C/b H W b.

The block of a tensor follows from its number of channels alone, so that neighbours agree on what
lies between them, whatever their schedules are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_BLOCK = 64


def channel_block(channels: int, lanes: int) -> int:
    """Channels a block: the divisor of `channels` (at most 64) that takes the fewest vector
    instructions a channel, where a rest of a vector of `lanes` numbers takes one instruction for
    each power of two in it; of equal ones the nearest to one vector."""

    def cost(block: int) -> tuple[float, int]:
        instructions = block // lanes + (block % lanes).bit_count()
        return instructions / block, abs(block - lanes)

    divisors = [d for d in range(1, min(channels, MAX_BLOCK) + 1) if channels % d == 0]
    return min(divisors, key=cost)


def pack_channels(tensor: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """(n, c, h, w) → (n, c / block, h, w, block)."""
    n, c, h, w = tensor.shape
    blocked = tensor.reshape(n, c // block, block, h, w)
    return np.ascontiguousarray(blocked.transpose(0, 1, 3, 4, 2))


def unpack_channels(packed: NDArray[np.float32]) -> NDArray[np.float32]:
    """The inverse of `pack_channels`."""
    n, blocks, h, w, block = packed.shape
    return np.ascontiguousarray(packed.transpose(0, 1, 4, 2, 3)).reshape(n, blocks * block, h, w)


def pack_filters(weights: NDArray[np.float32], ib: int, tile: int) -> NDArray[np.float32]:
    """(o, c, kh, kw) → (o / tile, c / ib, kh, kw, ib, tile): what one register tile reads lies in
    one piece. `tile` counts output channels."""
    o, c, kh, kw = weights.shape
    blocked = weights.reshape(o // tile, tile, c // ib, ib, kh, kw)
    return np.ascontiguousarray(blocked.transpose(0, 2, 4, 5, 3, 1))
