"""Tests the analysis that proves a dynamic dimension safe to pad, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import session

from tilewright.networks.onnx.neutral_padding import padding_obstacles

LARGEST = 7
RNG = np.random.default_rng(0)
Node = tuple[str, Sequence[str], Mapping[str, Any]]


def draw(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


CONSTANTS: Mapping[str, NDArray[Any]] = {
    "w": draw(4, 4), "row": draw(4), "table": draw(16, 4), "one": np.array([1]),
    "axes1": np.array([1]), "axes2": np.array([2]), "zero": np.array([0]), "big": np.array([9]),
    "minus": np.array([-1]), "k1": draw(4, 4, 1), "k3": draw(4, 4, 3), "flat": np.array([1, -1]),
    "heads": np.array([0, -1, 2, 2]), "rows": np.array([-1, 4]), "first": np.array(0),
    "last": np.array(-1), "pads": np.array([0, 1, 0, 0, 0, 0]), "ids": np.array([3, 0, 1]),
}  # fmt: skip
"""Constants of the cases below, whose input x has shape (1, d, 4)."""

NEUTRAL: Mapping[str, Sequence[Node]] = {
    "dense": [("MatMul", ["x", "w"], {}), ("Add", ["", "row"], {}), ("Relu", [""], {})],
    "softmax over features": [("Softmax", ["x"], {"axis": -1})],
    "maximum over features": [("ReduceMax", ["x"], {"axes": [2], "keepdims": 0})],
    "transposition": [("Transpose", ["x"], {"perm": [0, 2, 1]})],
    "convolution of one": [
        ("Transpose", ["x"], {"perm": [0, 2, 1]}), ("Conv", ["", "k1"], {}),
    ],
    "convolution of the past": [
        ("Exp", ["x"], {}), ("Transpose", [""], {"perm": [0, 2, 1]}),
        ("Conv", ["", "k3"], {"pads": [2, 0]}),
    ],
    "convolution of the input": [
        ("Transpose", ["x"], {"perm": [0, 2, 1]}), ("Conv", ["", "k3"], {"pads": [1, 1]}),
    ],
    "heads": [("Reshape", ["x", "heads"], {}), ("Transpose", [""], {"perm": [0, 2, 1, 3]})],
    "rows": [("Reshape", ["x", "rows"], {}), ("MatMul", ["", "w"], {})],
    "running sum": [("CumSum", ["x", "one"], {})],
    "sum of the input": [("ReduceSum", ["x", "axes1"], {"keepdims": 0})],
    "first": [("Exp", ["x"], {}), ("Gather", ["", "first"], {"axis": 1})],
    "slice of features": [("Slice", ["x", "zero", "one", "axes2"], {})],
    "one more dimension": [("Unsqueeze", ["x", "zero"], {}), ("Sigmoid", [""], {})],
    "tanh of itself": [("Tanh", ["x"], {}), ("Mul", ["", "x"], {})],
}  # fmt: skip
CHANGED: Mapping[str, Sequence[Node]] = {
    "maximum over tokens": [("MatMul", ["x", "w"], {}), ("ReduceMax", [""], {"axes": [1]})],
    "maximum of the input": [("ReduceMax", ["x"], {"axes": [1]})],
    "mean over tokens": [("ReduceMean", ["x"], {"axes": [1]})],
    "sum behind an offset": [("Add", ["x", "row"], {}), ("ReduceSum", ["", "axes1"], {})],
    "softmax over tokens": [("Softmax", ["x"], {"axis": 1})],
    "attention": [
        ("Transpose", ["x"], {"perm": [0, 2, 1]}), ("MatMul", ["x", ""], {}),
        ("Softmax", [""], {"axis": -1}), ("MatMul", ["", "x"], {}),
    ],
    "every other": [
        ("Transpose", ["x"], {"perm": [0, 2, 1]}),
        ("Conv", ["", "k1"], {"strides": [2]}),
    ],
    "convolution of the future": [
        ("Exp", ["x"], {}), ("Transpose", [""], {"perm": [0, 2, 1]}),
        ("Conv", ["", "k3"], {"pads": [1, 1]}),
    ],
    "pool": [
        ("Transpose", ["x"], {"perm": [0, 2, 1]}),
        ("MaxPool", [""], {"kernel_shape": [3], "pads": [1, 1]}),
    ],
    "last": [("Gather", ["x", "last"], {"axis": 1})],
    "the other way": [("Slice", ["x", "minus", "flat2", "axes1", "minus"], {})],
    "normalised over tokens": [
        ("Transpose", ["x"], {"perm": [0, 2, 1]}), ("LpNormalization", [""], {"axis": -1}),
    ],
    "backward sum": [("CumSum", ["x", "one"], {"reverse": 1})],
    "features first": [("Transpose", ["x"], {"perm": [0, 2, 1]}), ("Reshape", ["", "flat"], {})],
    "at the end": [("Pad", ["x", "pads"], {})],
    "its length": [("Shape", ["x"], {}), ("Cast", [""], {"to": 1}), ("ReduceMax", [""], {})],
    "topmost": [("ArgMax", ["x"], {"axis": 1})],
    "second": [("Gather", ["x", "one"], {"axis": 1})],
}  # fmt: skip
FURTHER = {"flat2": np.array([-100])}


def model_of(nodes: Sequence[Node], shape: Sequence[int | str], opset: int = 13) -> onnx.ModelProto:
    """Make a chain of operators. The input name "" is the result of the previous operator."""
    made, last = [], "x"
    for number, (operator, inputs, attributes) in enumerate(nodes):
        read = [name or last for name in inputs]
        last = "y" if number == len(nodes) - 1 else f"t{number}"
        made.append(helper.make_node(operator, read, [last], name=f"n{number}", **attributes))
    known = {**CONSTANTS, **FURTHER}
    used = {name for node in made for name in node.input if name in known}
    graph = helper.make_graph(
        made, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(known[name], name) for name in sorted(used)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def obstacle_of(model: onnx.ModelProto, shape: Sequence[int | str], name: str = "d") -> str:
    sizes = {axis: (LARGEST,) for axis in shape if isinstance(axis, str)}
    return padding_obstacles(model, {"x": tuple(shape)}, sizes)[name]


def patterns(shape: tuple[int, ...]) -> Mapping[str, NDArray[np.float32]]:
    whole = np.arange(np.prod(shape)).reshape(shape)
    return {
        "negative": -np.abs(draw(*shape)) - 1,
        "constant": np.full(shape, -3, np.float32),
        "alternating": np.where(whole % 2, 5, -5).astype(np.float32),
    }


@pytest.mark.parametrize("case", NEUTRAL)
def test_what_may_be_padded_gives_the_same_at_every_size(case: str) -> None:
    model = model_of(NEUTRAL[case], [1, "d", 4])
    assert obstacle_of(model, [1, "d", 4]) == ""
    opened = session(model, optimised=True)
    for size in range(1, LARGEST + 1):
        for name, inputs in patterns((1, size, 4)).items():
            (exact,) = opened.run(None, {"x": inputs})
            larger = np.zeros((1, LARGEST, 4), np.float32)
            larger[:, :size] = inputs
            (padded,) = opened.run(None, {"x": larger})
            front = padded[tuple(map(slice, exact.shape))]
            np.testing.assert_allclose(front, exact, 1e-5, 1e-5, err_msg=f"{name} at {size}")


@pytest.mark.parametrize("case", CHANGED)
def test_what_mixes_numbers_along_the_dimension_is_named(case: str) -> None:
    said = obstacle_of(model_of(CHANGED[case], [1, "d", 4]), [1, "d", 4])
    assert said
    assert "\n" not in said


def test_each_dimension_is_judged_by_itself() -> None:
    shape = ["batch", "d", 4]
    model = model_of(CHANGED["attention"], shape)
    assert obstacle_of(model, shape, "batch") == ""
    assert "n1" in obstacle_of(model, shape, "d") or "n2" in obstacle_of(model, shape, "d")


def test_a_softmax_of_an_old_opset_covers_all_axes_behind_its_own() -> None:
    nodes: Sequence[Node] = [("Softmax", ["x"], {"axis": 1})]
    shape = [2, 4, "d"]
    assert "n0" in obstacle_of(model_of(nodes, shape, 11), shape)
    assert obstacle_of(model_of(nodes, shape, 13), shape) == ""
