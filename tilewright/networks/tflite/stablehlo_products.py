"""Converts StableHLO's products, whose dimensions may have any order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, given, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.logic import cast, write_as
from tilewright.networks.tflite.windows import dilate
from tilewright.networks.tflite.writer import FIRST, Missing, Writer

MULTIPLIED = frozenset(("float32", "float64", "int32", "int64", "uint32", "uint64"))
"""Element types that onnxruntime's MatMul takes."""


def _vector(operator: TfliteOperator, option: str) -> list[int]:
    values = operator.options.get(option, ())
    return [int(value) for value in values] if isinstance(values, tuple) else []


def _check_axes(axes: Sequence[int], rank: int) -> None:
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        raise Missing(f"it names the axes {list(axes)} of {rank} dimensions")


def _multiply(writer: Writer, operator: TfliteOperator) -> None:
    """STABLEHLO_DOT_GENERAL: a product of matrices of (batch, free, contracted) dimensions."""
    result = output(operator)
    computed = writer.computed_type(result)
    if computed not in MULTIPLIED:
        computed = "float32" if computed.startswith("float") else "int64"
    names, free = [], []
    batch: list[int] = []
    for i, side in enumerate(("Lhs", "Rhs")):
        place = given(operator, i)
        shape = writer.tensors[place].shape
        batched = _vector(operator, f"{side}BatchingDimensions")
        contracted = _vector(operator, f"{side}ContractingDimensions")
        _check_axes([*batched, *contracted], len(shape))
        rest = [axis for axis in range(len(shape)) if axis not in (*batched, *contracted)]
        order = [*batched, *rest, *contracted] if i == 0 else [*batched, *contracted, *rest]
        batch = [shape[axis] for axis in batched]
        sizes = [math.prod(shape[axis] for axis in axes) for axes in (rest, contracted)]
        free.append([shape[axis] for axis in rest])
        name = writer.real(place)
        if writer.computed_type(place) != computed:
            name = cast(writer, name, computed, f"{side}Cast")
        if order != list(range(len(shape))):
            name = writer.node("Transpose", [name], f"{side}Transpose", perm=order)
        matrix = writer.add("shape", np.array([*batch, *(sizes if i == 0 else sizes[::-1])]))
        names.append(writer.node("Reshape", [name, matrix], f"{side}Matrix"))
    product = writer.node("MatMul", names, "MatMul")
    final = writer.add("shape", np.array([*batch, *free[0], *free[1]], np.int64))
    write_as(writer, result, writer.node("Reshape", [product, final]), computed)


def _convolve(writer: Writer, operator: TfliteOperator) -> None:
    """STABLEHLO_CONVOLUTION: data that are dilated, or padded by less than nothing, are made so
    before the convolution."""
    data, weight, result = given(operator, 0), given(operator, 1), output(operator)
    rank = len(writer.tensors[data].shape)
    orders = [
        [operator.integer(f"{what}Dimension") for what in ends] + _vector(operator, spatial)
        for ends, spatial in (
            (("InputBatch", "InputFeature"), "InputSpatialDimensions"),
            (("KernelOutputFeature", "KernelInputFeature"), "KernelSpatialDimensions"),
            (("OutputBatch", "OutputFeature"), "OutputSpatialDimensions"),
        )
    ]
    if any(sorted(order) != list(range(rank)) for order in orders) or rank < 3:
        raise Missing(f"its dimensions {orders} are not those of {rank}-dimensional data")
    if operator.integer("BatchGroupCount", 1) != 1:
        raise Missing("it has groups of batches")
    count = rank - 2
    strides, base, dilations = (
        _vector(operator, option) or [1] * count
        for option in ("WindowStrides", "LhsDilation", "RhsDilation")
    )
    pads = _vector(operator, "Padding") or [0] * (2 * count)
    reversal = operator.options.get("WindowReversal", ())
    reversed_axes = [i for i, flag in enumerate(reversal) if flag] if isinstance(
        reversal, tuple
    ) else []  # fmt: skip
    if not len(strides) == len(base) == len(dilations) == count or len(pads) != 2 * count:
        raise Missing(f"its windows do not fit {count} dimensions")

    is_image = orders[0] == [0, 3, 1, 2] and not writer.is_constant(data)
    name = (
        writer.real(data, FIRST) if is_image
        else writer.node("Transpose", [writer.real(data)], "First", perm=orders[0])
    )  # fmt: skip
    shape = tuple(writer.tensors[data].shape[axis] for axis in orders[0])
    ends = [(pads[2 * i], pads[2 * i + 1]) for i in range(count)]
    if base != [1] * count or min(pads) < 0:
        zero = writer.add("zero", np.float32(0))
        name = dilate(writer, name, shape, [1, 1, *base], zero, [(0, 0), (0, 0), *ends])
        ends = [(0, 0)] * count
    kernel = writer.tensors[weight].shape
    if writer.is_constant(weight):
        values = writer.constant(weight, "its weights").transpose(orders[1])
        if reversed_axes:
            values = np.flip(values, tuple(axis + 2 for axis in reversed_axes))
        own = writer.tensors[weight].quantisation
        axis = 0 if own is None else orders[1].index(own.axis)
        weights = writer.weight(weight, values, axis, "weight")
    else:
        weights = writer.node("Transpose", [writer.real(weight)], "Weights", perm=orders[1])
        if reversed_axes:
            raise Missing("it reverses weights that are computed")
    summed = writer.node(
        "Conv", [name, weights], "Conv", kernel_shape=[kernel[axis] for axis in orders[1][2:]],
        strides=strides, dilations=dilations, group=operator.integer("FeatureGroupCount", 1),
        pads=[low for low, _ in ends] + [high for _, high in ends],
    )  # fmt: skip
    if orders[2] == [0, 3, 1, 2]:
        writer.write(result, summed, FIRST)
        return
    back = [int(axis) for axis in np.argsort(orders[2])]
    writer.write(result, writer.node("Transpose", [summed], perm=back))


RULES: Mapping[str, Rule] = {
    "STABLEHLO_DOT_GENERAL": _multiply,
    "STABLEHLO_CONVOLUTION": _convolve,
}
