"""Convert the LSTM operator whose state is an input and an output of the operator.

The operator computes a single step and occurs in files of TensorFlow 1. All other LSTM operators
keep their state in variables, which ONNX does not have.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.networks.tflite.elementwise import FUSED, Rule, input_index
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.products import bias, shape_of
from tilewright.networks.tflite.writer import Missing, Writer

STATE = "it keeps state between runs, and ONNX has no variables"
"""Reason that is shown for operators that keep state between runs. They cannot be converted."""
BASIC = 1
"""Value of the schema's enumeration `LSTMKernelType` for an LSTM step with five inputs."""


def _step(writer: Writer, operator: TfliteOperator) -> None:
    if operator.integer("KernelType") != BASIC:
        raise Missing(STATE)
    data, before, weights, _, state = (input_index(operator, i) for i in range(5))
    if len(operator.outputs) != 4 or operator.integer("FusedActivationFunction") != FUSED.index(
        "TANH"
    ):
        raise Missing("its outputs or its activation differ from those of a basic step")
    if operator.number("CellClip", 0.0) or operator.number("ProjClip", 0.0):
        raise Missing("it clips its state")
    activated, after, *scratch = operator.outputs
    used = {i for o in writer.source.operators for i in o.inputs} | set(writer.source.outputs)
    if used & set(scratch):
        raise Missing("a later operator reads its scratch memory")
    _, units = shape_of(writer, after, 2, "its state")
    joined = writer.node("Concat", [writer.real(data), writer.real(before)], "Concat", axis=-1)
    sums = writer.node(
        "Gemm", [joined, writer.real(weights), *bias(writer, operator, 3)], "Gemm", transB=1
    )
    sizes = writer.add(f"{writer.operator}/sizes", np.full(4, units, np.int64))
    parts = writer.nodes("Split", [sums, sizes], 4, "Split", axis=-1)
    gates = [
        writer.node(op, [part], name)
        for op, part, name in zip(
            ("Sigmoid", "Tanh", "Sigmoid", "Sigmoid"),
            parts,
            ("InputGate", "NewInput", "ForgetGate", "OutputGate"),
            strict=True,
        )
    ]
    taken = writer.node("Mul", gates[:2], "Taken")
    kept = writer.node("Mul", [gates[2], writer.real(state)], "Kept")
    new = writer.node("Add", [taken, kept], "State")
    writer.write(after, new)
    bent = writer.node("Tanh", [writer.real(after)], "Tanh")
    writer.write(activated, writer.node("Mul", [gates[3], bent]))


RULES: Mapping[str, Rule] = {"LSTM": _step}
"""Conversion rule of each operator of this module, by its name in the schema."""
