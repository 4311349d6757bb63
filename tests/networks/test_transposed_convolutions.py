"""Checks that transposed convolutions become convolutions and match onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx_graphs import reference

from tilewright import networks
from tilewright.networks.onnx.normalise import normalise


def transposed(
    data: tuple[int, ...], channels: int, kernel: tuple[int, ...], *, bias: bool, **attributes: Any
) -> onnx.ModelProto:
    """Return one transposed convolution with `channels` output channels per group."""
    groups = attributes.get("group", 1)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((data[1], channels, *kernel)).astype(np.float32)
    tensors = [numpy_helper.from_array(weight, "w")]
    if bias:
        values = rng.standard_normal(channels * groups).astype(np.float32)
        tensors.append(numpy_helper.from_array(values, "b"))
    node = helper.make_node(
        "ConvTranspose", ["x", "w", *(["b"] if bias else [])], ["y"], name="up", **attributes
    )
    graph = helper.make_graph(
        [node], "up",
        [helper.make_tensor_value_info("x", 1, data)],
        [helper.make_tensor_value_info("y", 1, [None] * len(data))],
        tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kinds(model: onnx.ModelProto) -> list[str]:
    """Return the operator types of the normal form."""
    return [node.op_type for node in normalise(model, {}).graph.node]


PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
KERNEL = st.tuples(st.integers(1, 7), st.integers(1, 7))
SIZE = st.tuples(st.integers(1, 6), st.integers(1, 6))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), KERNEL, PAIR, SIZE,
    st.booleans(), st.data(),
)  # fmt: skip
def test_the_result_is_onnxruntimes(
    n: int, c: int, groups: int, o: int, kernel: tuple[int, int], stride: tuple[int, int],
    size: tuple[int, int], bias: bool, draw: st.DataObject,
) -> None:  # fmt: skip
    pads = [
        draw.draw(st.integers(0, (h - 1) * s + k - 1)) // 2
        for h, s, k in [*zip(size, stride, kernel, strict=True)] * 2
    ]
    extra = [draw.draw(st.integers(0, s - 1)) for s in stride]
    data = (n, groups * c, *size)
    model = transposed(
        data, o, kernel, bias=bias, strides=stride, pads=pads, output_padding=extra, group=groups
    )
    _is_onnxruntimes(model, data)


@settings(max_examples=20, deadline=None)
@given(PAIR, PAIR, SIZE, st.sampled_from(("SAME_UPPER", "SAME_LOWER", "VALID")))
def test_named_padding_is_onnxruntimes(
    more: tuple[int, int], stride: tuple[int, int], size: tuple[int, int], mode: str
) -> None:
    kernel = stride[0] + more[0] - 1, stride[1] + more[1] - 1
    data = (1, 2, *size)
    _is_onnxruntimes(transposed(data, 3, kernel, bias=True, strides=stride, auto_pad=mode), data)


def _is_onnxruntimes(model: onnx.ModelProto, data: tuple[int, ...]) -> None:
    """Check that a convolution replaces the operator and computes the same."""
    x = np.random.default_rng(1).standard_normal(data).astype(np.float32)
    normal = normalise(model, {}).model
    assert "ConvTranspose" not in {node.op_type for node in normal.graph.node}
    result, want = reference(normal, x), reference(model, x)
    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kernel", "stride", "groups"), [(16, 8, 1), (4, 2, 2), (3, 2, 1)])
def test_sequences_become_images(kernel: int, stride: int, groups: int) -> None:
    data = (2, 6, 9)
    pads = [(kernel - stride) // 2] * 2
    model = transposed(
        data, 4, (kernel,), bias=True, strides=[stride], pads=pads, output_padding=[1], group=groups
    )
    _is_onnxruntimes(model, data)


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "size", "taps"),
    [
        # even output pixels have one kernel position, odd ones have two
        ((3, 3), (2, 2), (1, 1, 1, 1), (8, 8), [(1, 1), (1, 2), (2, 1), (2, 2)]),
        ((4, 4), (2, 2), (1, 1, 1, 1), (4, 4), [(2, 2)] * 4),  # nothing is cut off
        ((4, 4), (2, 2), (1, 1, 1, 1), (32, 32), [(2, 2)]),  # a row is cut off
        ((4, 4), (1, 1), (0, 0, 0, 0), (1, 1), [(1, 1)]),  # a matrix product
        ((2, 2), (2, 2), (0, 0, 0, 0), (16, 16), [(1, 1)]),
    ],
)
def test_no_tap_is_multiplied_for_nothing(
    kernel: tuple[int, int], stride: tuple[int, int], pads: tuple[int, ...],
    size: tuple[int, int], taps: list[tuple[int, int]],
) -> None:  # fmt: skip
    model = transposed((1, 8, *size), 8, kernel, bias=True, strides=stride, pads=pads)
    nodes = [node for node in normalise(model, {}).graph.node if node.op_type == "Conv"]
    ints = [tuple(a.ints) for node in nodes for a in node.attribute if a.name == "kernel_shape"]
    assert ints == taps
    assert nodes[0].name == "up"


def test_tvm_runs_what_it_became(tmp_path: Path) -> None:
    path = tmp_path / "up.onnx"
    model = transposed((2, 6, 5, 7), 4, (4, 4), bias=True, strides=[2, 2], pads=[1, 1, 1, 1])
    path.write_bytes(model.SerializeToString())
    x = np.random.default_rng(1).standard_normal((2, 6, 5, 7)).astype(np.float32)
    result = networks.load(str(path)).run({"x": x})["y"]
    np.testing.assert_allclose(result, reference(model, x), rtol=1e-4, atol=1e-5)
    assert "ConvTranspose" not in kinds(model)


def test_dilated_ones_stay() -> None:
    model = transposed((1, 4, 5, 5), 2, (2, 2), bias=False, strides=[2, 2], dilations=[2, 2])
    assert kinds(model) == ["ConvTranspose"]
