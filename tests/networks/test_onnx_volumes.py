"""Compares convolutions of volumes, which run as convolutions of images, with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from onnx_graphs import model, normal, reference
from test_compiled_libraries import built, close

from tilewright import networks
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.onnx.files import stub
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.quantisation import quantise
from tilewright.targets.capabilities import Blocks

Tensors = Mapping[str, NDArray[Any]]


def _node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"{kind}_{output}", **attributes)


def _kinds(source: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in normalise(source, {}).graph.node]


def _check(source: onnx.ModelProto, *shape: int) -> onnx.ModelProto:
    """Normalise the model, check that the outputs are equal, and return the normal form."""
    x, rewritten = normal(*shape, seed=1), normalise(source, {}).model
    np.testing.assert_allclose(reference(rewritten, x), reference(source, x), rtol=1e-4, atol=1e-5)
    return rewritten


def _on_images(rewritten: onnx.ModelProto) -> bool:
    """Return whether all convolutions and pools read images instead of volumes."""
    shapes = {info.name: info for info in (*rewritten.graph.value_info, *rewritten.graph.input)}
    windowed = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
    return all(
        len(shapes[node.input[0]].type.tensor_type.shape.dim) == 4
        for node in rewritten.graph.node
        if node.op_type in windowed
    )


THREE = st.integers(1, 3)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 2),
    size=st.tuples(st.integers(3, 6), st.integers(4, 6), st.integers(4, 6)),
    kernel=st.tuples(THREE, THREE, THREE),
    strides=st.tuples(THREE, THREE, THREE),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2), st.just(1)),
    pads=st.tuples(*[st.integers(0, 2)] * 6),
    groups=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
)
def test_a_convolution_of_volumes_is_one_of_images(
    n: int, size: tuple[int, int, int], kernel: tuple[int, ...], strides: tuple[int, ...],
    dilations: tuple[int, ...], pads: tuple[int, ...], groups: int, bias: bool,
) -> None:  # fmt: skip
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = tuple(max(p, r - s) for p, r, s in zip(pads, reach * 2, size * 2, strict=True))
    conv = _node(
        "Conv", "x w b" if bias else "x w", "y",
        strides=strides, dilations=dilations, pads=pads, group=groups,
    )  # fmt: skip
    tensors = {"w": normal(8, 4 // groups, *kernel)} | ({"b": normal(8)} if bias else {})
    rewritten = _check(model([conv], tensors, (n, 4, *size), "y"), n, 4, *size)
    assert _on_images(rewritten)
    assert "Conv_y" in {node.name for node in rewritten.graph.node}


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 2),
    size=st.tuples(*[st.integers(3, 7)] * 3),
    kernel=st.tuples(THREE, THREE, THREE),
    strides=st.tuples(THREE, THREE, THREE),
    ceil=st.integers(0, 1),
    data=st.data(),
)
def test_a_maximum_of_volumes_is_one_of_images(
    n: int, size: tuple[int, int, int], kernel: tuple[int, ...], strides: tuple[int, ...],
    ceil: int, data: st.DataObject,
) -> None:  # fmt: skip
    pads = [data.draw(st.integers(0, k - 1)) for k in kernel * 2]
    nodes = [
        _node("Conv", "x w", "a"),
        _node("MaxPool", "a", "y", kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=ceil),
    ]
    _check(model(nodes, {"w": normal(4, 2, 1, 1, 1)}, (n, 2, *size), "y"), n, 2, *size)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 2), depth=st.integers(1, 3), groups=st.sampled_from([1, 2]),
    begin=st.integers(0, 1), end=st.integers(0, 1), bias=st.booleans(),
)  # fmt: skip
def test_a_transposed_convolution_as_deep_as_its_stride_is_one_of_images(
    n: int, depth: int, groups: int, begin: int, end: int, bias: bool
) -> None:
    up = _node(
        "ConvTranspose", "x w b" if bias else "x w", "y", group=groups,
        strides=[depth, 2, 2], pads=[begin, 1, 0, end, 0, 0],
    )  # fmt: skip
    tensors = {"w": normal(4, 3, depth, 2, 4)} | ({"b": normal(3 * groups)} if bias else {})
    rewritten = _check(model([up], tensors, (n, 4, 3, 4, 5), "y"), n, 4, 3, 4, 5)
    assert _on_images(rewritten) == (groups == 1 and begin == end == 0)


NORM = {"scale": normal(8), "shift": normal(8), "mean": normal(8), "variance": np.ones(8, "f")}
CHAIN = [
    _node("Conv", "x w", "a", pads=[1, 1, 1, 1, 1, 1]),
    _node("BatchNormalization", "a scale shift mean variance", "b"),
    _node("Relu", "b", "c"),
    _node("MaxPool", "c", "d", kernel_shape=[1, 3, 3], strides=[1, 2, 2], pads=[0, 1, 1, 0, 1, 1]),
    _node("Mul", "d gains", "e"),
    _node("Conv", "e w2", "f", auto_pad="SAME_UPPER"),
    _node("Add", "f d", "g"),
    _node("PRelu", "g slopes", "h"),
    _node("AveragePool", "h", "i", kernel_shape=[1, 2, 2]),
    _node("Concat", "i i", "j", axis=1),
]
CHAIN_TENSORS = {
    "w": normal(8, 4, 3, 3, 3), "w2": normal(8, 8, 3, 3, 3, seed=1), "slopes": normal(8, 1, 1, 1),
    "gains": normal(1, 8, 1, 1, 1, seed=2), "two": np.array(2.0, "f"), **NORM,
    "deep": normal(4, 1, 1), "across": normal(1, 3, seed=3), "w3": normal(4, 16, 1, 1, 1),
}  # fmt: skip
TAILS = {
    "nothing": [_node("Identity", "j", "y")],
    "pooled": [_node("GlobalAveragePool", "j", "k"), _node("Flatten", "k", "y")],
    "mean": [_node("ReduceMean", "j", "y", axes=[2, 3, 4], keepdims=0)],
    "deep average": [_node("AveragePool", "j", "y", kernel_shape=[2, 2, 2])],
    "a gate": [
        _node("GlobalAveragePool", "j", "k"), _node("Sigmoid", "k", "l"), _node("Mul", "j l", "y"),
    ],
    "numbers": [_node("Mul", "j two", "k"), _node("Add", "k across", "y")],
    "frames that differ": [_node("Add", "j deep", "y")],
    "another axis": [_node("Concat", "j j", "y", axis=2)],
    "instances": [
        _node("Conv", "j w3", "k"), _node("InstanceNormalization", "k four four", "y"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("tail", TAILS)
def test_a_chain_changes_its_shape_where_it_begins_and_ends(n: int, tail: str) -> None:
    tensors = {**CHAIN_TENSORS, "four": normal(4)}
    source = model([*CHAIN, *TAILS[tail]], tensors, (n, 4, 4, 7, 7), "y")
    rewritten = _check(source, n, 4, 4, 7, 7)
    moves = [node.op_type for node in rewritten.graph.node].count("Transpose")
    assert moves == (4 if tail == "a gate" and n == 1 else 2)


def _small(x: Sequence[int]) -> onnx.ModelProto:
    """Return a volume network: strides, a shortcut, groups, pools, a transposed convolution."""
    nodes = [
        _node("Conv", "x stem", "a", pads=[1, 1, 1, 1, 1, 1], strides=[1, 2, 2]),
        _node("Relu", "a", "b"),
        _node("Conv", "b w", "c", pads=[1, 1, 1, 1, 1, 1]),
        _node("Add", "c b", "d"),
        _node("Conv", "d deep", "e", pads=[1, 1, 1, 1, 1, 1], group=16),
        _node("Relu", "e", "f"),
        _node("MaxPool", "f", "g", kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
        _node("Conv", "g frames", "h", strides=[2, 1, 1]),
        _node("ConvTranspose", "g up", "i", strides=[2, 2, 2]),
        _node("Concat", "i f", "j", axis=1),
        _node("Conv", "j last", "k", pads=[1, 0, 0, 1, 0, 0]),
        _node("GlobalAveragePool", "h", "l"),
        _node("Mul", "k l", "y"),
    ]
    tensors = {
        "stem": normal(16, 3, 3, 3, 3), "w": normal(16, 16, 3, 3, 3) / 9,
        "deep": normal(16, 1, 3, 3, 3), "frames": normal(8, 16, 1, 1, 1),
        "up": normal(16, 16, 2, 2, 2) / 4, "last": normal(8, 32, 3, 1, 1),
    }  # fmt: skip
    return model(nodes, tensors, x, "y")


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("n", [1, 2])
def test_a_library_of_volumes_gives_what_onnxruntime_gives(n: int, tmp_path: Path) -> None:
    source, x = _small((n, 3, 4, 16, 16)), normal(n, 3, 4, 16, 16, seed=1)
    artifact = built(source, tmp_path)
    (ours,) = artifact.infer({"x": x}).values()
    assert close(ours, reference(source, x))
    names = {row["name"] for row in artifact.rows}
    assert {node.name for node in source.graph.node if node.op_type.startswith("Conv")} <= names


def test_weights_without_data_have_the_shapes_of_those_with() -> None:
    source = _small((1, 3, 4, 16, 16))
    whole = normalise(source, {})
    for tensor in source.graph.initializer:
        tensor.CopyFrom(stub(tensor.name, tensor.dims, tensor.data_type))
    bare = normalise(source, {})
    assert bare.shapes() == whole.shapes()
    assert [node.name for node in bare.graph.node] == [node.name for node in whole.graph.node]


OTHERS: Mapping[str, tuple[list[onnx.NodeProto], Tensors]] = {
    "weights that are computed": (
        [_node("Relu", "w", "v"), _node("Conv", "x v", "y")], {"w": normal(2, 4, 2, 2, 2)},
    ),
    "images": ([_node("Squeeze", "x axes", "i"), _node("Conv", "i w", "y")],
               {"w": normal(2, 4, 2, 2), "axes": np.array([2])}),
    "pools alone": ([_node("MaxPool", "x", "y", kernel_shape=[1, 2, 2])], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    nodes, tensors = OTHERS[name]
    depth = 1 if name == "images" else 3
    source = model(nodes, tensors, (1, 4, depth, 5, 5), "y")
    assert _kinds(source) == [node.op_type for node in nodes]
    _check(source, 1, 4, depth, 5, 5)


def test_an_accelerator_takes_convolutions_of_volumes(tmp_path: Path) -> None:
    """This includes quantised ones. The CPU gathers the neighbouring frames."""
    nodes = [
        _node("Conv", "x w", "a", pads=[1, 1, 1, 1, 1, 1]), _node("Relu", "a", "b"),
        _node("Conv", "b w2", "y"),
    ]  # fmt: skip
    tensors = {"w": normal(16, 16, 3, 3, 3), "w2": normal(16, 16, 3, 1, 1)}
    source = model(nodes, tensors, (1, 16, 3, 8, 8), "y")
    onnx.save(source, tmp_path / "m.onnx")
    report = networks.load(tmp_path / "m.onnx").report(16, 16)
    assert report.offloaded_macs == report.total_macs == 3 * 64 * 16 * 16 * 27 + 64 * 16 * 16 * 3
    graph = integer_graph(quantise(source).model, Blocks(1, 16, 16))
    assert [layer.operator for layer in graph.layers] == ["Conv", "Conv"]
