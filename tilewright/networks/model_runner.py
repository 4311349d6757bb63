"""Runs models with onnxruntime, tensors inside them included."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import onnx
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.errors import InputError, first_line
from tilewright.networks.onnxruntime_options import failures, quiet_options

onnxruntime = lazy_module("onnxruntime")

Feed = Mapping[str, NDArray[Any]]


class ModelRunner:
    """Runs a model with onnxruntime as it stands, without optimisations. The session is made by the
    first call and kept.

    Args:
        model: a model with its weights.
        tensors: names of the values to return, of outputs or of tensors inside the model that are
            floats or that a QuantizeLinear writes.
    """

    def __init__(self, model: onnx.ModelProto, tensors: Sequence[str]) -> None:
        self._model, self._names = model, list(dict.fromkeys(tensors))

    def __call__(self, feed: Feed) -> dict[str, NDArray[Any]]:
        """Return the values by name, each in its own shape. Raises `InputError` where the model
        does not run on the feed."""
        try:
            values = self._session.run(self._names, dict(feed))
        except failures() as error:
            raise InputError(
                f"the model does not run on a sample: {first_line(error)}; check the values of "
                "the calibration samples"
            ) from error
        # Without names, onnxruntime gives every output, here those that are no tensors.
        return dict(zip(self._names, values, strict=True)) if self._names else {}

    @cached_property
    def _session(self) -> Any:
        model = self._model
        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        own = {output.name for output in model.graph.output}
        kinds = _integer_types(model)
        for name in self._names:
            if name not in own:
                kind = kinds.get(name, onnx.TensorProto.FLOAT)
                exposed.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
        options = quiet_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if any(node.op_type == "ScatterND" for node in model.graph.node):
            options.intra_op_num_threads = 1  # its threads lose sums that go to one place
        return onnxruntime.InferenceSession(
            exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


def run_feeds(
    model: onnx.ModelProto, tensors: Sequence[str], feeds: Collection[Feed]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the values of these tensors of a model, as `ModelRunner` gives them, feed by feed.
    Raises `InputError` where the model does not run on a feed."""
    runner = ModelRunner(model, tensors)
    for feed in feeds:
        yield runner(feed)


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
