"""Converts operators that go over images in windows, reduce or resize them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, finish, given, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.products import pads, pair, shape_of
from tilewright.networks.tflite.writer import FILED, FIRST, OPSET, Missing, Writer


def _pool(op: str, writer: Writer, operator: TfliteOperator) -> None:
    data = given(operator, 0)
    _, height, width, _ = shape_of(writer, data, 4, "its data")
    kernel = pair(operator, "FilterHeight", "FilterWidth")
    strides = pair(operator, "StrideH", "StrideW")
    # ONNX, too, leaves the padding out of averages and maxima
    result = writer.node(
        op, [writer.real(data, FIRST)], kernel_shape=kernel, strides=strides,
        pads=pads(operator, (height, width), kernel, strides, (1, 1)),
    )  # fmt: skip
    finish(writer, operator, result, FIRST)


def _reduce(op: str, writer: Writer, operator: TfliteOperator) -> None:
    data = given(operator, 0)
    rank = len(writer.tensors[data].shape)
    axes = writer.integers(given(operator, 1), "its axes")
    if not axes or any(not -rank <= axis < rank for axis in axes):
        raise Missing(f"it reduces the axes {axes} of {rank} dimensions")
    axes, keep = sorted({axis % rank for axis in axes}), operator.integer("KeepDims")
    layout = FIRST if rank == 4 and (writer.layout(data) is FIRST or axes == [1, 2]) else FILED
    if layout is FIRST and not keep and axes not in ([1, 2], [1, 2, 3]):
        layout = FILED  # what is left would lie in another order
    moved = sorted(layout.axis(axis, rank) for axis in axes)
    real = writer.real(data, layout)
    if op == "ReduceMean" and layout is FIRST and moved == [2, 3] and keep:
        reduced = writer.node("GlobalAveragePool", [real])
    elif writer.opset > OPSET or op == "ReduceSum":
        sizes = writer.add("axes", np.array(moved, np.int64))
        reduced = writer.node(op, [real, sizes], keepdims=keep)
    else:
        reduced = writer.node(op, [real], axes=moved, keepdims=keep)
    finish(writer, operator, reduced, layout if keep else FILED)


def _resize(mode: str, writer: Writer, operator: TfliteOperator) -> None:
    data, result = given(operator, 0), output(operator)
    shape_of(writer, data, 4, "its data")
    wanted = FIRST.of(shape_of(writer, result, 4, "its results"))
    corners, centres = operator.integer("AlignCorners"), operator.integer("HalfPixelCenters")
    way = "align_corners" if corners else "half_pixel" if centres else "asymmetric"
    # the pixel that a corner or a centre is next to; in the oldest way, the one before
    nearest = {"nearest_mode": "round_prefer_ceil" if corners or centres else "floor"}
    resized = writer.node(
        "Resize",
        [writer.real(data, FIRST), "", "", writer.add("sizes", np.array(wanted, np.int64))],
        mode=mode, coordinate_transformation_mode=way, **(nearest if mode == "nearest" else {}),
    )  # fmt: skip
    finish(writer, operator, resized, FIRST)


RULES: Mapping[str, Rule] = {
    "AVERAGE_POOL_2D": partial(_pool, "AveragePool"),
    "MAX_POOL_2D": partial(_pool, "MaxPool"),
    "MEAN": partial(_reduce, "ReduceMean"),
    "SUM": partial(_reduce, "ReduceSum"),
    "REDUCE_MAX": partial(_reduce, "ReduceMax"),
    "REDUCE_MIN": partial(_reduce, "ReduceMin"),
    "RESIZE_BILINEAR": partial(_resize, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resize, "nearest"),
}
