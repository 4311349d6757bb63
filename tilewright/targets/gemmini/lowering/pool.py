"""Pools sums as they are stored: which max-pools the store unit computes, and how it is told.

It reads accumulators, finishes each (scale, round, saturate, relu), and writes the largest of a
window. What follows a sum is monotonic, so this is the result of the largest sum. Pixels beyond the
sums' border count as zeros, where a max-pool ignores them; behind a relu that is the same.
"""

from __future__ import annotations

from tilewright.core.errors import WorkloadError
from tilewright.targets.gemmini.lowering.epilogue import StoreEpilogue
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.workload import Workload

MOST_SIDE = 3
"""Pixels of a window, of a stride and of a pad: fields of two bits."""
MOST_PIXELS = 255
"""Rows and columns of a store's sums and of its results, and columns of the output."""


def check_pool(w: Workload, pool: Pool, epilogue: StoreEpilogue) -> None:
    """Raises `WorkloadError` for a pool of a workload's sums that no store computes."""
    sides = {pool.kernel_h, pool.kernel_w}, {pool.stride_h, pool.stride_w}
    why = ""
    if any(len(side) > 1 or max(side) > MOST_SIDE for side in sides):
        why = f"its windows and strides are squares of at most {MOST_SIDE} pixels"
    elif w.out_width > MOST_PIXELS:
        why = f"its output has at most {MOST_PIXELS} columns"
    elif epilogue.residual:
        why = "sums that it pools have no residual"
    elif not epilogue.relu and (pool.pad_top or pool.pad_left or pool.pad_bottom or pool.pad_right):
        why = "pixels around the image count as zeros, which is right behind a relu alone"
    if why:
        raise WorkloadError(
            f"{w}: Gemmini's store unit computes no {pool.title}: {why}; leave the pool to the CPU"
        )


def covered(out: int, pool_stride: int, kernel: int) -> int:
    """Sums under so many results of one direction, without a border."""
    return (out - 1) * pool_stride + kernel


def sums_under(first: int, out: int, stride: int, kernel: int, pad: int, size: int) -> range:
    """The sums of one direction, of `size`, under `out` results from `first` on."""
    begin = first * stride - pad
    return range(max(begin, 0), min(begin + covered(out, stride, kernel), size))
