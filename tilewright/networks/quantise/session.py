"""Runs models with onnxruntime, tensors inside them included."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.errors import InputError, first_line
from tilewright.networks.onnxruntime_options import failures, quiet_options

onnxruntime = lazy_module("onnxruntime")

Feed = Mapping[str, NDArray[Any]]


def runs(
    model: onnx.ModelProto, tensors: Sequence[str], feeds: Collection[Feed]
) -> Iterator[dict[str, NDArray[Any]]]:
    """The values of these tensors of a model, floats or what a QuantizeLinear writes, each in its
    own shape, feed by feed.

    The graph runs as it stands, without optimisations. Raises `InputError` where it does not run
    on a feed.
    """
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    own = {output.name for output in model.graph.output}
    kinds = _integer_types(model)
    for name in dict.fromkeys(tensors):
        if name not in own:
            kind = kinds.get(name, onnx.TensorProto.FLOAT)
            exposed.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if any(node.op_type == "ScatterND" for node in model.graph.node):
        options.intra_op_num_threads = 1  # its threads lose sums that go to one place
    session = onnxruntime.InferenceSession(
        exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = list(dict.fromkeys(tensors))
    for feed in feeds:
        try:
            values = session.run(names, dict(feed))
        except failures() as error:
            raise InputError(
                f"the model does not run on a sample: {first_line(error)}; check the values of "
                "the calibration samples"
            ) from error
        yield dict(zip(names, values, strict=True))


def _integer_types(model: onnx.ModelProto) -> dict[str, int]:
    """The element types of what the QuantizeLinear of a model write, by tensor."""
    zeros = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return {
        node.output[0]: zeros.get(node.input[2], onnx.TensorProto.UINT8)
        if len(node.input) > 2
        else onnx.TensorProto.UINT8
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }
