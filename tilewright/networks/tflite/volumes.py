"""Converts convolutions of volumes, which files have as (n, depth, h, w, c)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.networks.tflite.elementwise import Rule, finish, given, output
from tilewright.networks.tflite.file import Shape, TfliteOperator
from tilewright.networks.tflite.products import bias, shape_of, turned_weights
from tilewright.networks.tflite.writer import Missing, Writer

SIDES = "DHW"
CHANNELS_FIRST, CHANNELS_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def _conv(writer: Writer, operator: TfliteOperator) -> None:
    data, weight = given(operator, 0), given(operator, 1)
    sizes = shape_of(writer, data, 5, "its data")
    *kernel, inputs, _ = shape_of(writer, weight, 5, "its weights")
    if sizes[4] != inputs:
        raise Missing(f"its weights are of {inputs} channels, its data have {sizes[4]}")
    strides, dilations = _sides(operator, "Stride{}"), _sides(operator, "Dilation{}Factor")
    begins, ends = [], []
    for size, taps, stride, dilation in zip(sizes[1:4], kernel, strides, dilations, strict=True):
        total = 0
        if not operator.integer("Padding"):  # 1 is VALID
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


def _transposed_conv(writer: Writer, operator: TfliteOperator) -> None:
    weight, data = given(operator, 1), given(operator, 2)
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
        raise Missing(f"its result's size {list(wanted)} does not follow from its strides")
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
    sizes = tuple(operator.integer(name.format(side), 1) for side in SIDES)
    if min(sizes) < 1:
        raise Missing(f"its {name.format('')} is {list(sizes)}")
    return sizes


RULES: Mapping[str, Rule] = {"CONV_3D": _conv, "CONV_3D_TRANSPOSE": _transposed_conv}
