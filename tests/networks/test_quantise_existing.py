"""Models that are quantised already: recognised, left alone, or brought to powers of two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from quantise_nets import attention_net, residual_net

from networks import zoo
from networks.errors import QuantisationError
from networks.quantise import (
    Quantised,
    Rescaled,
    int8_model,
    is_quantised,
    model_with_weights,
    nearest_power_of_two,
    quantise,
)
from networks.quantise.qoperator import to_qdq
from networks.quantise.session import Feed, runs
from networks.zoo import digits
from targets.cpu.spec import this_machine
from targets.errors import UnknownName

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
    """The digits network with scales of onnxruntime's choice; `narrow` weights have seven bits."""
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
    """(count, 10)"""
    feeds: list[Feed] = [{"input": image[None]} for image in digits.held_out()[0][:count]]
    name = model.graph.output[0].name
    return np.concatenate([values[name] for values in runs(model, [name], feeds)])


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
    with pytest.raises(QuantisationError, match="quantised already"):
        quantise(made)


@pytest.mark.parametrize("build", [residual_net, attention_net])
def test_scales_that_are_powers_of_two_stay(build: Any) -> None:
    made = quantise(build()).model
    again = nearest_power_of_two(made)
    assert again.changes == ()
    assert again.kept == {}
    info = made.graph.input[0]
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    feeds: list[Feed] = [{info.name: np.random.default_rng(1).standard_normal(shape, np.float32)}]
    name = made.graph.output[0].name
    (first,), (second,) = (list(runs(each, [name], feeds)) for each in (made, again.model))
    np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_other_scales_become_powers_of_two(
    form: QuantFormat, unsigned: bool, per_channel: bool, tmp_path: Path
) -> None:
    source = _static(tmp_path, form, unsigned, per_channel)
    assert any(np.frexp(scale)[0].ravel()[0] != 0.5 for scale, _ in _scales(to_qdq(source)))
    found = nearest_power_of_two(source)
    onnx.checker.check_model(found.model, full_check=True)
    for scale, zero in _scales(found.model):
        assert (np.frexp(scale)[0] == 0.5).all()
        assert not zero.any()
        assert per_channel or scale.shape == ()
        assert zero.dtype in (np.int8, np.int32)
    assert found.kept == {}
    weights = [change for change in found.changes if change.decibels is not None]
    assert len(weights) == 4
    assert all(change.decibels and change.decibels > 25 for change in weights)
    for change in found.changes:
        np.testing.assert_allclose(change.ratio, 2.0**change.exponent / change.scale)
    before, after = _logits(source), _logits(found.model)
    assert np.corrcoef(before.ravel(), after.ravel())[0, 1] > 0.99
    assert (before.argmax(axis=1) == after.argmax(axis=1)).mean() > 0.95


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
    made = int8_model(model, tmp_path / "samples.npz")
    assert isinstance(made, Quantised)
    assert made.report.samples == 2
    again = int8_model(made.model)
    assert isinstance(again, Rescaled)
    assert again.changes == ()
    with pytest.raises(UnknownName):
        model_with_weights("resnet17")
    (tmp_path / "model.pt2").touch()
    with pytest.raises(QuantisationError, match="is a torch"):
        model_with_weights(tmp_path / "model.pt2")


def test_layers_of_a_quantised_model_can_be_made_float(tmp_path: Path) -> None:
    source = _static(tmp_path, QuantFormat.QDQ, False, False)
    found = nearest_power_of_two(source, ("conv2",))
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in found.model.graph.initializer}
    nodes = {node.name: node for node in found.model.graph.node}
    assert all(constants[name].dtype == np.float32 for name in nodes["conv2"].input[1:])
    assert nodes["conv3"].input[1] not in constants
    with pytest.raises(UnknownName):
        nearest_power_of_two(source, ("conv9",))
