"""Terms of lower bounds on a workload's latency: cycles and bytes that no schedule can avoid."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tilewright.targets.anchor import Windows
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.max_pool_plan import fewest_maxima
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload


class BoundTerms(NamedTuple):
    """Cycles and bytes that enter the lower bound on a workload's latency.

    Attributes:
        geo: packed sizes of the workload.
        machine: the machine.
        sums: number of accumulators that sum products of inputs and weights.
        other: cycles of the compute module for everything except these products.
        pixels: bytes of the input images that have to be read.
        parameters: bytes of the parameters, such as weights and biases, that have to be read.
    """

    geo: Geometry
    machine: Machine
    sums: int
    other: int
    pixels: int
    parameters: int

    @property
    def planes(self) -> int:
        """Number of output channel blocks, summed over all images of the batch."""
        return self.geo.batches * self.geo.out_blocks

    @property
    def results(self) -> int:
        """Number of accumulators that the epilogue processes."""
        return self.planes * self.geo.oh * self.geo.ow


def needed_pixels(workload: Workload, sums: tuple[int, int] | None = None) -> int:
    """Count the pixels per input channel that a convolution reads.

    Args:
        workload: the workload.
        sums: count only the pixels for this number of first rows and of first columns of the
            convolution's results; None for all results.
    """
    rows, cols = needed_sides(workload, sums)
    return rows * cols


def needed_sides(workload: Workload, sums: tuple[int, int] | None = None) -> tuple[int, int]:
    """Count the input rows and the input columns that a convolution reads.

    Args:
        workload: the workload.
        sums: count only for this number of first rows and of first columns of the convolution's
            results; None for all results.

    Returns:
        The number of rows and the number of columns.
    """
    w = workload
    rows, cols = (w.sums_height, w.sums_width) if sums is None else sums
    rows = needed_rows(w.height, rows, w.stride_h, w.kernel_h, w.dilation_h, w.pad_top)
    cols = needed_rows(w.width, cols, w.stride_w, w.kernel_w, w.dilation_w, w.pad_left)
    return rows, cols


@lru_cache(maxsize=4096)
def needed_rows(size: int, outputs: int, stride: int, kernel: int, dilation: int, pad: int) -> int:
    """Count the rows (or columns) of an image that at least one output reads.

    Args:
        size: number of rows (or columns) of the image.
        outputs: number of output rows (or columns).
        stride: stride of the windows.
        kernel: size of a window.
        dilation: distance between two elements of a window.
        pad: padding before the image; rows in the padding are not counted.
    """
    read = {o * stride + k * dilation - pad for o in range(outputs) for k in range(kernel)}
    return sum(0 <= row < size for row in read)


def fewest_maxima_of(windows: Windows, oh: int, ow: int, rows: int, cols: int) -> int:
    """Return the minimum number of element-wise maximum operations that a max-pool requires.

    Windows are reduced first along one axis and then along the other axis. The order that needs
    fewer operations is counted.

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
