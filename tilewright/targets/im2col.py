"""Rearranges images with few channels so that a convolution fills whole blocks of channels.

Each pixel of the rearranged image holds a patch of the original image as channels. The convolution
then continues with a correspondingly smaller kernel. Space-to-depth and im2col are two special
cases of this rearrangement.

The result is exact for every kernel size: patch positions outside the kernel get the weight zero,
and pixels outside the image are zero.
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
    """Rearrangement of the patches of an image into channels.

    Channel (y·cols + x)·C + c of unfolded pixel (i, j) is channel c of the zero-padded image at row
    i·stride_h + y and column j·stride_w + x, for y < rows and x < cols, where C is the number of
    channels of the image.

    Attributes:
        rows: height of a patch.
        cols: width of a patch.
        stride_h: vertical distance of neighbouring patches.
        stride_w: horizontal distance of neighbouring patches.
        pad_top: rows of zeros above the image.
        pad_left: columns of zeros to the left of the image.
        height: height of the unfolded image.
        width: width of the unfolded image. Zeros below and to the right of the image are added as
            needed.
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
    def for_patches(cls, workload: Workload, rows: int, cols: int) -> Unfold:
        """Return the rearrangement of a convolution's `rows` × `cols` patches into channels.

        Args:
            workload: the convolution.
            rows: height of a patch, a multiple of the vertical stride or at least the kernel
                height.
            cols: width of a patch, a multiple of the horizontal stride or at least the kernel
                width.

        Raises:
            WorkloadError: the workload is grouped, dilated or not a convolution, or the patch size
                does not fit the strides.
        """
        w = workload
        plain = w.groups == 1 and (w.dilation_h, w.dilation_w) == (1, 1)
        uneven = (rows < w.kernel_h and rows % w.stride_h != 0) or (
            cols < w.kernel_w and cols % w.stride_w != 0
        )
        if not plain or uneven or w.operator != "conv2d":
            raise WorkloadError(
                f"{w}: a kernel of {rows}×{cols} cannot be unfolded; only plain convolutions "
                "can be unfolded, by multiples of their strides or by the whole kernel"
            )
        reach_h = -(-w.kernel_h // rows) * rows - rows
        reach_w = -(-w.kernel_w // cols) * cols - cols
        return cls(
            rows, cols, w.stride_h, w.stride_w, w.pad_top, w.pad_left,
            w.out_height + reach_h // w.stride_h, w.out_width + reach_w // w.stride_w,
        )  # fmt: skip

    def channels(self, channels: int) -> int:
        """Return the number of channels of the unfolded image.

        Args:
            channels: number of channels of the original image.
        """
        return self.rows * self.cols * channels

    def workload(self, workload: Workload) -> Workload:
        """Return the convolution that computes the output of `workload` from the unfolded image.

        Args:
            workload: the original convolution.
        """
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
        """Unfold an image.

        Args:
            image: array of shape (n, c, h, w).

        Returns:
            Array of shape (n, rows·cols·c, height, width), of the same dtype.
        """
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
        """Rearrange the weights of the convolution to match the unfolded image.

        Args:
            weight: weights of shape (o, c, kh, kw).

        Returns:
            Weights of shape (o, rows·cols·c, ⌈kh/rows⌉, ⌈kw/cols⌉), of the same dtype.
        """
        o, c, kh, kw = weight.shape
        taps_h, taps_w = -(-kh // self.rows), -(-kw // self.cols)
        whole = np.zeros((o, c, taps_h * self.rows, taps_w * self.cols), weight.dtype)
        whole[:, :, :kh, :kw] = weight
        patches = whole.reshape(o, c, taps_h, self.rows, taps_w, self.cols)
        return np.ascontiguousarray(
            patches.transpose(0, 3, 5, 1, 2, 4).reshape(o, -1, taps_h, taps_w)
        )

    def to_json(self) -> dict[str, Json]:
        """Return the rearrangement as JSON."""
        return dict(asdict(self))

    @staticmethod
    def from_json(values: Mapping[str, Json]) -> Unfold:
        """Read a rearrangement that `to_json` wrote.

        Raises:
            TypeError: a field is missing or unknown.
            ValueError: a value is not an integer.
        """
        return Unfold(**{name: as_int(value) for name, value in values.items()})
