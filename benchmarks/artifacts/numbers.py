"""Runs a model in onnxruntime, and measures how far other outputs are from its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

Arrays = Mapping[str, NDArray[Any]]
_MOVES = ("Reshape", "Flatten", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Slice")


@dataclass(frozen=True)
class Difference:
    """Difference between computed and expected values of one output, over all inferences.

    It holds the norm of the difference relative to the norm of the expected values and, for an
    output with a quantisation step, the largest difference in steps.
    """

    output: str
    relative: float
    steps: float | None


def run_in_onnxruntime(
    model: onnx.ModelProto, feeds: Sequence[Arrays]
) -> list[dict[str, NDArray[Any]]]:
    """Run the model in onnxruntime without optimisations.

    Args:
        model: the model.
        feeds: inputs of each inference by name.

    Returns:
        The outputs of each inference by name, in their ONNX shapes.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    read = {input_.name for input_ in session.get_inputs()}
    return [
        dict(
            zip(names, session.run(None, {k: v for k, v in feed.items() if k in read}), strict=True)
        )
        for feed in feeds
    ]


def perturb_quantisation(model: onnx.ModelProto, share: float) -> onnx.ModelProto:
    """Return a model that adds the fraction `share` of a step to every value that it quantises.

    The change of its outputs shows how sensitive they are to a difference of rounding.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    constants = {tensor.name for tensor in model.graph.initializer}
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for number, node in enumerate(model.graph.node):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type == "QuantizeLinear" and not {node.input[0]} & constants:
            scale = kept.get(node.input[1])
            if scale is not None and scale.size == 1:
                amount = numpy_helper.from_array(
                    (scale * share).astype(scale.dtype).reshape(()), f"nudge{number}"
                )
                made.graph.initializer.append(amount)
                made.graph.node.append(
                    onnx.helper.make_node("Add", [node.input[0], amount.name], [f"nudged{number}"])
                )
                copy.input[0] = f"nudged{number}"
        made.graph.node.append(copy)
    return made


def differences(
    model: onnx.ModelProto, right: Sequence[Arrays], arrayss: Sequence[Arrays]
) -> list[Difference]:
    """Return the difference of each output, in the order of the model's outputs.

    Outputs with NaNs or with different shapes or types have an infinite difference.
    """
    made = []
    for info in model.graph.output:
        pairs = [(r[info.name], f[info.name]) for r, f in zip(right, arrayss, strict=True)]
        step = step_of(model, info.name)
        relative = _relative(*(_stack_inferences(side) for side in zip(*pairs, strict=True)))
        steps = None if step is None else max(_largest(*pair) for pair in pairs) / step
        made.append(Difference(info.name, relative, steps))
    return made


def step_of(model: onnx.ModelProto, output: str) -> float | None:
    """Return the quantisation step of an output, or None if the output is not quantised."""
    writers = {name: node for node in model.graph.node for name in node.output}
    node = writers.get(output)
    while node is not None and node.op_type in _MOVES:
        node = writers.get(node.input[0])
    if node is None or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    if node.op_type == "QuantizeLinear":
        return 1.0
    scales = [t for t in model.graph.initializer if t.name == node.input[1]]
    values = numpy_helper.to_array(scales[0]) if scales else np.zeros(0)
    return float(values.ravel()[0]) if values.size == 1 else None


def _stack_inferences(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stack an output of all inferences; return an empty array if the shapes differ.

    An empty array never has the expected shape, so different shapes count as an error.
    """
    return np.stack(arrays) if len({array.shape for array in arrays}) == 1 else np.zeros(0)


def _relative(right: NDArray[Any], result: NDArray[Any]) -> float:
    widened = right.dtype == np.float16 and result.dtype == np.float32
    if right.shape != result.shape or not (widened or right.dtype == result.dtype):
        return float("inf")
    a, b = right.astype(np.float64).ravel(), result.astype(np.float64).ravel()
    norm = float(np.linalg.norm(a))
    off = float(np.linalg.norm(a - b))
    if not np.isfinite(off):
        return 0.0 if np.array_equal(a, b, equal_nan=True) else float("inf")
    return off / norm if norm else (0.0 if not off else float("inf"))


def _largest(right: NDArray[Any], result: NDArray[Any]) -> float:
    if right.shape != result.shape:
        return float("inf")
    off = np.abs(right.astype(np.float64) - result.astype(np.float64))
    return float(off.max(initial=0.0))
