"""Checks that normalisation changes the form of a graph, but not its outputs in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_graphs import model, normal, reference

from tilewright import networks
from tilewright.networks import zoo
from tilewright.networks.compiled.layers import kernel_layers
from tilewright.networks.onnx.files import without_weights
from tilewright.networks.onnx.normalise import normalise
from tilewright.targets import make_target


def _types(source: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in source.graph.node]


@settings(max_examples=25)
@given(
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 3),
    mode=st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
)
def test_automatic_padding_becomes_the_explicit_one(
    size: tuple[int, int], kernel: tuple[int, int], stride: int, mode: str
) -> None:
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], strides=[stride] * 2, auto_pad=mode, kernel_shape=kernel
    )
    source = model([node], {"w": normal(2, 1, *kernel)}, (1, 1, *size), "y")
    explicit = normalise(source, {}).model
    assert "auto_pad" not in [a.name for a in explicit.graph.node[0].attribute]
    x = normal(1, 1, *size, seed=1)
    np.testing.assert_allclose(reference(explicit, x), reference(source, x), atol=1e-5)


def test_a_pad_with_zeros_becomes_padding_of_the_convolution() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "amounts"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["y"], pads=[0, 1, 0, 0]),
    ]
    tensors = {"w": normal(2, 1, 3, 3), "amounts": np.array([0, 0, 1, 2, 0, 0, 0, 1])}
    source = model(nodes, tensors, (1, 1, 6, 6), "y")
    merged = normalise(source, {}).model
    assert _types(merged) == ["Conv"]
    x = normal(1, 1, 6, 6)
    np.testing.assert_allclose(reference(merged, x), reference(source, x), atol=1e-5)


def test_a_pad_with_another_value_stays() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "amounts", "one"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    tensors = {
        "w": normal(2, 1, 3, 3), "amounts": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "one": np.float32(1),
    }  # fmt: skip
    source = model(nodes, {k: np.asarray(v) for k, v in tensors.items()}, (1, 1, 6, 6), "y")
    assert _types(normalise(source, {}).model) == ["Pad", "Conv"]


def test_shape_arithmetic_and_pass_throughs_vanish() -> None:
    """Exporters write these nodes for `x.view(x.shape[0], -1)` after a dropout."""
    nodes = [
        helper.make_node("Dropout", ["x"], ["d"]),
        helper.make_node("Shape", ["d"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["d", "target"], ["r"]),
        helper.make_node("Identity", ["r"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    tensors = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    source = model(nodes, tensors, ("batch", 3, 4), "y")
    flat = normalise(source, {"x": (2, 3, 4)})
    assert _types(flat.model) == ["Reshape", "Relu"]
    assert flat.shapes()["y"] == (2, 12)
    assert len(flat.operators) == 8


def test_the_normal_form_without_weights_is_the_one_with_them() -> None:
    full = normalise(zoo.build("resnet18"), {})
    bare = normalise(zoo.build("resnet18", weights=False), {})
    stripped = normalise(without_weights(zoo.build("resnet18")), {})
    for other in (bare, stripped):
        assert list(other.graph.node) == list(full.graph.node)
        assert other.shapes() == full.shapes()
        assert other.absorbed == full.absorbed
    assert stripped.model.ByteSize() < 200_000


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_sums_become_additions_that_keep_their_name(count: int) -> None:
    weights = {f"w{place}": normal(1, 3, 1, 1, seed=place) for place in range(count - 1)}
    nodes = [
        helper.make_node("Sum", ["x", *weights], ["s"], name="total"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
    ]
    source = model(nodes, weights, (1, 3, 4, 4), "y")
    result = normalise(source, {})
    assert _types(result.model) == ["Add"] * (count - 1) + ["Relu"]
    assert count == 1 or "total" in [node.name for node in result.graph.node]
    x = normal(1, 3, 4, 4, seed=9)
    np.testing.assert_array_equal(reference(result.model, x), reference(source, x))


def test_a_sum_is_added_to_its_layer(tmp_path: Path) -> None:
    """Before, the addition was a separate function between two layout changes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Sum", ["c", "x"], ["s"], name="total"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
    ]
    source = model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 6, 6), "y")
    onnx.save(source, tmp_path / "net.onnx")
    whole = networks.load(str(tmp_path / "net.onnx")).whole
    (layer,) = kernel_layers(whole.flat, make_target("cpu").space)
    assert list(layer.names) == ["conv", "total", "relu"]
