"""Tests convolutions of long signals, which become a matrix product over the signal's frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_graphs import model, normal, reference

import tilewright
from tilewright.networks.onnx.files import without_weights
from tilewright.networks.onnx.normalise import normalise


@dataclass(frozen=True)
class Spectrogram:
    """A convolution of a signal with 24 kernels, which becomes a product of its frames."""

    length: int
    taps: int
    stride: int
    pads: tuple[int, int] = (0, 0)
    images: int = 1
    bias: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.images, 1, self.length)

    def model(self) -> onnx.ModelProto:
        tensors = {"w": normal(24, 1, self.taps, seed=1)}
        if self.bias:
            tensors["b"] = normal(24, seed=2)
        conv = helper.make_node(
            "Conv", ["x", *tensors], ["y"], strides=[self.stride], pads=self.pads
        )
        return model([conv], tensors, self.shape, "y")


CENTRED = Spectrogram(16000, 400, 160, pads=(200, 200), bias=True)
CASES = [
    CENTRED,
    Spectrogram(16000, 512, 160),  # the kernel is no multiple of the stride
    Spectrogram(1000, 64, 64, images=2),  # frames that do not overlap
    Spectrogram(1003, 70, 100, pads=(3, 0), bias=True),  # some samples are not read
    Spectrogram(300, 256, 64, pads=(0, 40), images=3),
]


@pytest.mark.parametrize("case", CASES)
def test_the_product_of_frames_is_the_convolution(case: Spectrogram) -> None:
    source = case.model()
    rewritten = normalise(source, {})
    kinds = [node.op_type for node in rewritten.graph.node]
    assert "MatMul" in kinds
    assert "Conv" not in kinds
    x = normal(*case.shape, seed=3)
    result = reference(rewritten.model, x)
    np.testing.assert_allclose(result, reference(source, x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("taps", "stride", "channels"), [(32, 16, 24), (512, 8, 24), (512, 160, 4)]
)
def test_other_convolutions_stay(taps: int, stride: int, channels: int) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride])
    source = model([conv], {"w": normal(channels, 1, taps)}, (1, 1, 4000), "y")
    kinds = [node.op_type for node in normalise(source, {}).graph.node]
    assert "MatMul" not in kinds


def test_weights_without_data_are_rewritten_too() -> None:
    light = normalise(without_weights(CENTRED.model()), {})
    assert "MatMul" in [node.op_type for node in light.graph.node]


def test_a_library_computes_a_spectrogram(tmp_path: Path) -> None:
    source = CENTRED.model()
    path = tmp_path / "spectrogram.onnx"
    path.write_bytes(source.SerializeToString())
    tilewright.build(path, tmp_path / "built", target="cpu", trials=0)
    x = normal(*CENTRED.shape, seed=4)
    (result,) = tilewright.load(tmp_path / "built", allow_code=True).run(["y"], {"x": x})
    np.testing.assert_allclose(result, reference(source, x), rtol=1e-4, atol=1e-3)
