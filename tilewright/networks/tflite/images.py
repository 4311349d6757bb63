"""Converts operators that go over images in windows, reduce or resize them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    if any(not -rank <= axis < rank for axis in axes):
        raise Missing(f"it reduces the axes {axes} of {rank} dimensions")
    if not axes:
        finish(writer, operator, writer.node("Identity", [writer.real(data)]))
        return
    axes, keep = sorted({axis % rank for axis in axes}), operator.integer("KeepDims")
    layout = FIRST if rank == 4 and (writer.layout(data) is FIRST or axes == [1, 2]) else FILED
    if layout is FIRST and not keep and axes not in ([1, 2], [1, 2, 3]):
        layout = FILED  # what is left would lie in another order
    moved = sorted(layout.axis(axis, rank) for axis in axes)
    real = writer.real(data, layout)
    if operator.kind in ("REDUCE_ANY", "REDUCE_ALL"):
        real = writer.node("Cast", [real], "CastData", to=6)  # int32, ONNX's number of it
    if op == "ReduceMean" and layout is FIRST and moved == [2, 3] and keep:
        reduced = writer.node("GlobalAveragePool", [real])
    else:
        reduced = reduce_axes(writer, op, real, moved, keep=bool(keep))
    if operator.kind in ("REDUCE_ANY", "REDUCE_ALL"):
        if 0 in writer.tensors[data].shape:  # the maximum of nothing is the least integer
            zero = writer.add("zero", np.array(0, np.int32))
            reduced = writer.node("Greater", [reduced, zero], "IsAny")
        else:
            reduced = writer.node("Cast", [reduced], "CastResult", to=9)  # bool
    finish(writer, operator, reduced, layout if keep else FILED)


def reduce_axes(
    writer: Writer, op: str, real: str, axes: Sequence[int], *, keep: bool, suffix: str = ""
) -> str:
    """Add a reduction over axes, an attribute of it or an input by opset; returns its result."""
    if writer.opset > OPSET or op == "ReduceSum":
        sizes = writer.add("axes", np.array(axes, np.int64))
        return writer.node(op, [real, sizes], suffix, keepdims=int(keep))
    return writer.node(op, [real], suffix, axes=list(axes), keepdims=int(keep))


def _l2_pool(writer: Writer, operator: TfliteOperator) -> None:
    """The root of the mean of squares; ONNX's LpPool is one of sums."""
    data = given(operator, 0)
    _, height, width, _ = shape_of(writer, data, 4, "its data")
    kernel = pair(operator, "FilterHeight", "FilterWidth")
    strides = pair(operator, "StrideH", "StrideW")
    real = writer.real(data, FIRST)
    mean = writer.node(
        "AveragePool", [writer.node("Mul", [real, real], "Mul")], "AveragePool",
        kernel_shape=kernel, strides=strides,
        pads=pads(operator, (height, width), kernel, strides, (1, 1)),
    )  # fmt: skip
    finish(writer, operator, writer.node("Sqrt", [mean]), FIRST)


def _l2_normalise(writer: Writer, operator: TfliteOperator) -> None:
    """Along the last axis, by a norm of at least 1e-6 (TensorFlow Lite's L2Normalization)."""
    data = given(operator, 0)
    rank = len(writer.tensors[data].shape)
    real = writer.real(data)
    squares = writer.node("Mul", [real, real], "Mul")
    total = reduce_axes(writer, "ReduceSum", squares, [rank - 1], keep=True, suffix="ReduceSum")
    norm = writer.node("Sqrt", [total], "Sqrt")
    least = writer.node("Max", [norm, writer.add("least", np.float32(1e-6))], "Max")
    finish(writer, operator, writer.node("Div", [real, least]))


def _local_response(writer: Writer, operator: TfliteOperator) -> None:
    """ONNX divides alpha by the size of the window."""
    data = given(operator, 0)
    shape_of(writer, data, 4, "its data")
    size = 2 * operator.integer("Radius") + 1
    normalised = writer.node(
        "LRN", [writer.real(data, FIRST)], size=size, bias=operator.number("Bias", 0.0),
        alpha=operator.number("Alpha", 0.0) * size, beta=operator.number("Beta", 0.0),
    )  # fmt: skip
    finish(writer, operator, normalised, FIRST)


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
    "REDUCE_PROD": partial(_reduce, "ReduceProd"),
    "REDUCE_ANY": partial(_reduce, "ReduceMax"),
    "REDUCE_ALL": partial(_reduce, "ReduceMin"),
    "L2_POOL_2D": _l2_pool,
    "L2_NORMALIZATION": _l2_normalise,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "RESIZE_BILINEAR": partial(_resize, "linear"),
    "RESIZE_NEAREST_NEIGHBOR": partial(_resize, "nearest"),
}
