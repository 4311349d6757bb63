"""Compares QOperator matrix products with a factor `alpha` with onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.artifacts.numbers import run_in_onnxruntime
from tilewright.networks.onnx.to_qdq import to_qdq


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_the_bias_of_a_qgemm_counts_in_alpha_steps_of_its_sums(alpha: float) -> None:
    model = _qgemm(alpha)
    feed = {"x": np.random.default_rng(1).standard_normal((4, 24), dtype=np.float32)}
    right = run_in_onnxruntime(model, [feed])[0]["y"]
    result = run_in_onnxruntime(to_qdq(model), [feed])[0]["y"]
    np.testing.assert_allclose(
        result, right, atol=0.051
    )  # one step, because ties may be rounded differently
    assert (result == right).mean() > 0.9


def _qgemm(alpha: float) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "sx": np.float32(0.02), "zx": np.int8(3), "sw": np.float32(0.01), "zw": np.int8(0),
        "sy": np.float32(0.05), "zy": np.int8(-7),
        "w": rng.integers(-127, 128, (24, 8)).astype(np.int8),
        "c": rng.integers(-9000, 9000, 8).astype(np.int32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"], name="in"),
        helper.make_node(
            "QGemm", ["q", "sx", "zx", "w", "sw", "zw", "c", "sy", "zy"], ["p"], name="gemm",
            domain="com.microsoft", alpha=alpha,
        ),
        helper.make_node("DequantizeLinear", ["p", "sy", "zy"], ["y"], name="out"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "qgemm", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 24))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 8))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
