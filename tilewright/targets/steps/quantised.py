"""Defines the steps of layers whose tensors stand for real numbers by scales and zero points.

An epilogue that begins with `dequantise` works on reals: sums times a scale a channel. It adds a
`bias` and a tensor of integers, clips, and rounds to what integers can stand for (`round`). It ends
with `quantise`, or leaves reals in float32. Scales and zero points are arguments of a kernel, so
layers of one shape share schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.steps.step import StepKind

BYTES = ("int8", "uint8")
"""By the number of a step, the type of its integers."""
LIMITS: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""The least and the largest integer."""
NUMBERS: Mapping[str, int] = {"add_dequantised": 2, "round": 4, "quantise": 4}
"""By the kind of a step, how many numbers of `packed` it takes."""

Reals = NDArray[Any]
Tensors = Mapping[str, NDArray[Any]]


class TensorScale(NamedTuple):
    """real = scale · (integer - zero), for integers of type `dtype`."""

    dtype: str
    scale: float
    zero: int

    def bounds(self) -> tuple[int, int]:
        """The least and the largest integer, less the zero point."""
        least, most = LIMITS[self.dtype]
        return least - self.zero, most - self.zero


def packed(
    data_zero: int, kinds: Sequence[str], scales: Sequence[TensorScale]
) -> NDArray[np.float32]:
    """What a kernel gets besides tensors, shape (1 + numbers of all steps,): the bits of the zero
    point of the data, then, of each step of `kinds` that is in `NUMBERS`, those of its scale: zero
    point and scale of an added tensor; the inverse of a scale and the bounds of what is rounded,
    then that scale again (`round`) or the bits of the zero point (`quantise`)."""
    found = [_bits(data_zero)]
    taking = [kind for kind in kinds if kind in NUMBERS]
    for kind, scale in zip(taking, scales, strict=True):
        if kind == "add_dequantised":
            found += [float(scale.zero), scale.scale]
            continue
        last = scale.scale if kind == "round" else _bits(scale.zero)
        found += [1 / scale.scale, *map(float, scale.bounds()), last]
    return np.array(found, np.float32)


def _bits(number: int) -> float:
    """The float32 with the bits of an int32 near zero."""
    return float(np.array([number], np.int32).view(np.float32)[0])


def _of_integers(reals: Reals, _: int, __: Tensors) -> Reals:
    raise TypeError("steps of reals are computed by targets that have them, not on integers")


def _names(verb: str) -> Mapping[str, int]:
    return {f"{verb} {kind}": number for number, kind in enumerate(BYTES)}


QUANTISED = (
    StepKind("dequantise", "dequantise", _of_integers, _names("dequantise"), False),
    StepKind("add_dequantised", "add", _of_integers, _names("add"), False, title="add"),
    StepKind("round", "round", _of_integers, {"round": 0}, False),
    StepKind("quantise", "quantise", _of_integers, _names("quantise"), False),
)
