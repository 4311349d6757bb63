"""Run ONNX models with onnxruntime and read the values of their intermediate tensors."""

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
"""Input arrays of one inference, by name of the input."""


class ModelRunner:
    """Runs an ONNX model with onnxruntime, without graph optimisations.

    The first call creates the session. Later calls reuse it.

    Args:
        model: a model with its weights.
        tensors: names of the tensors to return. A tensor that is not an output of the model has to
            be float32 or the result of a QuantizeLinear.
    """

    def __init__(self, model: onnx.ModelProto, tensors: Sequence[str]) -> None:
        self._model, self._names = model, list(dict.fromkeys(tensors))

    def __call__(self, feed: Feed) -> dict[str, NDArray[Any]]:
        """Run the model on one feed.

        Args:
            feed: input arrays by name.

        Returns:
            The requested tensors by name.

        Raises:
            InputError: the model does not run on the feed.
        """
        try:
            values = self._session.run(self._names, dict(feed))
        except failures() as error:
            raise InputError(
                f"the model cannot run on a calibration sample: {first_line(error)}; check "
                "the values of the calibration samples"
            ) from error
        # Without names, onnxruntime returns every output, including those that are not tensors.
        return dict(zip(self._names, values, strict=True)) if self._names else {}

    @cached_property
    def _session(self) -> Any:
        model = self._model
        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        output_names = {output.name for output in model.graph.output}
        integer_types = _integer_types(model)
        for name in self._names:
            if name not in output_names:
                element_type = integer_types.get(name, onnx.TensorProto.FLOAT)
                exposed.graph.output.append(
                    onnx.helper.make_tensor_value_info(name, element_type, None)
                )
        options = quiet_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if any(node.op_type == "ScatterND" for node in model.graph.node):
            # onnxruntime's threads lose additions to the same element.
            options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(
            exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


def run_feeds(
    model: onnx.ModelProto, tensors: Sequence[str], feeds: Collection[Feed]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Run a model on several feeds and yield the values of the requested tensors for each.

    Args:
        model: a model with its weights.
        tensors: names of the tensors to return, as for `ModelRunner`.
        feeds: one mapping from input name to array per inference.

    Yields:
        The requested tensors by name.

    Raises:
        InputError: the model does not run on a feed.
    """
    runner = ModelRunner(model, tensors)
    for feed in feeds:
        yield runner(feed)


def _integer_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the ONNX element type of each tensor that a QuantizeLinear writes, by tensor name."""
    zeros = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return {
        node.output[0]: zeros.get(node.input[2], onnx.TensorProto.UINT8)
        if len(node.input) > 2
        else onnx.TensorProto.UINT8
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }
