"""Convert Fourier transforms and the operators that read their complex results.

ONNX has no operators on complex numbers. A complex tensor is represented as a real tensor with an
additional last dimension for the real and the imaginary part. Complex tensors may only occur
between operators, not as inputs or outputs of the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, input_index, output
from tilewright.networks.tflite.file import TfliteOperator, TfliteTensor
from tilewright.networks.tflite.windows import reduce_axes
from tilewright.networks.tflite.writer import Missing, Writer

OPSET_AXIS = 20
"""First opset in which the axis of DFT is an input instead of an attribute."""


def takes_complex(kind: str, tensor: TfliteTensor) -> bool:
    """Return whether a tensor is complex and an operator kind can read or write complex tensors.

    Args:
        kind: kind of the operator.
        tensor: a tensor that the operator reads or writes.
    """
    return kind in RULES and tensor.kind == "COMPLEX64"


def _transform(writer: Writer, operator: TfliteOperator) -> None:
    """Convert RFFT2D to ONNX.

    The data are cut or padded with zeros to the length of the transform.

    Raises:
        Missing: the length is not a constant of two positive numbers, the data have fewer than two
            dimensions, or the shape of the result does not match the length.
    """
    data, result = input_index(operator, 0), output(operator)
    lengths = writer.integers(input_index(operator, 1), "its length")
    shape = writer.tensors[data].shape
    if len(lengths) != 2 or len(shape) < 2 or min(lengths) < 1:
        raise Missing(f"it transforms {list(shape)} numbers to the length {lengths}")
    if writer.tensors[result].shape != (*shape[:-2], lengths[0], lengths[1] // 2 + 1):
        raise Missing(f"its result does not have the length {lengths}")
    height, width = shape[-2:]
    batch = math.prod(shape[:-2])
    sizes = writer.add("shape", np.array([batch, height, width, 1], np.int64))
    name = writer.node("Reshape", [writer.real(data), sizes], "Batches")
    if lengths[0] < height or lengths[1] < width:
        ranges = [writer.add("range", np.array(v, np.int64)) for v in ([0, 0], lengths, [1, 2])]
        name = writer.node("Slice", [name, *ranges], "Cut")
    missing = [max(length - size, 0) for length, size in zip(lengths, (height, width), strict=True)]
    if any(missing):
        pads = writer.add("pads", np.array([0, 0, 0, 0, 0, *missing, 0], np.int64))
        name = writer.node("Pad", [name, pads], "Pad")
    for axis, one_sided in ((2, 1), (1, 0)):
        if writer.opset >= OPSET_AXIS:
            inputs = [name, "", writer.add("axis", np.array(axis, np.int64))]
            name = writer.node("DFT", inputs, f"Axis{axis}", onesided=one_sided)
        else:
            name = writer.node("DFT", [name], f"Axis{axis}", axis=axis, onesided=one_sided)
    final = writer.add("shape", np.array([*writer.tensors[result].shape, 2], np.int64))
    writer.write_complex(result, writer.node("Reshape", [name, final]))


def _pairs(writer: Writer, operator: TfliteOperator) -> str:
    """Return the name of an operator's complex input.

    Returns:
        Name of a real tensor of shape (…, 2), whose last axis holds the real and the imaginary
        part.

    Raises:
        Missing: the input is not complex, or no operator of the file computes it.
    """
    data = input_index(operator, 0)
    if not writer.is_complex(data):
        raise Missing("its data are not complex numbers that an operator of the file computes")
    return writer.stored_name(data)


def _part(part: int, writer: Writer, operator: TfliteOperator) -> None:
    """Convert REAL or IMAG, which return the real or the imaginary part of complex numbers.

    Args:
        part: 0 for the real part, 1 for the imaginary part.
        writer: writer of the graph.
        operator: the operator.

    Raises:
        Missing: the input is not complex, or no operator of the file computes it.
    """
    place = writer.add("part", np.array(part, np.int64))
    pairs = _pairs(writer, operator)
    writer.write(output(operator), writer.node("Gather", [pairs, place], axis=-1))


def _magnitude(writer: Writer, operator: TfliteOperator) -> None:
    pairs, rank = _pairs(writer, operator), len(writer.tensors[output(operator)].shape)
    writer.write(output(operator), reduce_axes(writer, "ReduceL2", pairs, [rank], keep=False))


RULES: Mapping[str, Rule] = {
    "RFFT2D": _transform,
    "REAL": partial(_part, 0),
    "IMAG": partial(_part, 1),
    "COMPLEX_ABS": _magnitude,
}
"""Conversion rule of each operator of this module, by its name in the schema."""
