"""Describes a layer of a network as an accelerator runs it: a workload, its numbers, its tensors.

Also converts tensors of the host to int8 by the scale of a layer's tensor, and back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.im2col import Unfold
from tilewright.targets.workload import Workload


class Scale(NamedTuple):
    """What an int8 tensor stands for: real = step · (integer − zero_point)."""

    step: float
    zero_point: int = 0

    @classmethod
    def power_of_two(cls, exponent: int) -> Scale:
        """Steps of 2^exponent, zero point 0."""
        return cls(math.ldexp(1.0, exponent))

    @property
    def exponent(self) -> int | None:
        """log2 of the step where that is a whole number and the zero point 0; None otherwise."""
        mantissa, exponent = math.frexp(self.step)
        return exponent - 1 if mantissa == 0.5 and not self.zero_point else None


NamedShape = tuple[int | str, ...]
"""Sizes of axes, and names of those that are dynamic."""


@dataclass(frozen=True)
class Value:
    """A tensor between layers, by name: NCHW or any other shape; int8 with a scale, or another
    element type without one. A uint8 tensor of the host is int8 less 128 here."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "int8"
    scale: Scale | None = None


@dataclass(frozen=True)
class ChannelSlice:
    """A value that is channels of another, from `first` on: the second dimension of an image, the
    last of any other shape. Writing one of the two writes the other, for they lie in one place."""

    part: str
    whole: str
    first: int


def channel_axis(shape: tuple[int, ...]) -> int:
    """Which dimension of a tensor of that shape are its channels."""
    return 1 if len(shape) == 4 else len(shape) - 1


@dataclass(frozen=True, eq=False)
class LayerShortcut:
    """The tensor that a workload's shortcut reads, by name, and its numbers: `weight` (o, c, 1, 1)
    int8, `bias` and `shifts` (o,) int32 as a layer has them."""

    data: str
    weight: NDArray[np.int8]
    bias: NDArray[np.int32] | None = None
    shifts: NDArray[np.int32] | None = None


@dataclass(frozen=True, eq=False)
class Layer:
    """One call of a workload. Tensors are named by what holds them between layers.

    `name` is that of its anchor in the source model, `names` of all operators it stands for, and
    `operator` what the source model calls it. `data`, `residual` and `output` name activations.
    `weight` (o, c/groups, kh, kw) int8 and `bias` (o,) int32 are as the model has them, the
    rounding constant of the shift included in the bias; what a target makes of them to fill its
    blocks is its own. `shifts` (o,) int32 are the amounts of a `shr_channel`. `weight` is None for
    pools and where `weight_from` names an activation (rows, channels) that is packed as the weights
    of a dense layer. `unfold` is set where `data` names a tensor that is rearranged when it is
    packed: `workload` and `weight` are those of the rearranged image then. `shortcut` is set where
    the workload has one. `add` (n, o, oh, ow) int32 are constants that an `add` of the epilogue
    reads.
    """

    name: str
    names: tuple[str, ...]
    operator: str
    workload: Workload
    data: str
    output: str
    residual: str | None = None
    weight: NDArray[np.int8] | None = None
    weight_from: str | None = None
    bias: NDArray[np.int32] | None = None
    shifts: NDArray[np.int32] | None = None
    unfold: Unfold | None = None
    shortcut: LayerShortcut | None = None
    add: NDArray[np.int32] | None = None
    macs: int = 0
    """Multiply-accumulates that the source model does here."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The activations that it reads."""
        beside = None if self.shortcut is None else self.shortcut.data
        return tuple(n for n in (self.data, self.residual, self.weight_from, beside) if n)


OF_UINT8 = np.uint8(0x80)
"""int8 has the bits of uint8 but for this one: a uint8 tensor is int8 + 128."""


def to_int8(values: NDArray[Any], scale: Scale | None) -> NDArray[np.int8]:
    """A host's tensor of any shape as int8. Floats as ONNX's QuantizeLinear does it in float32:
    divided by the step, rounded half to even, from the zero point, cut off at −128 and 127; a NaN
    is the zero point. uint8 less 128; int8 as it is."""
    if values.dtype == np.int8:
        return values
    if values.dtype == np.uint8:
        return (values ^ OF_UINT8).view(np.int8)
    assert scale is not None
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.rint(values.astype(np.float32) / np.float32(scale.step))
    from_zero = np.where(np.isnan(steps), np.float32(0), steps) + np.float32(scale.zero_point)
    return np.clip(from_zero, -128, 127).astype(np.int8)


def from_int8(values: NDArray[np.int8], scale: Scale | None, dtype: str) -> NDArray[Any]:
    """int8 of any shape as a host's tensor: floats as ONNX's DequantizeLinear in float32, uint8,
    int8 as it is."""
    if dtype == "int8":
        return values
    if dtype == "uint8":
        return values.view(np.uint8) ^ OF_UINT8
    assert scale is not None
    with np.errstate(over="ignore"):
        real = (values.astype(np.float32) - scale.zero_point) * np.float32(scale.step)
    return real.astype(dtype, copy=False)
