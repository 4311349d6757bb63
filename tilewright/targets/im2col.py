"""Rearranges an image of few channels so that a convolution fills whole blocks of channels.

Space-to-depth and im2col are two ends of one scheme. A pixel of the unfolded image holds a patch of
the image, and the convolution goes on with the remaining kernel. Exact for every kernel: taps
beyond it have weight zero, pixels beyond the image are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json, as_int
from tilewright.targets.workload import Workload

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Unfold:
    """Channel (y·cols + x)·C + c of unfolded pixel (i, j) is channel c of the zero-padded image at
    row i·stride_h + y, column j·stride_w + x, for y < rows and x < cols, C the image's channels.

    `height` and `width` are those of the unfolded image, `pad_top` and `pad_left` rows and columns
    of zeros before the image; behind it there are as many as are asked for.
    """

    rows: int
    cols: int
    stride_h: int
    stride_w: int
    pad_top: int
    pad_left: int
    height: int
    width: int

    @classmethod
    def of(cls, workload: Workload, rows: int, cols: int) -> Unfold:
        """The rearrangement that turns a convolution's patches of `rows` × `cols` taps into
        channels. Each must be a multiple of the stride or hold the whole kernel. Raises
        `WorkloadError`."""
        w = workload
        plain = w.groups == 1 and (w.dilation_h, w.dilation_w) == (1, 1)
        uneven = (rows < w.kernel_h and rows % w.stride_h != 0) or (
            cols < w.kernel_w and cols % w.stride_w != 0
        )
        if not plain or uneven or w.operator != "conv2d":
            raise WorkloadError(
                f"{w}: cannot unfold {rows}×{cols} taps; only plain convolutions can be unfolded, "
                "by multiples of their strides or by the whole kernel"
            )
        reach_h = -(-w.kernel_h // rows) * rows - rows
        reach_w = -(-w.kernel_w // cols) * cols - cols
        return cls(
            rows, cols, w.stride_h, w.stride_w, w.pad_top, w.pad_left,
            w.out_height + reach_h // w.stride_h, w.out_width + reach_w // w.stride_w,
        )  # fmt: skip

    def channels(self, channels: int) -> int:
        """Of the unfolded image."""
        return self.rows * self.cols * channels

    def workload(self, workload: Workload) -> Workload:
        """The convolution of the unfolded image that gives what `workload` does."""
        w = workload
        return replace(
            w,
            in_channels=self.channels(w.in_channels),
            height=self.height,
            width=self.width,
            kernel_h=-(-w.kernel_h // self.rows),
            kernel_w=-(-w.kernel_w // self.cols),
            stride_h=1,
            stride_w=1,
            pad_top=0,
            pad_left=0,
            pad_bottom=0,
            pad_right=0,
            dilation_h=self.rows // self.stride_h if w.kernel_h > self.rows else 1,
            dilation_w=self.cols // self.stride_w if w.kernel_w > self.cols else 1,
        )

    def data(self, image: NDArray[Number]) -> NDArray[Number]:
        """The unfolded image, (n, c, h, w) → (n, rows·cols·c, height, width)."""
        n, c, h, w = image.shape
        reach_h = (self.height - 1) * self.stride_h + self.rows
        reach_w = (self.width - 1) * self.stride_w + self.cols
        below = max(0, reach_h - self.pad_top - h)
        right = max(0, reach_w - self.pad_left - w)
        padded = np.pad(image, ((0, 0), (0, 0), (self.pad_top, below), (self.pad_left, right)))
        out = np.empty((n, self.rows, self.cols, c, self.height, self.width), image.dtype)
        for y in range(self.rows):
            for x in range(self.cols):
                out[:, y, x] = padded[
                    :, :,
                    y : y + (self.height - 1) * self.stride_h + 1 : self.stride_h,
                    x : x + (self.width - 1) * self.stride_w + 1 : self.stride_w,
                ]  # fmt: skip
        return out.reshape(n, -1, self.height, self.width)

    def weight(self, weight: NDArray[Number]) -> NDArray[Number]:
        """The weights for the unfolded image, (o, c, kh, kw) → (o, rows·cols·c, ⌈kh/rows⌉,
        ⌈kw/cols⌉)."""
        o, c, kh, kw = weight.shape
        taps_h, taps_w = -(-kh // self.rows), -(-kw // self.cols)
        whole = np.zeros((o, c, taps_h * self.rows, taps_w * self.cols), weight.dtype)
        whole[:, :, :kh, :kw] = weight
        patches = whole.reshape(o, c, taps_h, self.rows, taps_w, self.cols)
        return np.ascontiguousarray(
            patches.transpose(0, 3, 5, 1, 2, 4).reshape(o, -1, taps_h, taps_w)
        )

    def to_json(self) -> dict[str, Json]:
        """What `from_json` reads."""
        return dict(asdict(self))

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> Unfold:
        """Raises `KeyError`, `TypeError` or `ValueError` if it was not written by `to_json`."""
        return Unfold(**{name: as_int(value) for name, value in values.items()})
