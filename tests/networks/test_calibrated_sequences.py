"""Checks that `Network.surveyed_on` finds quantised convolutions over sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright import networks
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.targets.registry import make_target


def test_a_quantised_grouped_convolution_of_a_sequence_is_surveyed(tmp_path: Path) -> None:
    """The input has three dimensions, and the image into which it is rewritten has four."""
    constants = {
        "s": np.float32(0.0316), "z": np.uint8(130), "u": np.float32(0.0179), "v": np.uint8(0),
        "t": np.float32(0.00816), "n": np.int8(0),
        "w": np.random.default_rng(0).integers(-127, 128, (16, 8, 1)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
        helper.make_node("DequantizeLinear", ["w", "t", "n"], ["wd"], name="wd"),
        helper.make_node("Conv", ["d", "wd"], ["c"], name="conv", group=2),
        helper.make_node("QuantizeLinear", ["c", "u", "v"], ["p"], name="p"),
        helper.make_node("DequantizeLinear", ["p", "u", "v"], ["y"], name="y"),
    ]
    shape = (3, 16, 38)
    graph = helper.make_graph(
        nodes, "sequence", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "sequence.onnx")
    accelerator = Accelerator.for_target(make_target("vta-pynq"))
    result, _ = networks.load(tmp_path / "sequence.onnx").surveyed_on(accelerator)
    assert any("conv" in item.names for item in result)
