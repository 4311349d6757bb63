"""Terms of lower bounds: cycles and bytes that every schedule needs."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tilewright.targets.anchor import Windows
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.max_pool_plan import fewest_maxima
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload


class BoundTerms(NamedTuple):
    """Terms of the lower bound of a workload.

    Attributes:
        geo: packed sizes of the workload.
        machine: the machine.
        sums: number of accumulators that are sums of products.
        other: cycles of the compute module for everything but these sums.
        pixels: bytes of images that are read.
        parameters: bytes of parameters that are read.
    """

    geo: Geometry
    machine: Machine
    sums: int
    other: int
    pixels: int
    parameters: int

    @property
    def planes(self) -> int:
        """Number of blocks of output channels in all images."""
        return self.geo.batches * self.geo.out_blocks

    @property
    def results(self) -> int:
        """Number of accumulators that the epilogue processes."""
        return self.planes * self.geo.oh * self.geo.ow


def needed_pixels(workload: Workload, sums: tuple[int, int] | None = None) -> int:
    """Return the number of input pixels that at least one of a convolution's results reads.

    Args:
        workload: the workload.
        sums: only consider the results in this many first rows and columns; None for all results.
    """
    rows, cols = needed_sides(workload, sums)
    return rows * cols


def needed_sides(workload: Workload, sums: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the numbers of input rows and columns that a convolution's results read.

    Args:
        workload: the workload.
        sums: only consider the results in this many first rows and columns; None for all results.
    """
    w = workload
    rows, cols = (w.sums_height, w.sums_width) if sums is None else sums
    rows = needed_rows(w.height, rows, w.stride_h, w.kernel_h, w.dilation_h, w.pad_top)
    cols = needed_rows(w.width, cols, w.stride_w, w.kernel_w, w.dilation_w, w.pad_left)
    return rows, cols


@lru_cache(maxsize=4096)
def needed_rows(size: int, outputs: int, stride: int, kernel: int, dilation: int, pad: int) -> int:
    """Return the number of image rows (or columns) that at least one output reads.

    Args:
        size: size of the image.
        outputs: number of output rows (or columns).
        stride: stride of the windows.
        kernel: size of a window.
        dilation: distance of two elements of a window.
        pad: padding before the image, which does not count.
    """
    read = {o * stride + k * dilation - pad for o in range(outputs) for k in range(kernel)}
    return sum(0 <= row < size for row in read)


def fewest_maxima_of(windows: Windows, oh: int, ow: int, rows: int, cols: int) -> int:
    """Return the minimum number of element-wise maxima with which a max-pool can be computed.

    Windows are reduced first along one axis and then along the other. The better order counts.

    Args:
        windows: geometry of the windows.
        oh: number of output rows.
        ow: number of output columns.
        rows: number of input rows.
        cols: number of input columns.
    """
    by_row = fewest_maxima(windows.kernel_h, windows.stride_h, oh)
    by_col = fewest_maxima(windows.kernel_w, windows.stride_w, ow)
    return min(by_row * cols + by_col * oh, by_col * rows + by_row * ow)
