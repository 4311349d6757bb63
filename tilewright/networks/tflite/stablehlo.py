"""Convert StableHLO operators.

Newer converters write StableHLO operators where TensorFlow Lite has no operator of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.networks.tflite import elementwise, logic, moves
from tilewright.networks.tflite.elementwise import Rule, input_index, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.logic import cast, write_as
from tilewright.networks.tflite.moves import move
from tilewright.networks.tflite.windows import dilate
from tilewright.networks.tflite.writer import FIRST, Missing, Writer, check_elements

COMPARISONS = ("Equal", "NotEqual", "GreaterOrEqual", "Greater", "LessOrEqual", "Less")
"""Names of comparisons, indexed by the value of the schema's enumeration
`StablehloComparisonDirection`. All names except for `NotEqual` are ONNX operators."""


def _numbers(operator: TfliteOperator, option: str, rank: int) -> Sequence[int]:
    """Return an option of an operator that is a vector with one number per dimension.

    Args:
        operator: the operator.
        option: name of the option.
        rank: number of dimensions.

    Raises:
        Missing: the option is absent or has another length.
    """
    values = operator.options.get(option, ())
    if not isinstance(values, tuple) or len(values) != rank:
        raise Missing(f"its {option} does not fit {rank} dimensions")
    return values


def _concatenate(writer: Writer, operator: TfliteOperator) -> None:
    names = [writer.real(input_index(operator, i)) for i in range(len(operator.inputs))]
    joined = writer.node("Concat", names, axis=operator.integer("Dimension"))
    writer.write(output(operator), joined)


def _transpose(writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    order = list(_numbers(operator, "Permutation", len(writer.tensors[data].shape)))
    move(
        writer, data, output(operator),
        lambda name: writer.node("Transpose", [name], perm=order),
    )  # fmt: skip


def _slice(writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    rank = len(writer.tensors[data].shape)
    ranges = [
        writer.add(name, np.array(values, np.int64))
        for name, values in (
            ("starts", _numbers(operator, "StartIndices", rank)),
            ("ends", _numbers(operator, "LimitIndices", rank)),
            ("axes", range(rank)),
            ("steps", _numbers(operator, "Strides", rank)),
        )
    ]
    move(writer, data, output(operator), lambda name: writer.node("Slice", [name, *ranges]))


def _pad(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_PAD to ONNX.

    Negative padding cuts off elements. Interior padding inserts fill values between neighbouring
    elements.
    """
    data = input_index(operator, 0)
    shape = writer.tensors[data].shape
    low, high, interior = (
        _numbers(operator, option, len(shape))
        for option in ("EdgePaddingLow", "EdgePaddingHigh", "InteriorPadding")
    )
    name, filling = writer.real(data), writer.real(input_index(operator, 1))
    if any(interior):
        dilations = [amount + 1 for amount in interior]
        pads = list(zip(low, high, strict=True))
        writer.write(output(operator), dilate(writer, name, shape, dilations, filling, pads))
        return
    amounts = writer.add("pads", np.array([*low, *high], np.int64))
    writer.write(output(operator), writer.node("Pad", [name, amounts, filling]))


def _broadcast(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_BROADCAST_IN_DIM to ONNX.

    The operator states the axis of the result for each axis of the data.
    """
    data, result = input_index(operator, 0), output(operator)
    own, wanted = writer.tensors[data].shape, writer.tensors[result].shape
    places = operator.options.get("BroadcastDimensions", ())
    if not isinstance(places, tuple) or len(places) != len(own) or list(places) != sorted(places):
        raise Missing("its dimensions do not fit its data")
    if any(not 0 <= place < len(wanted) for place in places):
        raise Missing(f"its result does not have the dimensions {list(places)}")
    shape = [1] * len(wanted)
    for place, size in zip(places, own, strict=True):
        shape[place] = size
    sizes, final = (writer.add("shape", np.array(item, np.int64)) for item in (shape, wanted))
    move(
        writer, data, result,
        lambda name: writer.node("Expand", [writer.node("Reshape", [name, sizes], "Shape"), final]),
    )  # fmt: skip


def _clamp(writer: Writer, operator: TfliteOperator) -> None:
    low, data, high = (writer.real(input_index(operator, i)) for i in range(3))
    writer.write(
        output(operator), writer.node("Min", [writer.node("Max", [data, low], "Max"), high])
    )


def _compare(writer: Writer, operator: TfliteOperator) -> None:
    number = operator.integer("ComparisonDirection")
    if not 0 <= number < len(COMPARISONS):
        raise Missing(f"its comparison {number} is not supported")
    kind = COMPARISONS[number]
    names = [writer.real(input_index(operator, i)) for i in (0, 1)]
    result = writer.node(kind.removeprefix("Not"), names, "Equal" * (kind == "NotEqual"))
    if kind == "NotEqual":
        result = writer.node("Not", [result])
    writer.write(output(operator), result)


def _iota(writer: Writer, operator: TfliteOperator) -> None:
    result = output(operator)
    shape, axis = writer.tensors[result].shape, operator.integer("IotaDimension")
    if not 0 <= axis < len(shape):
        raise Missing(f"its axis is {axis}, of {len(shape)} dimensions")
    check_elements(math.prod(shape))
    values = np.broadcast_to(np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1)),
                             shape)  # fmt: skip
    writer.fold(result, values.astype(writer.tensors[result].dtype))


def _tanh(writer: Writer, operator: TfliteOperator) -> None:
    writer.write(output(operator), writer.node("Tanh", [writer.real(input_index(operator, 0))]))


def _remainder(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_REMAINDER, whose result has the sign of the dividend."""
    names = [writer.real(input_index(operator, i)) for i in (0, 1)]
    writer.write(output(operator), writer.node("Mod", names, fmod=1))


def _shift_left(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_SHIFT_LEFT. A shift by at least the number of the type's bits gives 0.

    ONNX only shifts unsigned integers, so the numbers are converted to uint64.
    """
    places, result = [input_index(operator, i) for i in (0, 1)], output(operator)
    dtype = writer.tensors[result].dtype
    if np.dtype(dtype).kind not in "iu":
        raise Missing(f"it shifts numbers of type {dtype}")
    names = [
        logic.cast(writer, writer.stored_name(place), "uint64", f"Cast{i}")
        for i, place in enumerate(places)
    ]
    shifted = writer.node("BitShift", names, "Shift", direction="LEFT")
    shifted = logic.cast(writer, shifted, "int64", "Signed")  # onnxruntime's Where has no uint64
    bits = writer.add("bits", np.array(8 * np.dtype(dtype).itemsize, np.uint64))
    fits = writer.node("Less", [names[1], bits], "Fits")
    zero = writer.add("zero", np.zeros((), np.int64))
    kept = writer.node("Where", [fits, shifted, zero], "Kept")
    writer.write_stored(result, writer.node("Cast", [kept], to=logic.element_type(dtype)))


def _cube_root(writer: Writer, operator: TfliteOperator) -> None:
    data = writer.real(input_index(operator, 0))
    third = writer.add("third", np.array(1 / 3, writer.tensors[input_index(operator, 0)].dtype))
    size = writer.node("Pow", [writer.node("Abs", [data], "Abs"), third], "Pow")
    sign = writer.node("Sign", [data], "Sign")
    writer.write(output(operator), writer.node("Mul", [sign, size]))


ELEMENTWISE_RULES: Mapping[str, Rule] = {
    **{
        f"STABLEHLO_{kind}": elementwise.RULES[known]
        for kind, known in {
            "LOGISTIC": "LOGISTIC", "ADD": "ADD", "DIVIDE": "DIV", "MULTIPLY": "MUL",
            "MAXIMUM": "MAXIMUM", "MINIMUM": "MINIMUM", "SUBTRACT": "SUB", "ABS": "ABS",
            "COSINE": "COS", "EXPONENTIAL": "EXP", "FLOOR": "FLOOR", "LOG": "LOG",
            "NEGATE": "NEG", "POWER": "POW", "RSQRT": "RSQRT",
        }.items()
    },
    "STABLEHLO_AND": logic.RULES["LOGICAL_AND"],
    "STABLEHLO_OR": logic.RULES["LOGICAL_OR"],
    "STABLEHLO_SELECT": logic.RULES["SELECT_V2"],
    "STABLEHLO_CONVERT": logic.RULES["CAST"],
    "STABLEHLO_RESHAPE": moves.RULES["RESHAPE"],
    "STABLEHLO_CONCATENATE": _concatenate,
    "STABLEHLO_TRANSPOSE": _transpose,
    "STABLEHLO_SLICE": _slice,
    "STABLEHLO_PAD": _pad,
    "STABLEHLO_BROADCAST_IN_DIM": _broadcast,
    "STABLEHLO_CLAMP": _clamp,
    "STABLEHLO_COMPARE": _compare,
    "STABLEHLO_IOTA": _iota,
    "STABLEHLO_REMAINDER": _remainder,
    "STABLEHLO_SHIFT_LEFT": _shift_left,
    "STABLEHLO_CBRT": _cube_root,
    "STABLEHLO_TANH": _tanh,
}  # fmt: skip


MULTIPLIED = frozenset(("float32", "float64", "int32", "int64", "uint32", "uint64"))
"""Element types that onnxruntime supports for MatMul."""


def _check_axes(axes: Sequence[int], rank: int) -> None:
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        raise Missing(f"it lists the axes {list(axes)} of {rank} dimensions")


def _multiply(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_DOT_GENERAL, a matrix product with batch, free and contracted axes."""
    result = output(operator)
    computed = writer.computed_type(result)
    if computed not in MULTIPLIED:
        computed = "float32" if computed.startswith("float") else "int64"
    names, free = [], []
    batch: list[int] = []
    for i, side in enumerate(("Lhs", "Rhs")):
        place = input_index(operator, i)
        shape = writer.tensors[place].shape
        batched = operator.integers(f"{side}BatchingDimensions")
        contracted = operator.integers(f"{side}ContractingDimensions")
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
    """Convert STABLEHLO_CONVOLUTION to ONNX.

    If the operator dilates the data or has negative padding, the data are dilated and cut before
    the convolution.
    """
    data, weight, result = input_index(operator, 0), input_index(operator, 1), output(operator)
    rank = len(writer.tensors[data].shape)
    orders = [
        [operator.integer(f"{what}Dimension") for what in ends] + operator.integers(spatial)
        for ends, spatial in (
            (("InputBatch", "InputFeature"), "InputSpatialDimensions"),
            (("KernelOutputFeature", "KernelInputFeature"), "KernelSpatialDimensions"),
            (("OutputBatch", "OutputFeature"), "OutputSpatialDimensions"),
        )
    ]
    if any(sorted(order) != list(range(rank)) for order in orders) or rank < 3:
        raise Missing(f"its dimensions {orders} do not match {rank}-dimensional data")
    if operator.integer("BatchGroupCount", 1) != 1:
        raise Missing("it has batch groups")
    count = rank - 2
    strides, base, dilations = (
        operator.integers(option) or [1] * count
        for option in ("WindowStrides", "LhsDilation", "RhsDilation")
    )
    pads = operator.integers("Padding") or [0] * (2 * count)
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


PRODUCT_RULES: Mapping[str, Rule] = {
    "STABLEHLO_DOT_GENERAL": _multiply,
    "STABLEHLO_CONVOLUTION": _convolve,
}

RULES: Mapping[str, Rule] = {**ELEMENTWISE_RULES, **PRODUCT_RULES}
