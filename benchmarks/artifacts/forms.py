"""Converts a float network to the forms in which users have models.

The forms are float32, float16, and the usual ways in which onnxruntime quantises a model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

Feed = Mapping[str, NDArray[Any]]
Form = Literal[
    "float32", "float16", "qdq-power-of-two", "qdq-int8", "qdq-uint8", "qdq-int8-shifted",
    "qdq-default", "qoperator",
]  # fmt: skip
FORMS: tuple[Form, ...] = (
    "float32", "float16", "qdq-power-of-two", "qdq-int8", "qdq-uint8", "qdq-int8-shifted",
    "qdq-default", "qoperator",
)  # fmt: skip


class NotDrawn(Exception):
    """Error: onnxruntime cannot convert a network to a form."""


def feeds_of(model: onnx.ModelProto, count: int, seed: int) -> list[dict[str, NDArray[Any]]]:
    """Draw standard normal inputs in the types and shapes of the model's inputs.

    Returns:
        `count` dictionaries of arrays by input name.
    """
    rng = np.random.default_rng([seed, 0xFEED])
    return [
        {
            info.name: rng.standard_normal(
                [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            ).astype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
            for info in data_inputs(model)
        }
        for _ in range(count)
    ]


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the graph inputs that are not constants."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in constants]


def convert_to_form(model: onnx.ModelProto, form: Form, samples: Sequence[Feed], seed: int) -> Any:
    """Convert a float model to a form.

    Args:
        model: the float model.
        form: the form.
        samples: arrays in the shapes of the inputs, from which onnxruntime chooses the quantisation
            scales.
        seed: seed of random choices.

    Returns:
        The model as an `onnx.ModelProto`.

    Raises:
        NotDrawn: onnxruntime cannot quantise the model in this form.
    """
    if form == "float32":
        return model
    if form == "float16":
        return to_float16(model)
    rng = np.random.default_rng([seed, 0xF0])
    try:
        made = _quantised(model, form, samples, rng)
    except Exception as error:  # whatever onnxruntime's quantiser trips over
        raise NotDrawn(f"{type(error).__name__}: {error}") from error
    return use_power_of_two_scales(made) if form == "qdq-power-of-two" else made


def _quantised(
    model: onnx.ModelProto, form: Form, samples: Sequence[Feed], rng: np.random.Generator
) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    per_channel = bool(rng.random() < 0.5) and model.opset_import[0].version >= 13
    given: dict[str, Any] = {"per_channel": per_channel, "weight_type": QuantType.QInt8}
    match form:
        case "qdq-int8" | "qdq-power-of-two":
            given["activation_type"] = QuantType.QInt8
            given["extra_options"] = {"ActivationSymmetric": True, "WeightSymmetric": True}
        case "qdq-int8-shifted":
            given["activation_type"] = QuantType.QInt8
        case "qdq-uint8":
            given["activation_type"] = QuantType.QUInt8
        case "qoperator":
            given["quant_format"] = QuantFormat.QOperator
            unsigned = rng.random() < 0.5
            given["activation_type"] = QuantType.QUInt8 if unsigned else QuantType.QInt8
        case _:
            given = {}
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "float.onnx", Path(folder) / "made.onnx"
        onnx.save(model, source)
        if rng.random() < 0.5:  # as its documentation advises, which not everybody reads
            ready = Path(folder) / "ready.onnx"
            quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
            source = ready
        quantize_static(str(source), str(made), _Reader(samples), **given)
        return onnx.load(made)


class _Reader:
    """Data reader that gives the samples to onnxruntime's calibration."""

    def __init__(self, samples: Sequence[Feed]) -> None:
        self._left = list(samples)

    def get_next(self) -> Feed | None:
        """Return the next sample; None after the last one."""
        return self._left.pop(0) if self._left else None

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> Feed:
        result = self.get_next()
        if result is None:
            raise StopIteration
        return result


def to_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert inputs, constants and outputs to float16."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for info in (*made.graph.input, *made.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def use_power_of_two_scales(model: onnx.ModelProto) -> onnx.ModelProto:
    """Round the scales of a symmetric QDQ model up to powers of two, and adapt its integers."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    tensors = {tensor.name: tensor for tensor in made.graph.initializer}
    writers = {node.output[0]: node for node in made.graph.node}
    old = {
        name: numpy_helper.to_array(tensors[name])
        for node in made.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
        for name in [node.input[1]]
    }
    biases = _biases(made, writers)
    new = {name: np.exp2(np.ceil(np.log2(scale))) for name, scale in old.items()}
    for bias, data, weight in biases:
        new[bias.input[1]] = new[data.input[1]] * new[weight.input[1]]
    for node in made.graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in tensors:
            continue
        tensor, scale = tensors[node.input[0]], node.input[1]
        values = numpy_helper.to_array(tensor)
        ratio = old[scale] / new[scale]
        if ratio.ndim:
            axis = next(
                (attribute.i for attribute in node.attribute if attribute.name == "axis"), 1
            )
            ratio = ratio.reshape(
                [-1 if i == axis % values.ndim else 1 for i in range(values.ndim)]
            )
        scaled = np.rint(values * ratio.astype(np.float64)).astype(values.dtype)
        tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
    for name, scale in new.items():
        values = np.asarray(scale, np.float32)
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))
    return made


def _biases(
    model: onnx.ModelProto, writers: Mapping[str, onnx.NodeProto]
) -> list[tuple[onnx.NodeProto, onnx.NodeProto, onnx.NodeProto]]:
    """Return the DequantizeLinear nodes of each bias, of its data and of its weights."""
    biases = []
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3:
            continue
        three = [writers.get(node.input[place]) for place in (2, 0, 1)]
        if all(item is not None and item.op_type == "DequantizeLinear" for item in three):
            biases.append(tuple(three))
    return biases  # type: ignore[return-value]
