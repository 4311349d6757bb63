"""Convert comparisons, logic, selections, casts, floor division, shifts and the arc tangent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from onnx import helper

from tilewright.networks.tflite.elementwise import (
    Rule,
    common_layout,
    finish,
    input_index,
    operand,
    output,
)
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.writer import FILED, Missing, TfliteLayout, Writer


def cast(writer: Writer, name: str, dtype: str, suffix: str = "Cast") -> str:
    """Add a Cast and return the name of its result.

    Args:
        writer: writer of the graph.
        name: name of the tensor to convert.
        dtype: NumPy type of the result.
        suffix: suffix of the node's name.
    """
    return writer.node("Cast", [name], suffix, to=element_type(dtype))


def element_type(dtype: str) -> int:
    """Return the number of the ONNX element type for a NumPy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def write_as(
    writer: Writer, place: int, result: str, dtype: str, layout: TfliteLayout = FILED
) -> None:
    """Write a result to a tensor, after casting it to the tensor's type if necessary.

    Args:
        writer: writer of the graph.
        place: tensor index of the output.
        result: name of the result.
        dtype: NumPy type of the result.
        layout: layout of the result.
    """
    target = writer.tensors[place]
    if target.quantisation is None and target.dtype != dtype:
        result = cast(writer, result, target.dtype, "CastResult")
    writer.write(place, result, layout)


def _compare(op: str, writer: Writer, operator: TfliteOperator) -> None:
    first, second = (writer.tensors[input_index(operator, i)] for i in (0, 1))
    scale = first.quantisation
    if first.dtype == "int16" and scale is not None and not scale.same_as(second.quantisation):
        raise Missing("it compares int16 tensors with different scales, which the runtime ignores")
    layout = common_layout(writer, operator)
    operands = [operand(writer, input_index(operator, i), layout) for i in (0, 1)]
    negated = op.startswith("Not")
    result = writer.node(op.removeprefix("Not"), operands, "Equal" * negated)
    if negated:
        result = writer.node("Not", [result])
    writer.write(output(operator), result, layout)


def _logical(op: str, writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    count = 1 if op == "Not" else 2
    places = [input_index(operator, i) for i in range(count)]
    dtypes = {writer.tensors[place].dtype for place in places}
    if dtypes != {"bool"}:
        raise Missing(f"it computes with {', '.join(sorted(dtypes))}, but only bool is supported")
    operands = [operand(writer, place, layout) for place in places]
    writer.write(output(operator), writer.node(op, operands), layout)


def _select(writer: Writer, operator: TfliteOperator) -> None:
    """Convert SELECT or SELECT_V2 to ONNX.

    The condition of SELECT may be a vector with one value per row.
    """
    condition, *choices = (input_index(operator, i) for i in range(3))
    layout = common_layout(writer, operator)
    condition_shape = writer.tensors[condition].shape
    shape = writer.tensors[choices[0]].shape
    by_row = operator.kind == "SELECT" and len(condition_shape) == 1 and len(shape) > 1
    if by_row:
        layout = FILED
        sizes = writer.add("shape", np.array([*condition_shape, *[1] * (len(shape) - 1)], np.int64))
        decided = writer.node("Reshape", [writer.real(condition), sizes], "Condition")
    else:
        decided = operand(writer, condition, layout)
    first, second = (operand(writer, place, layout) for place in choices)
    # onnxruntime's Where does not support bool.
    if writer.computed_type(output(operator)) == "bool":
        taken = writer.node("And", [decided, first], "Taken")
        left = writer.node("And", [writer.node("Not", [decided], "Not"), second], "Left")
        writer.write(output(operator), writer.node("Or", [taken, left]), layout)
        return
    writer.write(output(operator), writer.node("Where", [decided, first, second]), layout)


def _cast(writer: Writer, operator: TfliteOperator) -> None:
    place, result = input_index(operator, 0), output(operator)
    layout = writer.layout(place)
    stored = writer.stored_name(place, layout)
    target = element_type(writer.tensors[result].dtype)
    writer.write_stored(result, writer.node("Cast", [stored], to=target), layout)


def _floor_div(writer: Writer, operator: TfliteOperator) -> None:
    """Convert FLOOR_DIV to ONNX.

    ONNX rounds the quotient of integers towards 0. If there is a remainder and exactly one operand
    is negative, this quotient is one larger than the rounded-down quotient.
    """
    layout = common_layout(writer, operator)
    a, b = (operand(writer, input_index(operator, i), layout) for i in (0, 1))
    dtype = writer.computed_type(input_index(operator, 0))
    if not _in_integers(writer, operator):
        result = writer.node("Floor", [writer.node("Div", [a, b], "Div")])
        writer.write(output(operator), result, layout)
        return
    zero = writer.add("zero", np.zeros((), dtype))
    signs = [writer.node("Less", [name, zero], "Less") for name in (a, b)]
    exact = writer.node("Equal", [writer.node("Mod", [a, b], "Mod"), zero], "Exact")
    lower = writer.node(
        "And", [writer.node("Xor", signs, "Xor"), writer.node("Not", [exact], "Not")], "Lower"
    )
    one = cast(writer, lower, dtype, "One")
    result = writer.node("Sub", [writer.node("Div", [a, b], "Div"), one])
    writer.write(output(operator), result, layout)


def _floor_mod(writer: Writer, operator: TfliteOperator) -> None:
    """Convert FLOOR_MOD, whose remainder has the sign of the divisor."""
    layout = common_layout(writer, operator)
    a, b = (operand(writer, input_index(operator, i), layout) for i in (0, 1))
    if _in_integers(writer, operator):
        writer.write(output(operator), writer.node("Mod", [a, b]), layout)
        return
    rest = writer.node("Mod", [a, b], "Mod", fmod=1)
    zero = writer.add("zero", np.float32(0))
    signs = [writer.node("Less", [name, zero], "Less") for name in (rest, b)]
    differ = writer.node("Xor", signs, "Xor")
    none = writer.node("Equal", [rest, zero], "Equal")
    needs_shift = writer.node("And", [differ, writer.node("Not", [none], "Not")], "And")
    behind = writer.node("Add", [rest, b], "Add")
    writer.write(output(operator), writer.node("Where", [needs_shift, behind, rest]), layout)


def _in_integers(writer: Writer, operator: TfliteOperator) -> bool:
    tensor = writer.tensors[input_index(operator, 0)]
    return tensor.quantisation is None and not tensor.dtype.startswith("float")


def _add_n(writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    names: Sequence[str] = [
        operand(writer, input_index(operator, i), layout) for i in range(len(operator.inputs))
    ]
    if len(names) == 1:
        writer.write(output(operator), writer.node("Identity", names), layout)
        return
    total = names[0]
    for count, name in enumerate(names[1:], 2):
        suffix = "" if count == len(names) else "Add"
        total = writer.node("Add", [total, name], suffix)
    finish(writer, operator, total, layout)


def _xor(writer: Writer, operator: TfliteOperator) -> None:
    places = [input_index(operator, i) for i in (0, 1)]
    if writer.tensors[places[0]].dtype == "bool":
        _logical("Xor", writer, operator)
        return
    names = [writer.stored_name(place) for place in places]
    writer.write_stored(output(operator), writer.node("BitwiseXor", names))


def _shift(writer: Writer, operator: TfliteOperator) -> None:
    """Convert RIGHT_SHIFT. The number of bits is clamped to the range from 0 to width − 1.

    ONNX only shifts unsigned integers. A signed integer is therefore divided by a power of two and
    rounded down.
    """
    places, result = [input_index(operator, i) for i in (0, 1)], output(operator)
    dtype = writer.tensors[result].dtype
    if np.dtype(dtype).kind not in "iu":
        raise Missing(f"it shifts numbers of type {dtype}")
    data, amount = (
        cast(writer, writer.stored_name(place), "int64", f"Cast{i}")
        for i, place in enumerate(places)
    )
    least, most = (
        writer.add("bits", np.array(value, np.int64))
        for value in (0, 8 * np.dtype(dtype).itemsize - 1)
    )
    inside = writer.node("Min", [writer.node("Max", [amount, least], "Max"), most], "Min")
    one = writer.add("one", np.ones((), np.uint64))
    power = writer.node(
        "BitShift", [one, cast(writer, inside, "uint64", "Bits")], "Power", direction="LEFT"
    )
    divisor = cast(writer, power, "int64", "Divisor")
    rest = writer.node("Mod", [data, divisor], "Mod")  # the remainder has the sign of the divisor
    whole = writer.node("Sub", [data, rest], "Sub")
    shifted = writer.node("Div", [whole, divisor], "Div")
    writer.write_stored(result, writer.node("Cast", [shifted], to=element_type(dtype)))


def _bitcast(writer: Writer, operator: TfliteOperator) -> None:
    """Convert BITCAST, which reinterprets the bits of a tensor as another type.

    If the two types have different sizes, only a constant can be converted.
    """
    data, result = input_index(operator, 0), output(operator)
    sizes = [np.dtype(writer.tensors[place].dtype).itemsize for place in (data, result)]
    if writer.is_constant(data):
        values = np.ascontiguousarray(writer.constant(data, "its data"))
        wanted = writer.tensors[result]
        writer.fold(result, values.reshape(-1).view(wanted.dtype).reshape(wanted.shape))
        return
    if sizes[0] != sizes[1]:
        raise Missing(f"it converts numbers of {sizes[0]} bytes to numbers of {sizes[1]} bytes")
    target = element_type(writer.tensors[result].dtype)
    writer.write_stored(result, writer.node("BitCast", [writer.stored_name(data)], to=target))


def _arc_tangent(writer: Writer, operator: TfliteOperator) -> None:
    """Convert ATAN2, the angle of the point (x, y) in all four quadrants.

    For positive x, the angle is the arc tangent of y / x. For negative x, half a turn is added that
    has the sign of y. As in C, the signs of zeros and infinities matter. The only difference to C
    is that a result of −0 becomes 0.
    """
    layout = common_layout(writer, operator)
    y, x = (operand(writer, input_index(operator, i), layout) for i in (0, 1))
    dtype = writer.tensors[output(operator)].dtype
    if dtype != "float32":
        raise Missing(f"it computes with {dtype}, for which onnxruntime has no arc tangent")

    def number(value: float) -> str:
        return writer.add("number", np.array(value, dtype))

    zero, turn = number(0.0), number(np.pi)

    def is_negative(name: str, suffix: str) -> str:
        """Add nodes that compute whether the sign bit of each number is set.

        The reciprocal distinguishes −0, whose reciprocal is negative, from 0.

        Args:
            name: name of the tensor of numbers.
            suffix: suffix of the names of the nodes.

        Returns:
            Name of a bool tensor.
        """
        below = writer.node("Less", [name, zero], f"{suffix}Below")
        inverse = writer.node("Reciprocal", [name], f"{suffix}Inverse")
        inverted = writer.node("Less", [inverse, zero], f"{suffix}InverseBelow")
        return writer.node("Or", [below, inverted], f"{suffix}Negative")

    both_infinite = writer.node(
        "And", [writer.node("IsInf", [y], "YInfinite"), writer.node("IsInf", [x], "XInfinite")],
        "Infinite",
    )  # fmt: skip
    both_zero = writer.node(
        "And",
        [writer.node("Equal", [y, zero], "YZero"), writer.node("Equal", [x, zero], "XZero")],
        "Zero",
    )
    signs = [writer.node("Sign", [name], f"{side}Sign") for name, side in ((y, "Y"), (x, "X"))]
    quotient = writer.node("Div", [y, x], "Quotient")
    diagonal = writer.node("Div", signs, "Diagonal")
    quotient = writer.node("Where", [both_infinite, diagonal, quotient], "WithInfinite")
    quotient = writer.node("Where", [both_zero, y, quotient], "WithZero")
    right = writer.node("Atan", [quotient], "Right")
    half = writer.node(
        "Where", [is_negative(y, "Y"), writer.node("Neg", [turn], "Back"), turn], "HalfTurn"
    )
    left = writer.node("Add", [right, half], "Left")
    # If both are zero, y replaced the quotient, and the half turn has the sign of y.
    writer.write(output(operator), writer.node("Where", [is_negative(x, "X"), left, right]), layout)


RULES: Mapping[str, Rule] = {
    **{
        kind: partial(_compare, op)
        for kind, op in {
            "LESS": "Less", "LESS_EQUAL": "LessOrEqual", "GREATER": "Greater",
            "GREATER_EQUAL": "GreaterOrEqual", "EQUAL": "Equal", "NOT_EQUAL": "NotEqual",
        }.items()
    },
    "LOGICAL_AND": partial(_logical, "And"),
    "LOGICAL_OR": partial(_logical, "Or"),
    "LOGICAL_NOT": partial(_logical, "Not"),
    "BITWISE_XOR": _xor,
    "RIGHT_SHIFT": _shift,
    "BITCAST": _bitcast,
    "ATAN2": _arc_tangent,
    "SELECT": _select,
    "SELECT_V2": _select,
    "CAST": _cast,
    "FLOOR_DIV": _floor_div,
    "FLOOR_MOD": _floor_mod,
    "ADD_N": _add_n,
}  # fmt: skip
"""Conversion rule of each operator of this module, by its name in the schema."""
