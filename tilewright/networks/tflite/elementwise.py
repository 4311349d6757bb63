"""Convert elementwise operators, softmax, and operators that change the quantisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.writer import FILED, FIRST, Missing, TfliteLayout, Writer

Rule = Callable[[Writer, TfliteOperator], None]
"""Function that converts one operator and appends the result to the writer's graph. It raises
`Missing` if the operator cannot be expressed in ONNX."""

FUSED = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
"""Names of the values of the schema's enumeration `ActivationFunctionType`, indexed by the
value."""
CLIPS: Mapping[str, tuple[float, float]] = {
    "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0),
}  # fmt: skip
"""Lower and upper bound of the activations that clip, by name."""


def finish(
    writer: Writer, operator: TfliteOperator, result: str, layout: TfliteLayout = FILED
) -> None:
    """Apply an operator's fused activation, and write the result to the operator's only output.

    Args:
        writer: writer of the graph.
        operator: the operator.
        result: name of the result before the activation.
        layout: layout of the result.
    """
    number = operator.integer("FusedActivationFunction")
    fused = FUSED[number] if 0 <= number < len(FUSED) else f"activation {number}"
    if fused != "NONE":
        dtype = writer.computed_type(output(operator))
        result = _write_activation(writer, fused, result, dtype, suffix=True)
    writer.write(output(operator), result, layout)


def output(operator: TfliteOperator) -> int:
    """Return the tensor index of an operator's only output.

    Raises:
        Missing: the operator does not have exactly one output.
    """
    if len(operator.outputs) != 1:
        raise Missing(f"it has {len(operator.outputs)} outputs instead of one")
    return operator.outputs[0]


def input_index(operator: TfliteOperator, place: int) -> int:
    """Return the tensor index of an operator's input.

    Args:
        operator: the operator.
        place: position of the input.

    Raises:
        Missing: the operator does not have this input.
    """
    index = operator.inputs[place] if place < len(operator.inputs) else -1
    if index < 0:
        raise Missing(f"its input {place} is missing")
    return index


def common_layout(writer: Writer, operator: TfliteOperator) -> TfliteLayout:
    """Return the layout in which to compute an elementwise operator.

    Args:
        writer: writer of the graph.
        operator: the operator.

    Returns:
        The layout (n, c, h, w) if the output and all inputs that are not constant are images, and
        at least one of these inputs already exists in this layout. Otherwise, the file's layout.
    """
    computed = [i for i in operator.inputs if i >= 0 and not writer.is_constant(i)]
    are_images = all(len(writer.tensors[i].shape) == 4 for i in (*computed, output(operator)))
    return FIRST if are_images and any(writer.layout(i) is FIRST for i in computed) else FILED


def operand(writer: Writer, place: int, layout: TfliteLayout) -> str:
    """Return the name of an input's dequantised values, in the layout of the computation.

    If the computation is in the layout (n, c, h, w), a constant with fewer than four dimensions is
    reshaped so that it broadcasts in the same way as in the file's layout.

    Args:
        writer: writer of the graph.
        place: tensor index of the input.
        layout: layout in which the operator is computed.
    """
    rank = len(writer.tensors[place].shape)
    if layout is FILED or rank in (0, 4):
        return writer.real(place, layout)
    values = writer.constant(place, "its smaller operand")
    image = values.reshape((1,) * (4 - rank) + values.shape).transpose(FIRST.value)
    quantisation = writer.tensors[place].quantisation
    axis = 0 if quantisation is None else quantisation.axis + 4 - rank
    return writer.weight(place, image, FIRST.axis(axis, 4))


def _binary(op: str, writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    operands = [operand(writer, input_index(operator, i), layout) for i in (0, 1)]
    finish(writer, operator, writer.node(op, operands), layout)


def _unary(op: str, writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    finish(
        writer, operator, writer.node(op, [writer.real(input_index(operator, 0), layout)]), layout
    )


def _activation(writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    data = writer.real(input_index(operator, 0), layout)
    writer.write(
        output(operator), _write_activation(writer, operator.kind, data, "float32"), layout
    )


def _write_activation(
    writer: Writer, kind: str, data: str, dtype: str, *, suffix: bool = False
) -> str:
    if kind == "RELU" and dtype != "float32":  # onnxruntime's Relu supports few integer types
        return writer.node("Max", [data, writer.add("zero", np.zeros((), dtype))], "Relu" * suffix)
    if kind in CLIPS:
        ends = [writer.add(f"clip/{end:g}", np.array(end, dtype)) for end in CLIPS[kind]]
        return writer.node("Clip", [data, *ends], "Clip" * suffix)
    op = {"RELU": "Relu", "TANH": "Tanh"}.get(kind)
    if op is None:
        raise Missing(f"its fused activation {kind} is not supported")
    return writer.node(op, [data], op * suffix)


def _leaky_relu(writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    data = writer.real(input_index(operator, 0), layout)
    alpha = operator.number("Alpha", 0.0)
    finish(writer, operator, writer.node("LeakyRelu", [data], alpha=alpha), layout)


def _prelu(writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    slopes = operand(writer, input_index(operator, 1), layout)
    data = writer.real(input_index(operator, 0), layout)
    finish(writer, operator, writer.node("PRelu", [data, slopes]), layout)


def _square(writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    data = writer.real(input_index(operator, 0), layout)
    finish(writer, operator, writer.node("Mul", [data, data]), layout)


def _rsqrt(writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    root = writer.node("Sqrt", [writer.real(input_index(operator, 0), layout)], "Sqrt")
    finish(writer, operator, writer.node("Reciprocal", [root]), layout)


def _squared_difference(writer: Writer, operator: TfliteOperator) -> None:
    layout = common_layout(writer, operator)
    operands = [operand(writer, input_index(operator, i), layout) for i in (0, 1)]
    difference = writer.node("Sub", operands, "Sub")
    finish(writer, operator, writer.node("Mul", [difference, difference]), layout)


def _gelu(writer: Writer, operator: TfliteOperator) -> None:
    """Convert GELU, either exactly with the error function or in its tanh approximation.

    ONNX has a Gelu operator only from opset 20 on.
    """
    layout = common_layout(writer, operator)
    data = writer.real(input_index(operator, 0), layout)

    def constant(value: float) -> str:
        return writer.add("number", np.float32(value))

    if operator.integer("Approximate"):
        square = writer.node("Mul", [data, data], "Square")
        cube = writer.node("Mul", [square, data], "Cube")
        bent = writer.node("Mul", [cube, constant(0.044715)], "Bent")
        inner = writer.node("Add", [data, bent], "Inner")
        scaled = writer.node("Mul", [inner, constant(math.sqrt(2 / math.pi))], "Scaled")
        curve = writer.node("Tanh", [scaled], "Tanh")
    else:
        scaled = writer.node("Mul", [data, constant(math.sqrt(0.5))], "Scaled")
        curve = writer.node("Erf", [scaled], "Erf")
    share = writer.node("Add", [curve, constant(1.0)], "Share")
    half = writer.node("Mul", [data, constant(0.5)], "Half")
    finish(writer, operator, writer.node("Mul", [half, share]), layout)


def _fake_quant(writer: Writer, operator: TfliteOperator) -> None:
    """Convert FAKE_QUANT, which rounds values to the steps of an integer type.

    As in TensorFlow's FakeQuantWithMinMaxArgs, the range of values is shifted so that 0 is one of
    the steps.
    """
    least, most = operator.number("Min", 0.0), operator.number("Max", 0.0)
    first = 1 if operator.integer("NarrowRange") else 0
    bits = operator.integer("NumBits", 8)
    if not 1 < bits <= 16:
        raise Missing(f"it rounds to {bits} bits")
    last = (1 << bits) - 1
    if not least < most or last <= first or least > 0 or most < 0:
        raise Missing(f"its range is {least:g} to {most:g}, in {last - first + 1} steps")
    step = np.float32((most - least) / (last - first))
    zero = np.clip(np.floor(np.float32(first - least / step) + 0.5), first, last)
    ends = [np.float32((end - zero) * step) for end in (first, last)]
    layout = common_layout(writer, operator)
    data = writer.real(input_index(operator, 0), layout)
    low, high, size = (writer.add("number", np.float32(value)) for value in (*ends, step))
    inside = writer.node("Clip", [data, low, high], "Clip")
    steps = writer.node("Div", [writer.node("Sub", [inside, low], "Sub"), size], "Div")
    raised = writer.node("Add", [steps, writer.add("number", np.float32(0.5))], "Add")
    whole = writer.node("Mul", [writer.node("Floor", [raised], "Floor"), size], "Mul")
    finish(writer, operator, writer.node("Add", [whole, low]), layout)


def _softmax(writer: Writer, operator: TfliteOperator) -> None:
    place = input_index(operator, 0)
    rank = len(writer.tensors[place].shape)
    if not rank:
        raise Missing("its data are a single number")
    layout = common_layout(writer, operator)
    data, beta = writer.real(place, layout), operator.number("Beta", 1.0)
    if operator.kind == "SOFTMAX" and beta != 1.0:
        data = writer.node("Mul", [data, writer.add("beta", np.float32(beta))], "Mul")
    op = "Softmax" if operator.kind == "SOFTMAX" else "LogSoftmax"
    finish(writer, operator, writer.node(op, [data], axis=layout.axis(-1, rank)), layout)


def _convert_storage(writer: Writer, operator: TfliteOperator) -> None:
    """Convert QUANTIZE or DEQUANTIZE, which only change the type in which values are stored."""
    place, result = input_index(operator, 0), output(operator)
    source, target = writer.tensors[place], writer.tensors[result]
    if writer.is_constant(place) and target.quantisation is None and target.dtype == "float32":
        values = writer.constant(place, "its input")
        real = values if source.quantisation is None else source.quantisation.real(values)
        writer.fold(result, real.astype(np.float32))
        return
    if "float16" in (source.dtype, target.dtype):
        to = 1 if target.dtype == "float32" else 10  # ONNX's numbers of float32 and float16
        layout = writer.layout(place)
        halves = writer.node("Cast", [writer.stored_name(place, layout)], to=to)
        writer.write_stored(result, halves, layout)
        return
    writer.write(result, writer.real(place, writer.layout(place)), writer.layout(place))


def _densify(writer: Writer, operator: TfliteOperator) -> None:
    """Convert DENSIFY, which expands a sparse constant.

    The constant was already expanded when the file was read.
    """
    values = writer.constant(input_index(operator, 0), "its input")
    writer.fold(output(operator), values)


RULES: Mapping[str, Rule] = {
    **{
        kind: partial(_binary, op)
        for kind, op in {
            "ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "POW": "Pow",
            "MAXIMUM": "Max", "MINIMUM": "Min",
        }.items()
    },
    **{
        kind: partial(_unary, op)
        for kind, op in {
            "LOGISTIC": "Sigmoid", "ABS": "Abs", "NEG": "Neg", "EXP": "Exp", "LOG": "Log",
            "SQRT": "Sqrt", "SIN": "Sin", "COS": "Cos", "FLOOR": "Floor", "CEIL": "Ceil",
            "ROUND": "Round", "ELU": "Elu", "HARD_SWISH": "HardSwish", "SIGN": "Sign",
        }.items()
    },
    **dict.fromkeys(("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "TANH"), _activation),
    "GELU": _gelu,
    "FAKE_QUANT": _fake_quant,
    "LEAKY_RELU": _leaky_relu,
    "PRELU": _prelu,
    "SQUARE": _square,
    "RSQRT": _rsqrt,
    "SQUARED_DIFFERENCE": _squared_difference,
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _softmax,
    "QUANTIZE": _convert_storage,
    "DEQUANTIZE": _convert_storage,
    "DENSIFY": _densify,
}  # fmt: skip
"""Conversion rule of each operator of this module, by its name in the schema."""
