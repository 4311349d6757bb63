"""Small ONNX models for the tests of `networks`, and their outputs by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


def model(
    nodes: Sequence[onnx.NodeProto],
    tensors: Mapping[str, NDArray[Any]],
    input_shape: Sequence[int | str],
    output: str,
    opset: int = OPSET,
    extra_domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Make a model with one float input `x`."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)],
        [onnx.ValueInfoProto(name=output)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in extra_domains)]
    built = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(built)


def with_typed_output(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the outputs declared as float, which onnxruntime requires."""
    copy = onnx.ModelProto()
    copy.CopyFrom(source)
    for output in copy.graph.output:
        if not output.type.HasField("tensor_type"):
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    return copy


def reference(source: onnx.ModelProto, x: NDArray[Any]) -> NDArray[Any]:
    """Return the first output by onnxruntime, without its graph optimisations."""
    return references(source, [x])[0]


def references(source: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the first output for each input, with a single onnxruntime session."""
    opened = session(with_typed_output(source))
    name = opened.get_inputs()[0].name
    return [opened.run(None, {name: x})[0] for x in inputs]


def session(source: onnx.ModelProto, *, optimised: bool = False) -> onnxruntime.InferenceSession:
    """Open an onnxruntime session, with graph optimisations only if `optimised` is set."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # waiting threads spin and slow other tests
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        source.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class NumberedGraph:
    """Nodes and initializers under construction, with numbered names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any) -> str:
        """Add an initializer and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its result."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name
