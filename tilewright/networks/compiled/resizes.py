"""Resizes images linearly, first along rows and then along columns.

TVM's operator reads four pixels for each of the result, and computes where they are each time. Two
passes read two each, the first of them for as many rows as the image has. Places and weights are
computed when the network is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

MODES = frozenset(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))
Array = NDArray[Any]


@dataclass(frozen=True)
class ResizeTaps:
    """Of an axis: the pixels that each of the result is between, `first` and `second`, and the
    share of the second, each of shape (length of the result,)."""

    first: Array
    second: Array
    share: Array


def linear_taps(length: int, wanted: int, mode: str) -> ResizeTaps:
    """Of an axis of `length` that becomes `wanted` long, by ONNX's coordinate transformation modes
    `MODES`."""
    places = np.arange(wanted, dtype=np.float64)
    if mode == "asymmetric":
        at = places * length / wanted
    elif mode == "align_corners":
        at = places * (length - 1) / max(wanted - 1, 1)
    elif mode == "pytorch_half_pixel" and wanted == 1:
        at = np.zeros(1)
    else:
        at = (places + 0.5) * length / wanted - 0.5
    first = np.floor(at)
    one, other = (np.clip(each, 0, length - 1).astype(np.int32) for each in (first, first + 1))
    return ResizeTaps(one, other, (at - first).astype(np.float32))


def along(axis: int) -> Callable[..., Any]:
    """Writes the pass along an axis of an image (n, c, h, w), or of one in blocks of channels
    (n, c / block, h, w, block); `ResizeTaps` are tensors."""

    def computed(image: Any, first: Any, second: Any, share: Any) -> Any:
        def value(*place: Any) -> Any:
            at = place[axis]
            one, other = (
                image[(*place[:axis], taps[at], *place[axis + 1 :])] for taps in (first, second)
            )
            return one + (other - one) * share[at]

        shape = [int(size) for size in image.shape]
        shape[axis] = int(first.shape[0])
        return te.compute(tuple(shape), value, name="resize")

    return computed


def is_vector(block: int) -> bool:
    """Whether channels of a block are worth computing beside each other."""
    return block >= 8 and block.bit_count() == 1
