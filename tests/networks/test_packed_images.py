"""Tests operators that work on blocked channels between layers: pools, resizes and shuffles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import normal, reference
from test_compiled_libraries import built

from tests.draws import nightly_after
from tilewright.networks.compiled.image_operators import MODES, linear_taps


def between_layers(
    nodes: list[onnx.NodeProto], tensors: Mapping[str, NDArray[Any]], channels: int, last: bool
) -> onnx.ModelProto:
    """Return a model with operators between two convolutions of the accelerator.

    The operators read `c` and write `r`, with the given number of channels. The first convolution
    reads x of shape (1, 8, 9, 7). The second one exists only if `last` is set.
    """
    layers = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4)]
    behind = helper.make_node("Conv" if last else "Abs", ["r", "v"] if last else ["r"], ["y"])
    drawn = {"w": normal(channels, 8, 3, 3), "v": normal(16, channels, 1, 1, seed=1), **tensors}
    graph = helper.make_graph(
        [*layers, *nodes, behind], "between",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 9, 7))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in drawn.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def checked(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Compare the library with onnxruntime. Return the names of the functions that TVM compiled."""
    image = normal(1, 8, 9, 7, seed=5)
    result, spent = built(model, folder).run({"x": image}, layers=True)
    np.testing.assert_allclose(result["y"], reference(model, image), rtol=1e-3, atol=1e-3)
    return [name for name, _ in spent.others]


POOLS: list[tuple[str, dict[str, Any]]] = [
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 2, 1, 0]}),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("MaxPool", {"kernel_shape": [2, 2], "dilations": [3, 2], "pads": [1, 0, 0, 1]}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [0, 1, 2, 1]}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", {"kernel_shape": [9, 7]}),
]  # fmt: skip


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize(("operator", "attributes"), POOLS)
@pytest.mark.parametrize(
    "sign", ["Neg", pytest.param("Identity", marks=pytest.mark.nightly(seconds=1))]
)
def test_a_pool_is_onnxruntimes(
    operator: str, attributes: dict[str, Any], sign: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node(sign, ["c"], ["s"]),
        helper.make_node(operator, ["s"], ["r"], **attributes),
    ]  # fmt: skip
    checked(between_layers(nodes, {}, 24, last=True), tmp_path)


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize("channels", [24, pytest.param(5, marks=pytest.mark.nightly(seconds=1))])
@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("size", nightly_after(1, [((18, 20),), ((11, 4),), ((9, 1),)]))
def test_a_linear_resize_is_onnxruntimes(
    mode: str, channels: int, size: tuple[int, int], tmp_path: Path
) -> None:
    resize = helper.make_node(
        "Resize", ["c", "", "", "sizes"], ["r"], mode="linear", coordinate_transformation_mode=mode
    )
    tensors = {"sizes": np.array([1, channels, *size])}
    names = checked(between_layers([resize], tensors, channels, last=channels == 24), tmp_path)
    assert sum("resize" in name for name in names) == 2  # along rows, and along columns


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(sorted(MODES)))
def test_taps_of_a_resize_lie_in_the_image_beside_each_other(
    length: int, wanted: int, mode: str
) -> None:
    taps = linear_taps(length, wanted, mode)
    assert len(taps.first) == len(taps.second) == len(taps.share) == wanted
    assert 0 <= taps.first.min() <= taps.second.max() <= length - 1
    assert np.isin(taps.second - taps.first, (0, 1)).all()
    assert ((taps.share >= 0) & (taps.share < 1)).all()
    if length == wanted:
        ramp = np.arange(length, dtype=np.float32)
        made = ramp[taps.first] + (ramp[taps.second] - ramp[taps.first]) * taps.share
        np.testing.assert_allclose(made, ramp, atol=1e-5)


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize(("channels", "groups"), [(24, 3), (40, 4), (32, 8)])
def test_a_shuffle_of_channels_is_onnxruntimes(channels: int, groups: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["c", "apart"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["t", "whole"], ["r"]),
    ]
    tensors = {
        "apart": np.array([1, groups, channels // groups, 9, 7]),
        "whole": np.array([1, channels, 9, 7]),
    }
    names = checked(between_layers(nodes, tensors, channels, last=True), tmp_path)
    assert "shuffled" in names


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("attributes", [
    {"size": 5, "alpha": 0.3}, {"size": 3, "alpha": 2.0, "beta": 0.6, "bias": 2.5},
    {"size": 1, "alpha": 1.0, "beta": 0.75},
])  # fmt: skip
def test_a_local_response_normalisation_is_onnxruntimes(
    attributes: dict[str, float], pooled: bool, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("LRN", ["c"], ["n" if pooled else "r"], **attributes),
        helper.make_node("MaxPool", ["n"], ["r"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    names = checked(between_layers(nodes[: 1 + pooled], {}, 24, last=True), tmp_path)
    assert "local_response" in names
    assert not any("avg_pool3d" in name for name in names)


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize("channels", [16, 32, 12])
def test_channels_that_become_pixels_are_onnxruntimes(channels: int, tmp_path: Path) -> None:
    """A block of twelve channels holds several pixels, so the image is unpacked first."""
    nodes = [helper.make_node("DepthToSpace", ["c"], ["r"], blocksize=2, mode="DCR")]
    names = checked(between_layers(nodes, {}, 4 * channels, last=False), tmp_path)
    assert any("pixels_beside" in name for name in names) == (channels != 12)
