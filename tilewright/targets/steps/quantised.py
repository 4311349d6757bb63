"""Steps of layers whose integer tensors represent real numbers by scales and zero points.

An epilogue that begins with `dequantise` computes with real numbers: the accumulators times one
scale per channel. It can add a `bias` and an integer tensor, clip, and round to representable
values (`round`). It ends with `quantise`, or leaves float32 values. Scales and zero points are
arguments of the kernel, so that layers of equal shape share schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.steps.step import StepKind

BYTES = ("int8", "uint8")
"""Integer type of a step, indexed by the step's value."""
LIMITS: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""Smallest and largest value of each integer type."""
NUMBERS: Mapping[str, int] = {"add_dequantised": 2, "round": 4, "quantise": 4}
"""Number of entries of `pack_scales` that each kind of step uses."""

Reals = NDArray[Any]
Tensors = Mapping[str, NDArray[Any]]


class TensorScale(NamedTuple):
    """Quantisation scale of an integer tensor: real = scale · (integer − zero)."""

    dtype: str
    scale: float
    zero: int

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and largest integer of the type, minus the zero point."""
        least, most = LIMITS[self.dtype]
        return least - self.zero, most - self.zero


def pack_scales(
    data_zero: int, kinds: Sequence[str], scales: Sequence[TensorScale]
) -> NDArray[np.float32]:
    """Pack the scales and zero points of a kernel into one float32 array.

    The first entry has the bits of the data's zero point. The entries of each step follow. For
    `add_dequantised`, they are the zero point and scale of the added tensor. For `round` and
    `quantise`, they are the inverse of the scale, the bounds of the rounded value, and then the
    scale (`round`) or the bits of the zero point (`quantise`).

    Args:
        data_zero: zero point of the data.
        kinds: kinds of the epilogue's steps, in order.
        scales: one scale per step that occurs in `NUMBERS`, in order.

    Returns:
        float32 array of shape (1 + entries of all steps,).
    """
    entries = [_bits(data_zero)]
    taking = [kind for kind in kinds if kind in NUMBERS]
    for kind, scale in zip(taking, scales, strict=True):
        if kind == "add_dequantised":
            entries += [float(scale.zero), scale.scale]
            continue
        last = scale.scale if kind == "round" else _bits(scale.zero)
        entries += [1 / scale.scale, *map(float, scale.bounds()), last]
    return np.array(entries, np.float32)


def _bits(number: int) -> float:
    """Return the float32 number that has the same bits as a small int32 number."""
    return float(np.array([number], np.int32).view(np.float32)[0])


def _of_integers(reals: Reals, _: int, __: Tensors) -> Reals:
    raise TypeError(
        "steps of real numbers cannot be computed on integers; only targets that support them "
        "compute them"
    )


def _names(verb: str) -> Mapping[str, int]:
    return {f"{verb} {kind}": number for number, kind in enumerate(BYTES)}


QUANTISED = (
    StepKind("dequantise", "dequantise", _of_integers, _names("dequantise"), False),
    StepKind("add_dequantised", "add", _of_integers, _names("add"), False, title="add"),
    StepKind("round", "round", _of_integers, {"round": 0}, False),
    StepKind("quantise", "quantise", _of_integers, _names("quantise"), False),
)
