"""Layers of a network in the form that an accelerator runs, and int8 conversion of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.im2col import Unfold
from tilewright.targets.workload import Workload


class Scale(NamedTuple):
    """Quantisation scale of an int8 tensor: real = step · (integer − zero_point).

    Attributes:
        step: real distance of adjacent integers.
        zero_point: integer that represents the real number 0.
    """

    step: float
    zero_point: int = 0

    @classmethod
    def power_of_two(cls, exponent: int) -> Scale:
        """Return the scale with step 2^exponent and zero point 0."""
        return cls(math.ldexp(1.0, exponent))

    @property
    def exponent(self) -> int | None:
        """Base-2 logarithm of the step; None if it is not an integer or the zero point is not 0."""
        mantissa, exponent = math.frexp(self.step)
        return exponent - 1 if mantissa == 0.5 and not self.zero_point else None


NamedShape = tuple[int | str, ...]
"""Shape of a tensor. A dynamic dimension is represented by its name instead of a size."""


@dataclass(frozen=True)
class Value:
    """A named tensor that is passed between layers, or between layers and the host.

    Attributes:
        name: name of the tensor.
        shape: shape of the tensor; (n, c, h, w) for images.
        dtype: element type. uint8 tensors of the host are stored as int8, with 128 subtracted.
        scale: quantisation scale of an int8 tensor; None for other types.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "int8"
    scale: Scale | None = None


@dataclass(frozen=True)
class ChannelSlice:
    """A tensor that is a range of channels of another tensor and shares its memory.

    The channels are the second dimension of a four-dimensional tensor, and the last dimension of
    any other tensor. Writing to one of the two tensors changes the other.

    Attributes:
        part: name of the tensor that is the range of channels.
        whole: name of the tensor that contains the range.
        first: index of the first channel of the range.
    """

    part: str
    whole: str
    first: int


def channel_axis(shape: tuple[int, ...]) -> int:
    """Return the index of the channel dimension of a tensor with the given shape."""
    return 1 if len(shape) == 4 else len(shape) - 1


@dataclass(frozen=True, eq=False)
class LayerShortcut:
    """Operands of the shortcut convolution of a layer.

    Attributes:
        data: name of the tensor that the shortcut reads.
        weight: weights, int8, shape (o, c, 1, 1).
        bias: biases, int32, shape (o,).
        shifts: amounts of a `shr_channel` step, int32, shape (o,).
    """

    data: str
    weight: NDArray[np.int8]
    bias: NDArray[np.int32] | None = None
    shifts: NDArray[np.int32] | None = None


@dataclass(frozen=True, eq=False)
class Layer:
    """One call of a workload within a network, with its constants and the names of its tensors.

    Attributes:
        name: name of the anchor operator in the source model.
        names: names of all operators of the source model that the layer covers.
        operator: type of the anchor operator in the source model.
        workload: the workload.
        data: name of the input activation.
        output: name of the output activation.
        residual: name of the activation that a residual step adds.
        weight: weights as in the source model, int8, shape (o, c/groups, kh, kw). Targets pad them
            to blocks themselves. None for pools, and if `weight_from` is set.
        weight_from: name of an activation of shape (rows, channels) that is packed as the weights
            of a dense layer.
        bias: biases, int32, shape (o,), including the rounding constant of the right shift.
        shifts: amounts of a `shr_channel` step in bits, int32, shape (o,).
        unfold: rearrangement that is applied to `data` when it is packed. If it is set, `workload`
            and `weight` describe the convolution of the rearranged image.
        shortcut: operands of the workload's shortcut, if it has one.
        add: constants that an `add` step of the epilogue reads, int32, shape (n, o, oh, ow).
        macs: number of multiply-accumulates of the operator in the source model.
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

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the activations that the layer reads: data, residual, shortcut and weights."""
        beside = None if self.shortcut is None else self.shortcut.data
        return tuple(n for n in (self.data, self.residual, self.weight_from, beside) if n)


OF_UINT8 = np.uint8(0x80)
"""Highest bit of a byte. Flipping it converts between int8 and uint8: the uint8 value is the int8
value plus 128."""


def to_int8(values: NDArray[Any], scale: Scale | None) -> NDArray[np.int8]:
    """Convert a host tensor to int8.

    Floats are quantised in float32 like in ONNX's QuantizeLinear: they are divided by the step,
    rounded to the nearest integer (ties to even), offset by the zero point and clipped to −128…127.
    NaN becomes the zero point. For uint8 values, 128 is subtracted. int8 values are returned
    unchanged.

    Args:
        values: float, uint8 or int8 tensor of any shape.
        scale: quantisation scale; required for floats.

    Returns:
        int8 tensor of the same shape.
    """
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
    """Convert an int8 tensor to a host tensor.

    Floats are computed in float32 like in ONNX's DequantizeLinear.

    Args:
        values: int8 tensor of any shape.
        scale: quantisation scale; required if `dtype` is a float type.
        dtype: element type of the result: a float type, uint8 or int8.

    Returns:
        Tensor of the same shape with elements of type `dtype`.
    """
    if dtype == "int8":
        return values
    if dtype == "uint8":
        return values.view(np.uint8) ^ OF_UINT8
    assert scale is not None
    with np.errstate(over="ignore"):
        real = (values.astype(np.float32) - scale.zero_point) * np.float32(scale.step)
    return real.astype(dtype, copy=False)
