"""Steps of quantised layers: integer tensors that represent real numbers by scale and zero point.

An epilogue that begins with the step `dequantise` computes with real numbers, which are the
accumulators times one scale per channel. The following steps can add a `bias` or an integer tensor,
clip, and round to representable values (`round`). The epilogue ends with the step `quantise`, or
leaves its result in float32. Scales and zero points are arguments of the compiled kernel, so that
layers of equal shape can share a schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.steps.step import StepKind

BYTES = ("int8", "uint8")
"""Integer types that a step can have, indexed by the step's value."""
LIMITS: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""Smallest and largest value of each integer type, by name of the type."""
NUMBERS: Mapping[str, int] = {"add_dequantised": 2, "round": 4, "quantise": 4}
"""Number of entries in the array of `pack_scales` that a step needs, by the kind of step."""

Reals = NDArray[Any]
Tensors = Mapping[str, NDArray[Any]]


class TensorScale(NamedTuple):
    """Quantisation parameters of an integer tensor: real = scale · (integer − zero).

    Attributes:
        dtype: integer type, `int8` or `uint8`.
        scale: scale factor.
        zero: zero point.
    """

    dtype: str
    scale: float
    zero: int

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest value of (integer − zero) for the tensor's type."""
        least, most = LIMITS[self.dtype]
        return least - self.zero, most - self.zero


def pack_scales(
    data_zero: int, kinds: Sequence[str], scales: Sequence[TensorScale]
) -> NDArray[np.float32]:
    """Pack the scales and zero points that a kernel needs into one float32 array.

    Entry 0 holds the zero point of the input data, with the bits of an int32. The entries of each
    step follow, in the order of the epilogue:

    - `add_dequantised`: zero point and scale of the added tensor.
    - `round`: inverse of the scale, smallest and largest rounded value, scale.
    - `quantise`: inverse of the scale, smallest and largest rounded value, zero point with the bits
      of an int32.

    Args:
        data_zero: zero point of the input data.
        kinds: kind of each step of the epilogue, in order.
        scales: one scale per step whose kind is in `NUMBERS`, in order.

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
    """Return the float32 number whose bits are those of a small int32 number."""
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
