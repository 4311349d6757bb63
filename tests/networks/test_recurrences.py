"""Tests recurrences that are compiled to one function for all steps, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import normal, reference
from test_compiled_libraries import built

from tests.draws import nightly_after
from tilewright import networks
from tilewright.networks.compiled.recurrences import recurrences

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
SIZE, FEATURES = 32, 6


def recurrent(
    kind: str, *, steps: int = 9, size: int = SIZE, outputs: int = 1, **attributes: Any
) -> onnx.ModelProto:
    """Return a recurrent model from x (steps, 1, features) to all states.

    If `outputs` is 2, it has a second output.
    """
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[kind] * size
    tensors = {
        "w": normal(ways, gates, FEATURES), "r": normal(ways, gates, size, seed=1) * 0.3,
        "b": normal(ways, 2 * gates, seed=2),
    }  # fmt: skip
    names = ["states", "y"] if outputs == 2 else ["y"]
    node = helper.make_node(
        kind, ["x", *tensors], names, name="cells", hidden_size=size, **attributes
    )
    graph = helper.make_graph(
        [node], "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, FEATURES))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("direction", nightly_after(1, ["bidirectional", "reverse", "forward"], 3))
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("GRU", {"linear_before_reset": 1}), ("LSTM", {}), ("RNN", {})],
    ids=["GRU", "LSTM", "RNN"],
)
@pytest.mark.parametrize("outputs", nightly_after(1, [2, 1], 3))
def test_all_steps_are_one_function_and_onnxruntimes(
    kind: str, attributes: dict[str, int], direction: str, outputs: int, tmp_path: Path
) -> None:
    model = recurrent(kind, outputs=outputs, direction=direction, **attributes)
    x = normal(9, 1, FEATURES, seed=7)
    result, profile = built(model, tmp_path).run({"x": x}, layers=True)
    np.testing.assert_allclose(result["y"], reference(model, x), atol=2e-6)
    names = [name for name, _ in profile.others]
    assert any(name.startswith("recurrence") for name in names)
    assert not any("tanh" in name and "matmul" in name for name in names)


def found(model: onnx.ModelProto, folder: Path) -> int:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return len(recurrences(networks.load(str(path)).whole.flat))


def test_what_a_loop_would_not_pay_for_or_cannot_compute_stays_as_it_is(tmp_path: Path) -> None:
    assert found(recurrent("LSTM"), tmp_path) == 1
    assert found(recurrent("LSTM", steps=3), tmp_path) == 0
    assert found(recurrent("LSTM", size=20), tmp_path) == 0  # 20 values do not fill whole vectors
    # The reset gate multiplies the state before the product, so its operand is not the state.
    assert found(recurrent("GRU", linear_before_reset=0), tmp_path) == 0


@pytest.mark.slow(seconds=3)
def test_a_gate_before_the_product_is_onnxruntimes(tmp_path: Path) -> None:
    model = recurrent("GRU", linear_before_reset=0)
    x = normal(9, 1, FEATURES, seed=7)
    given, _ = built(model, tmp_path).run({"x": x})
    np.testing.assert_allclose(given["y"], reference(model, x), atol=2e-6)


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("strides", [False, True])
def test_parts_of_a_matrix_are_onnxruntimes(strides: bool, tmp_path: Path) -> None:
    """The slices are outside any recurrence. They may omit the strides or go backwards."""
    tensors: dict[str, Any] = {
        "w": normal(8, 16), "begin": np.array([1, -9]), "end": np.array([5, -1]),
        "axes": np.array([0, 1]), "one": np.array([3]), "two": np.array([0]), "last": np.array([0]),
        "back": np.array([-1]), "ways": np.array([1, 2]),
    }  # fmt: skip
    more = ["ways"] if strides else []
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Slice", ["m", "begin", "end", "axes", *more], ["a"]),
        helper.make_node("Split", ["m"], ["s", "t"], axis=0, num_outputs=2),
        helper.make_node("Slice", ["t", "one", "two", "last", "back"], ["r"]),
        helper.make_node("Concat", ["s", "r"], ["c"], axis=0),
        helper.make_node("ReduceSum", ["a"], ["u"], keepdims=1),
        helper.make_node("Add", ["c", "u"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "parts", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    x = normal(8, 8, seed=7)
    given, _ = built(model, tmp_path).run({"x": x})
    np.testing.assert_allclose(given["y"], reference(model, x), atol=2e-5)


def test_large_weights_are_left_to_tiles_of_bfloat16(tmp_path: Path) -> None:
    for size, worth in ((32, True), (256, False)):
        path = tmp_path / f"{size}.onnx"
        path.write_bytes(recurrent("LSTM", size=size).SerializeToString())
        (only,) = recurrences(networks.load(str(path)).whole.flat)
        assert only.is_worth_a_function("float32")
        assert only.is_worth_a_function("bfloat16") == worth
