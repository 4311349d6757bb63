"""Defines the steps of layers whose tensors stand for real numbers by scales and zero points.

    dequantise  [bias]  [add]  [max 0]  [min N]  [quantise]

An epilogue that begins with `dequantise` works on reals: sums times a scale a channel. It ends
with `quantise`, or leaves them in float32. The added tensor is of integers, too. Scales and zero
points are arguments of a kernel, so layers of one shape share schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.steps.step import StepKind

BYTES = ("int8", "uint8")
"""By the number of a step, the type of its integers."""
LIMITS: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""The least and the largest integer."""


class Place(IntEnum):
    """Of `Quantisation.packed`; the least and the largest output are before its zero point is
    added."""

    DATA_ZERO = 0
    ADDED_ZERO = 1
    ADDED_SCALE = 2
    OUT_INVERSE = 3
    LEAST = 4
    MOST = 5
    OUT_ZERO = 6


class Quantisation(NamedTuple):
    """What a kernel with a `dequantise` step gets besides tensors: zero points of the data, of the
    added tensor and of the output, and the scales of the latter two."""

    data_zero: int = 0
    added_zero: int = 0
    added_scale: float = 1.0
    out_scale: float = 1.0
    out_zero: int = 0

    def packed(self, out: str) -> NDArray[np.float32]:
        """As kernels take it, the places of `Place`; `out` is the element type of the output. The
        zero points of data and output are the bits of an int32."""
        least, most = LIMITS.get(out, (0, 0))
        bits = np.array([self.data_zero, self.out_zero], np.int32).view(np.float32)
        found = np.zeros(len(Place), np.float32)
        found[[Place.DATA_ZERO, Place.OUT_ZERO]] = bits
        found[Place.ADDED_ZERO], found[Place.ADDED_SCALE] = self.added_zero, self.added_scale
        found[Place.OUT_INVERSE] = 1 / self.out_scale
        found[Place.LEAST], found[Place.MOST] = least - self.out_zero, most - self.out_zero
        return found


Reals = NDArray[Any]
Tensors = Mapping[str, NDArray[Any]]


def _dequantised(sums: Reals, _: int, tensors: Tensors) -> Reals:
    scaled: Reals = sums * tensors["scale"][None, :, None, None]
    return scaled


def _with_added(sums: Reals, _: int, tensors: Tensors) -> Reals:
    added = tensors["added"].astype(np.float64) - tensors["added_zero"]
    found: Reals = sums + added * tensors["added_scale"]
    return found


def _quantised(reals: Reals, kind: int, tensors: Tensors) -> Reals:
    steps = np.rint(reals * tensors["out_inverse"]) + tensors["out_zero"]
    found: Reals = np.clip(steps, *LIMITS[BYTES[kind]])
    return found


def _names(verb: str) -> Mapping[str, int]:
    return {f"{verb} {kind}": number for number, kind in enumerate(BYTES)}


QUANTISED = (
    StepKind("dequantise", "dequantise", _dequantised, _names("dequantise"), False),
    StepKind("add_dequantised", "add", _with_added, _names("add"), False, title="add"),
    StepKind("quantise", "quantise", _quantised, _names("quantise"), False),
)
