"""Compares quantised models with onnxruntime, and their shifts with those that the scales imply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_graphs import model, normal, reference
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from tilewright import networks
from tilewright.networks import zoo
from tilewright.networks.epilogues import int8_epilogue
from tilewright.networks.fused_calls import FusedCall, FusedStep, Quantisation
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.network import Network
from tilewright.networks.zoo import digits


class _Images(CalibrationDataReader):
    def __init__(self) -> None:
        self._images: Iterator[Any] = iter(digits.held_out()[0][:40])

    def get_next(self) -> dict[str, Any] | None:
        image = next(self._images, None)
        return None if image is None else {"input": image[None]}


def _quantise(folder: Path, form: QuantFormat, symmetric: bool) -> Path:
    onnx.save(zoo.build("digits_cnn"), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "int8.onnx",
        _Images(),
        quant_format=form,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options={"ActivationSymmetric": symmetric},
    )
    return folder / "int8.onnx"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.slow(seconds=1.5)
def test_a_quantised_network_is_bit_equal_and_offloaded(form: QuantFormat, tmp_path: Path) -> None:
    path = _quantise(tmp_path, form, symmetric=True)
    network = networks.load(path)
    source = onnx.load(path)
    for image in digits.held_out()[0][:10]:
        (ours,) = network.run({"input": image[None]}).values()
        np.testing.assert_array_equal(ours, reference(source, image[None]))
    report = network.report(16, 16)
    assert report.quantised
    names = [name.replace("_quant", "") for workload in report.workloads for name in workload.names]
    two_passes = ["conv1", "conv2", "conv3", "fc"]
    assert set(names) >= {*two_passes, *(f"{name}.fine" for name in two_passes)}
    assert ("relu3" in names) == (form == QuantFormat.QOperator)  # onnxruntime keeps it separate
    for workload, _, _ in network.workloads(16, 16):
        kinds = [op.kind for op in workload.epilogue]
        added = {"bias", "offset"} & set(kinds)
        shifted = {"shr", "shr_channel"} & set(kinds)
        if kinds not in ([], ["min", "max"]):  # not a pool, or a ReLU that keeps the scale
            assert len(added) == len(shifted) == 1
            assert kinds[-2:] == ["min", "max"]


@pytest.mark.filterwarnings("ignore")
def test_zero_points_are_offloaded_under_padding_too(tmp_path: Path) -> None:
    path = _quantise(tmp_path, QuantFormat.QDQ, symmetric=False)
    network = networks.load(path)
    result = {o.name: o for o in network.report(16, 16).operators}
    assert {result[name].status for name in ("conv1", "conv2", "conv3", "fc")} == {"offloaded"}
    assert "two passes" in result["conv2"].reason
    padded = [w for w, _, names in network.workloads(16, 16) if "conv2" in names]
    assert [[op.kind for op in w.epilogue][:2] for w in padded] == [["add", "residual"]]


def _qdq_block(data: float, weight: float, out: float) -> onnx.ModelProto:
    """Return Q/DQ around conv → ReLU with the given scales and int8 weights."""
    tensors = {
        "sx": np.float32(data), "sw": np.float32(weight), "sy": np.float32(out), "z": np.int8(0),
        "w": np.random.default_rng(0).integers(-127, 128, (16, 16, 3, 3), np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "z"], ["qx"]),
        helper.make_node("DequantizeLinear", ["qx", "sx", "z"], ["dx"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "z"], ["dw"]),
        helper.make_node("Conv", ["dx", "dw"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("QuantizeLinear", ["r", "sy", "z"], ["qy"]),
        helper.make_node("DequantizeLinear", ["qy", "sy", "z"], ["y"]),
    ]
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    return model(nodes, arrays, (1, 16, 6, 6), "y")


def _network(source: onnx.ModelProto) -> Network:
    return Network(OnnxSource("test", source, lambda: source, {}))


@settings(max_examples=8)
@given(st.integers(-8, 0), st.integers(-10, 0), st.integers(0, 12))
def test_scales_that_are_powers_of_two_give_an_exact_shift(x: int, w: int, shift: int) -> None:
    network = _network(_qdq_block(2.0**x, 2.0**w, 2.0 ** (x + w + shift)))
    (call,) = network.examined.found.fused_calls
    offset = 1 << max(shift - 1, 0)
    result = ", ".join(map(str, int8_epilogue(call, "full")))
    assert result == f"+ {offset}, >> {shift}, min 127, max 0"
    (conv,) = [o for o in network.report(16, 16).operators if o.name == "conv"]
    assert conv.reason == ""


def test_scales_that_are_no_powers_of_two_apart_are_reported_as_two_passes() -> None:
    network = _network(_qdq_block(0.01, 0.02, 0.05))
    (conv,) = [o for o in network.report(16, 16).operators if o.name == "conv"]
    assert (conv.status, conv.reason) == (
        "offloaded",
        "its scales differ by factors that are not powers of two, so it takes two passes",
    )


def test_integer_operators_are_products_too() -> None:
    """ConvInteger, as written by dynamic quantisation, is bit-equal to onnxruntime."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("ConvInteger", ["q", "w", "z"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Cast", ["c"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    tensors = {
        "s": np.float32(0.05), "z": np.uint8(128),
        "w": np.random.default_rng(1).integers(0, 256, (16, 16, 3, 3), np.uint8),
    }  # fmt: skip
    source = model(nodes, {k: np.asarray(v) for k, v in tensors.items()}, (1, 16, 6, 6), "y")
    network = _network(source)
    x = normal(1, 16, 6, 6)
    np.testing.assert_array_equal(network.run({"x": x})["y"], reference(source, x))
    (conv,) = [o for o in network.report(16, 16).operators if o.name == "conv"]
    assert conv.status == "cpu"
    assert "not an int8 tensor times a scale" in conv.reason


def _call(*steps: FusedStep) -> FusedCall:
    scales = Quantisation("int8", (0.5,), (0,))
    return FusedCall(
        "dense", "d", (1, 16), (16, 16), (1, 16), steps=steps,
        data_quantisation=scales, weight_quantisation=scales,
    )  # fmt: skip


def test_a_relu_behind_the_quantisation_keeps_its_scale() -> None:
    out = Quantisation("int8", (4.0,), (3,))
    steps = (
        FusedStep("quantise", "q", out),
        FusedStep("dequantise", "dq", out),
        FusedStep("relu", "r"),
    )
    ops = int8_epilogue(_call(*steps), "full")
    assert [str(op) for op in ops] == ["bias", ">> 4", "min 127", "max 3"]
