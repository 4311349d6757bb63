"""Converts tensors of the host to int8, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.layer import Scale

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
