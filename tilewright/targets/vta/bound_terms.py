"""Computes the terms of bounds: cycles and bytes that every schedule needs."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tilewright.targets.anchor import Windows
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.max_pool_plan import fewest_maxima
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload


class BoundTerms(NamedTuple):
    """Of a layer whose packed sizes are `geo`: accumulators that a reduction sums up, `other`
    cycles of compute, bytes of images and of parameters that are read."""

    geo: Geometry
    machine: Machine
    sums: int
    other: int
    pixels: int
    parameters: int

    @property
    def planes(self) -> int:
        """Blocks of output channels of all images."""
        return self.geo.batches * self.geo.out_blocks

    @property
    def results(self) -> int:
        """Accumulators that the epilogue works on."""
        return self.planes * self.geo.oh * self.geo.ow


def needed_pixels(workload: Workload, sums: tuple[int, int] | None = None) -> int:
    """Pixels of the input image that the first so many rows and columns of the sums read, by
    default all of them."""
    rows, cols = needed_sides(workload, sums)
    return rows * cols


def needed_sides(workload: Workload, sums: tuple[int, int] | None = None) -> tuple[int, int]:
    """Rows and columns of the input image that these sums read."""
    w = workload
    rows, cols = (w.sums_height, w.sums_width) if sums is None else sums
    rows = needed(w.height, rows, w.stride_h, w.kernel_h, w.dilation_h, w.pad_top)
    cols = needed(w.width, cols, w.stride_w, w.kernel_w, w.dilation_w, w.pad_left)
    return rows, cols


@lru_cache(maxsize=4096)
def needed(size: int, outputs: int, stride: int, kernel: int, dilation: int, pad: int) -> int:
    """Input rows (columns) inside the image that at least one output reads."""
    read = {o * stride + k * dilation - pad for o in range(outputs) for k in range(kernel)}
    return sum(0 <= row < size for row in read)


def fewest_maxima_of(windows: Windows, oh: int, ow: int, rows: int, cols: int) -> int:
    """Maxima, of rows and of columns apart, of windows that read so many rows and columns."""
    by_row = fewest_maxima(windows.kernel_h, windows.stride_h, oh)
    by_col = fewest_maxima(windows.kernel_w, windows.stride_w, ow)
    return min(by_row * cols + by_col * oh, by_col * rows + by_row * ow)
