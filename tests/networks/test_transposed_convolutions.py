"""Checks that transposed convolutions run as convolutions, and give what onnxruntime gives."""

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
from tilewright.networks.normalise import normalise


def transposed(
    data: tuple[int, ...], channels: int, kernel: tuple[int, int], *, bias: bool, **attributes: Any
) -> onnx.ModelProto:
    """One transposed convolution of images with seeded weights."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((data[1], channels, *kernel)).astype(np.float32)
    tensors = [numpy_helper.from_array(weight, "w")]
    if bias:
        values = rng.standard_normal(channels).astype(np.float32)
        tensors.append(numpy_helper.from_array(values, "b"))
    node = helper.make_node(
        "ConvTranspose", ["x", "w", *(["b"] if bias else [])], ["y"], name="up", **attributes
    )
    graph = helper.make_graph(
        [node], "up",
        [helper.make_tensor_value_info("x", 1, data)],
        [helper.make_tensor_value_info("y", 1, [None] * 4)],
        tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kinds(model: onnx.ModelProto) -> list[str]:
    """Types of the operators in the normal form."""
    return [node.op_type for node in normalise(model, {}).graph.node]


PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 5), st.integers(1, 4), PAIR, PAIR,
    st.tuples(st.integers(1, 6), st.integers(1, 6)), st.booleans(), st.data(),
)  # fmt: skip
def test_the_result_is_onnxruntimes(
    n: int, c: int, o: int, taps: tuple[int, int], stride: tuple[int, int],
    size: tuple[int, int], bias: bool, draw: st.DataObject,
) -> None:  # fmt: skip
    kernel = taps[0] * stride[0], taps[1] * stride[1]
    pads = [
        draw.draw(st.integers(0, (h - 1) * s + k - 1)) // 2
        for h, s, k in [*zip(size, stride, kernel, strict=True)] * 2
    ]
    extra = [draw.draw(st.integers(0, s - 1)) for s in stride]
    data = (n, c, *size)
    model = transposed(data, o, kernel, bias=bias, strides=stride, pads=pads, output_padding=extra)
    x = np.random.default_rng(1).standard_normal(data).astype(np.float32)
    fits = all(more <= after for more, after in zip(extra, pads[2:], strict=True))
    normal = normalise(model, {}).model
    assert any(node.op_type == "ConvTranspose" for node in normal.graph.node) != fits
    found, want = reference(normal, x), reference(model, x)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_tvm_runs_what_it_became(tmp_path: Path) -> None:
    path = tmp_path / "up.onnx"
    model = transposed((2, 6, 5, 7), 4, (4, 4), bias=True, strides=[2, 2], pads=[1, 1, 1, 1])
    path.write_bytes(model.SerializeToString())
    x = np.random.default_rng(1).standard_normal((2, 6, 5, 7)).astype(np.float32)
    found = networks.load(str(path)).run({"x": x})["y"]
    np.testing.assert_allclose(found, reference(model, x), rtol=1e-4, atol=1e-5)
    assert "ConvTranspose" not in kinds(model)


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2], "dilations": [2, 2]},
        {"strides": [3, 3]},
        {"strides": [2, 2], "group": 2},
    ],
    ids=("dilation", "a stride that does not divide the kernel", "groups"),
)
def test_others_stay(attributes: dict[str, Any]) -> None:
    model = transposed((1, 4, 5, 5), 2, (2, 2), bias=False, **attributes)
    assert kinds(model) == ["ConvTranspose"]
