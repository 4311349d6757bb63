"""Checks that already quantised models are recognised and keep their scales."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from integer_nets import BLOCKS, differences, integers_of
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from quantise_nets import attention_net, residual_net

from benchmarks.quantisation.integer_graphs import in_memory, run
from tilewright.core.errors import UnknownName
from tilewright.networks import zoo
from tilewright.networks.errors import ModelFileError, QuantisationError
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.model_runner import Feed, run_feeds
from tilewright.networks.onnx.to_qdq import to_qdq
from tilewright.networks.quantisation import (
    Existing,
    Quantised,
    as_it_is,
    int8_model,
    is_quantised,
    model_with_weights,
    quantise,
    samples_for,
)
from tilewright.networks.zoo import digits
from tilewright.targets.cpu.spec import this_machine

pytestmark = pytest.mark.filterwarnings("ignore")


class _Images(CalibrationDataReader):
    def __init__(self) -> None:
        self._images: Iterator[Any] = iter(digits.training_set()[0][:40])

    def get_next(self) -> dict[str, Any] | None:
        image = next(self._images, None)
        return None if image is None else {"input": image[None]}


def _static(
    folder: Path, form: QuantFormat, unsigned: bool, per_channel: bool, narrow: bool = False
) -> onnx.ModelProto:
    """Return the digits network quantised by onnxruntime. `narrow` limits weights to seven bits."""
    onnx.save(zoo.build("digits_cnn"), folder / "float.onnx")
    kind = QuantType.QUInt8 if unsigned else QuantType.QInt8
    quantize_static(
        folder / "float.onnx",
        folder / "int8.onnx",
        _Images(),
        quant_format=form,
        activation_type=kind,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
        reduce_range=narrow,
    )
    return onnx.load(folder / "int8.onnx")


def _logits(model: onnx.ModelProto, count: int = 120) -> NDArray[np.float32]:
    """Return onnxruntime's logits for the first `count` digits, shape (count, 10)."""
    feeds: list[Feed] = [{"input": image[None]} for image in digits.held_out()[0][:count]]
    name = model.graph.output[0].name
    return np.concatenate([values[name] for values in run_feeds(model, [name], feeds)])


def _scales(model: onnx.ModelProto) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    zero = np.zeros((), np.int32)
    return [
        (constants[node.input[1]], constants[node.input[2]] if len(node.input) > 2 else zero)
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]


def test_quantised_models_are_recognised(tmp_path: Path) -> None:
    for form in (QuantFormat.QDQ, QuantFormat.QOperator):
        assert is_quantised(_static(tmp_path, form, False, False))
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    assert is_quantised(onnx.load(tmp_path / "dynamic.onnx"))
    assert not is_quantised(onnx.load(tmp_path / "float.onnx"))
    made = quantise(residual_net()).model
    assert is_quantised(made)
    with pytest.raises(QuantisationError, match="already quantised"):
        quantise(made)


@pytest.mark.parametrize("build", [residual_net, attention_net])
def test_a_quantised_model_is_taken_as_it_is(build: Any) -> None:
    made = quantise(build()).model
    again = as_it_is(made)
    info = made.graph.input[0]
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    feeds: list[Feed] = [{info.name: np.random.default_rng(1).standard_normal(shape, np.float32)}]
    name = made.graph.output[0].name
    (first,), (second,) = (list(run_feeds(item, [name], feeds)) for item in (made, again.model))
    np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_layers_in_scales_of_onnxruntimes_choice_give_its_numbers(
    form: QuantFormat, unsigned: bool, per_channel: bool, tmp_path: Path
) -> None:
    source = _static(tmp_path, form, unsigned, per_channel)
    assert any(np.frexp(scale)[0].ravel()[0] != 0.5 for scale, _ in _scales(to_qdq(source)))
    model = as_it_is(source).model
    graph = integer_graph(model, BLOCKS)
    assert (graph.islands, graph.left) == ((), {})
    inputs = {"input": digits.held_out()[0][:1]}
    result = differences(graph, integers_of(model, graph, inputs), inputs)
    assert len(result) >= 3
    for name, difference in result.items():
        assert np.abs(difference).max() <= 1, name
        assert np.count_nonzero(difference) <= 0.1 * difference.size, name


@pytest.mark.parametrize("unsigned", [False, True])
def test_the_whole_network_in_integers_is_as_right_as_the_quantised_model(
    unsigned: bool, tmp_path: Path
) -> None:
    source = _static(tmp_path, QuantFormat.QDQ, unsigned, per_channel=True)
    graph = integer_graph(as_it_is(source).model, BLOCKS)
    (output,) = graph.outputs
    ours = np.concatenate([
        run(graph, {"input": image[None]}, in_memory(graph))[output.name]
        for image in digits.held_out()[0][:120]
    ])  # fmt: skip
    theirs = _logits(source)
    assert np.linalg.norm(ours - theirs) <= 0.02 * np.linalg.norm(theirs)
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() >= 0.99


@pytest.mark.parametrize(
    ("unsigned", "narrow"),
    [
        (False, False),
        (True, True),
        pytest.param(
            True, False,
            marks=pytest.mark.skipif(
                not this_machine().dots,
                reason="without dot products of bytes onnxruntime's sums of unsigned ones saturate",
            ),
        ),
    ],
)  # fmt: skip
def test_qoperator_form_computes_as_its_qdq_form(
    unsigned: bool, narrow: bool, tmp_path: Path
) -> None:
    source = _static(tmp_path, QuantFormat.QOperator, unsigned, True, narrow)
    plain = to_qdq(source)
    assert not any(node.op_type.startswith("QLinear") for node in plain.graph.node)
    step = max(float(scale.max()) for scale, _ in _scales(plain))
    before, after = _logits(source), _logits(plain)
    assert np.abs(before - after).max() <= step * 1.001  # ties may round to the other side
    assert (before == after).mean() > 0.95


def test_one_call_takes_float_and_quantised_models(tmp_path: Path) -> None:
    onnx.save(residual_net(), tmp_path / "float.onnx")
    np.savez(tmp_path / "samples.npz", input=np.ones((2, 8, 12, 12), np.float32))
    model = model_with_weights(tmp_path / "float.onnx")
    made = int8_model(model, samples_for(model, tmp_path / "samples.npz"))
    assert isinstance(made, Quantised)
    assert made.report.samples == 2
    again = int8_model(made.model)
    assert isinstance(again, Existing)
    with pytest.raises(UnknownName):
        model_with_weights("resnet17")
    (tmp_path / "model.pt2").touch()
    with pytest.raises(ModelFileError, match="--allow-code"):
        model_with_weights(tmp_path / "model.pt2")


def test_layers_of_a_quantised_model_that_are_kept_compute_on_dequantised_numbers(
    tmp_path: Path,
) -> None:
    """Quantisers replace a ReLU by the saturation of QuantizeLinear, which must be kept too."""
    source = _static(tmp_path, QuantFormat.QDQ, True, False)
    result = as_it_is(source, ("conv2",))
    graph = integer_graph(result.model, BLOCKS, keep_float=result.keep_float)
    assert "conv2" in [name for island in graph.islands for name, _ in island.nodes]
    assert "conv2" not in [layer.name for layer in graph.layers]
    image = digits.held_out()[0][:1]
    (output,) = graph.outputs
    ours = run(graph, {"input": image}, in_memory(graph))[output.name]
    theirs = _logits(source, 1)
    assert np.linalg.norm(ours - theirs) <= 0.02 * np.linalg.norm(theirs)
    with pytest.raises(UnknownName):
        as_it_is(source, ("conv9",))
