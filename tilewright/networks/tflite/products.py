"""Convert operators that multiply: 2-D and 3-D convolutions, dense layers and matrix products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, finish, input_index, output
from tilewright.networks.tflite.file import Shape, TfliteOperator
from tilewright.networks.tflite.writer import FILED, FIRST, Missing, Writer


def pads(
    operator: TfliteOperator, size: Shape, kernel: Shape, strides: Shape, steps: Shape
) -> list[int]:
    """Return the padding (top, left, bottom, right) of a convolution or pool.

    If the padding of an axis is odd in SAME mode, the additional row or column is at the bottom or
    right.

    Args:
        operator: the operator, whose option `Padding` is SAME or VALID.
        size: height and width of the image.
        kernel: height and width of the window.
        strides: vertical and horizontal stride.
        steps: vertical and horizontal dilation.
    """
    if operator.integer("Padding"):  # 1 stands for VALID
        return [0, 0, 0, 0]
    begins, ends = [], []
    for length, taps, stride, step in zip(size, kernel, strides, steps, strict=True):
        reach = step * (taps - 1) + 1
        total = max((math.ceil(length / stride) - 1) * stride + reach - length, 0)
        begins.append(total // 2)
        ends.append(total - total // 2)
    return begins + ends


def pair(operator: TfliteOperator, height: str, width: str) -> Shape:
    """Return two integer options of an operator, such as the vertical and the horizontal stride.

    Args:
        operator: the operator.
        height: name of the vertical option.
        width: name of the horizontal option.

    Raises:
        Missing: a value is below 1.
    """
    sizes = operator.integer(height, 1), operator.integer(width, 1)
    if min(sizes) < 1:
        raise Missing(f"its options {height} and {width} are {sizes[0]} and {sizes[1]}")
    return sizes


def shape_of(writer: Writer, place: int, rank: int, what: str) -> Shape:
    """Return the shape of a tensor, after checking that the number of its dimensions is `rank`.

    Args:
        writer: writer of the graph.
        place: tensor index.
        rank: expected number of dimensions.
        what: description of the tensor, with which an error message begins.

    Raises:
        Missing: the number of dimensions is different, or a size is 0.
    """
    shape = writer.tensors[place].shape
    if len(shape) != rank or 0 in shape:
        raise Missing(f"{what} have the shape {list(shape)} instead of {rank} dimensions")
    return shape


def _conv(writer: Writer, operator: TfliteOperator) -> None:
    data, weight = input_index(operator, 0), input_index(operator, 1)
    _, height, width, channels = shape_of(writer, data, 4, "its data")
    first, *kernel, last = shape_of(writer, weight, 4, "its weights")
    if operator.kind == "CONV_2D":
        order, axis, groups = (0, 3, 1, 2), {0: 0, 3: 1}, channels // last
        fits = groups * last == channels and first % max(groups, 1) == 0
    else:
        order, axis, groups = (3, 0, 1, 2), {3: 0}, channels
        fits = first == 1 and last % channels == 0
    if not fits:
        raise Missing(f"its weights do not fit {channels} channels of data")
    strides = pair(operator, "StrideH", "StrideW")
    dilations = pair(operator, "DilationHFactor", "DilationWFactor")
    size = (kernel[0], kernel[1])
    inputs = [
        writer.real(data, FIRST),
        turned_weights(writer, weight, order, _channel_axis(writer, weight, axis)),
        *bias(writer, operator, 2),
    ]
    result = writer.node(
        "Conv", inputs, kernel_shape=kernel, strides=strides, dilations=dilations, group=groups,
        pads=pads(operator, (height, width), size, strides, dilations),
    )  # fmt: skip
    finish(writer, operator, result, FIRST)


def turned_weights(writer: Writer, weight: int, order: Sequence[int], axis: int = 0) -> str:
    """Return the name of weights whose axes are permuted to ONNX's order.

    Args:
        writer: writer of the graph.
        weight: tensor index of the weights, which may be constant or computed.
        order: permutation of the axes.
        axis: axis of per-channel scales after the permutation.
    """
    if writer.is_constant(weight):
        values = writer.constant(weight, "its weights").transpose(order)
        return writer.weight(weight, values, axis, "weight")
    return writer.node("Transpose", [writer.real(weight)], "weight", perm=list(order))


def _transposed_conv(writer: Writer, operator: TfliteOperator) -> None:
    weight, data = input_index(operator, 1), input_index(operator, 2)
    sizes = shape_of(writer, data, 4, "its data")[1:3]
    outputs, *kernel, _ = shape_of(writer, weight, 4, "its weights")
    wanted = shape_of(writer, output(operator), 4, "its results")
    strides = pair(operator, "StrideH", "StrideW")
    begins, ends, extra = [], [], []
    for i in (0, 1):
        full = strides[i] * (sizes[i] - 1) + kernel[i]
        # SAME crops the excess on both sides, VALID crops nothing.
        total = 0 if operator.integer("Padding") else max(full - wanted[i + 1], 0)
        begins.append(total // 2)
        ends.append(total - total // 2)
        extra.append(wanted[i + 1] - full + total)
    if any(not 0 <= rest < max(strides[i], 1) for i, rest in enumerate(extra)):
        raise Missing(f"the size of its result, {list(wanted)}, does not follow from its strides")
    axis = _channel_axis(writer, weight, {0: 1, 3: 0})
    inputs = [
        writer.real(data, FIRST), turned_weights(writer, weight, (3, 0, 1, 2), axis),
        *bias(writer, operator, 3, 2),
    ]  # fmt: skip
    result = writer.node(
        "ConvTranspose", inputs, kernel_shape=kernel, strides=strides, pads=begins + ends,
        output_padding=extra,
    )  # fmt: skip
    if wanted[3] != outputs:
        raise Missing(f"its weights do not fit {wanted[3]} channels of results")
    finish(writer, operator, result, FIRST)


def _dense(writer: Writer, operator: TfliteOperator) -> None:
    data, weight, result = input_index(operator, 0), input_index(operator, 1), output(operator)
    if operator.integer("WeightsFormat"):
        raise Missing("its weights are shuffled for one kind of processor")
    units, inputs = shape_of(writer, weight, 2, "its weights")
    shape = writer.tensors[data].shape
    if math.prod(shape) % inputs or not shape:
        raise Missing(f"its weights do not fit data of shape {list(shape)}")
    rows = math.prod(shape) // inputs
    real = as_shape(writer, data, (rows, inputs), suffix="Flatten")
    if writer.is_constant(weight):
        values = writer.constant(weight, "its weights")
        axis = _channel_axis(writer, weight, {0: 0, 1: 1})
        matrix = writer.weight(weight, values, axis, "weight")
    else:
        matrix = writer.real(weight)
    product = writer.node("Gemm", [real, matrix, *bias(writer, operator, 2)], transB=1)
    wanted = writer.tensors[result].shape
    if wanted != (rows, units):
        if math.prod(wanted) != rows * units:
            raise Missing(f"its result has the shape {list(wanted)}, not {[rows, units]}")
        sizes = writer.add("shape", np.array(wanted, np.int64))
        product = writer.node("Reshape", [product, sizes], "Reshape")
    finish(writer, operator, product)


def as_shape(writer: Writer, place: int, shape: Shape, suffix: str) -> str:
    """Return the name of a tensor's dequantised values in another shape.

    The elements keep the order that they have in the file.

    Args:
        writer: writer of the graph.
        place: tensor index.
        shape: the new shape.
        suffix: suffix of the name of the Reshape node.
    """
    tensor_shape = writer.tensors[place].shape
    if tensor_shape == shape:
        return writer.real(place)
    layout = writer.layout(place) if is_in_order(tensor_shape) else FILED
    sizes = writer.add("shape", np.array(shape, np.int64))
    return writer.node("Reshape", [writer.real(place, layout), sizes], suffix)


def is_in_order(shape: Shape) -> bool:
    """Return whether an image's elements have the same order in both layouts.

    This is the case if the image has one channel or one pixel.

    Args:
        shape: shape (n, h, w, c) of the image.
    """
    return len(shape) == 4 and (shape[3] == 1 or shape[1] * shape[2] == 1)


def _matrix_product(writer: Writer, operator: TfliteOperator) -> None:
    operands = []
    for i, option in enumerate(("AdjX", "AdjY")):
        place = input_index(operator, i)
        real, rank = writer.real(place), len(writer.tensors[place].shape)
        if rank < 2:
            raise Missing(f"its operands have {rank} dimensions")
        if operator.integer(option):
            order = [*range(rank - 2), rank - 1, rank - 2]
            real = writer.node("Transpose", [real], "Transpose", perm=order)
        operands.append(real)
    finish(writer, operator, writer.node("MatMul", operands))


def _channel_axis(writer: Writer, place: int, moved: Mapping[int, int]) -> int:
    """Return the axis of per-channel scales after the weights are permuted to ONNX's order.

    Args:
        writer: writer of the graph.
        place: tensor index of the weights.
        moved: axis in ONNX's order, by axis in the file. Other axes are not supported.
    """
    quantisation = writer.tensors[place].quantisation
    if quantisation is None or quantisation.scales.size == 1:
        return 0
    if quantisation.axis not in moved:
        raise Missing(f"its weights have scales along the axis {quantisation.axis}")
    return moved[quantisation.axis]


def bias(writer: Writer, operator: TfliteOperator, place: int, data: int = 0) -> list[str]:
    """Return the bias of an operator as a list with one name, or an empty list if it has no bias.

    An integer bias without a scale has the scale of the accumulators, which is the scale of the
    data times the scale of the weights.

    Args:
        writer: writer of the graph.
        operator: the operator.
        place: input position of the bias.
        data: input position of the data.

    Raises:
        Missing: an integer bias has no scale, and the data or the weights have none either.
    """
    at = operator.inputs[place] if place < len(operator.inputs) else -1
    if at < 0:
        return []
    tensor = writer.tensors[at]
    if not writer.is_constant(at):
        return [writer.real(at)]
    values = writer.constant(at, "its bias")
    if tensor.dtype.startswith("int") and (tensor.quantisation is None or tensor.dtype == "int64"):
        scales = [writer.tensors[input_index(operator, i)].quantisation for i in (data, 1)]
        if scales[0] is None or scales[1] is None:
            raise Missing("its bias contains integers without a scale")
        step = scales[0].scales.astype(np.float64) * scales[1].scales
        return [writer.weight(at, (values * step).astype(np.float32), 0, "bias")]
    return [writer.weight(at, values, 0, "bias")]


IMAGE_RULES: Mapping[str, Rule] = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _conv,
    "TRANSPOSE_CONV": _transposed_conv,
    "FULLY_CONNECTED": _dense,
    "BATCH_MATMUL": _matrix_product,
}
"""Conversion rules of image operators and matrix products, by the operator's name in the schema."""


SIDES = "DHW"
"""Letters that stand for depth, height and width in the names of options."""
CHANNELS_FIRST, CHANNELS_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def _conv_of_volume(writer: Writer, operator: TfliteOperator) -> None:
    data, weight = input_index(operator, 0), input_index(operator, 1)
    sizes = shape_of(writer, data, 5, "its data")
    *kernel, inputs, _ = shape_of(writer, weight, 5, "its weights")
    if sizes[4] != inputs:
        raise Missing(f"its weights have {inputs} channels, but its data have {sizes[4]}")
    strides, dilations = _sides(operator, "Stride{}"), _sides(operator, "Dilation{}Factor")
    begins, ends = [], []
    for size, taps, stride, dilation in zip(sizes[1:4], kernel, strides, dilations, strict=True):
        total = 0
        if not operator.integer("Padding"):  # 1 stands for VALID
            reach = dilation * (taps - 1) + 1
            total = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
        begins.append(total // 2)
        ends.append(total - total // 2)
    turned = writer.node("Transpose", [writer.real(data)], "First", perm=list(CHANNELS_FIRST))
    weights = turned_weights(writer, weight, (4, 3, 0, 1, 2))
    summed = writer.node(
        "Conv", [turned, weights, *bias(writer, operator, 2)],
        "Conv", kernel_shape=kernel, strides=strides, dilations=dilations, pads=begins + ends,
    )  # fmt: skip
    finish(writer, operator, writer.node("Transpose", [summed], perm=list(CHANNELS_LAST)))


def _transposed_conv_of_volume(writer: Writer, operator: TfliteOperator) -> None:
    weight, data = input_index(operator, 1), input_index(operator, 2)
    sizes = shape_of(writer, data, 5, "its data")
    *kernel, outputs, _ = shape_of(writer, weight, 5, "its weights")
    wanted = shape_of(writer, output(operator), 5, "its results")
    strides, dilations = _sides(operator, "Stride{}"), _sides(operator, "Dilation{}Factor")
    begins, ends, extra = [], [], []
    for i in range(3):
        full = strides[i] * (sizes[i + 1] - 1) + dilations[i] * (kernel[i] - 1) + 1
        total = 0 if operator.integer("Padding") else max(full - wanted[i + 1], 0)
        begins.append(total // 2)
        ends.append(total - total // 2)
        extra.append(wanted[i + 1] - full + total)
    if wanted[4] != outputs or any(
        not 0 <= rest < stride for rest, stride in zip(extra, strides, strict=True)
    ):
        raise Missing(f"the size of its result, {list(wanted)}, does not follow from its strides")
    turned = writer.node("Transpose", [writer.real(data)], "First", perm=list(CHANNELS_FIRST))
    weights = turned_weights(writer, weight, (4, 3, 0, 1, 2))
    summed = writer.node(
        "ConvTranspose",
        [turned, weights, *bias(writer, operator, 3, 2)],
        "ConvTranspose", kernel_shape=kernel, strides=strides, dilations=dilations,
        pads=begins + ends, output_padding=extra,
    )  # fmt: skip
    finish(writer, operator, writer.node("Transpose", [summed], perm=list(CHANNELS_LAST)))


def _sides(operator: TfliteOperator, name: str) -> Shape:
    """Return an option with one value per spatial dimension.

    Args:
        operator: the operator.
        name: name of the option, with "{}" in place of the letter of the dimension.

    Raises:
        Missing: a value is below 1.
    """
    sizes = tuple(operator.integer(name.format(side), 1) for side in SIDES)
    if min(sizes) < 1:
        raise Missing(f"its option {name.format('')} is {list(sizes)}")
    return sizes


VOLUME_RULES: Mapping[str, Rule] = {
    "CONV_3D": _conv_of_volume,
    "CONV_3D_TRANSPOSE": _transposed_conv_of_volume,
}
"""Conversion rules of 3-D convolutions, by the operator's name in the schema."""

RULES: Mapping[str, Rule] = {**IMAGE_RULES, **VOLUME_RULES}
"""Conversion rule of each operator of this module, by its name in the schema."""
