"""Checks that one command reads, normalises and imports a model only once.

Shape inference must not read the weights.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, shape_inference
from onnx_graphs import model, normal

from tests.tune_bare import tune_bare
from tilewright.core.files import unpack_arrays
from tilewright.flows.build import build_artifact
from tilewright.networks import zoo
from tilewright.networks.importing import fused_calls
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.network import Network
from tilewright.networks.onnx.normalise import fixed_graph, make_importable, normalise
from tilewright.networks.onnx.size_limits import SMALL_ELEMENTS, infer_types
from tilewright.networks.quantisation.bn_folding import fold_batch_norms
from tilewright.networks.quantisation.plan import plan_layers
from tilewright.networks.quantisation.quantise import calls_behind_folding
from tilewright.networks.relax.importer import import_onnx
from tilewright.search import LocalRunner
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.network import _network


@contextmanager
def counted(*functions: Callable[..., Any]) -> Iterator[Counter[str]]:
    """Count the calls of the given functions in all threads of this process."""
    names = {function.__code__: function.__name__ for function in functions}
    calls: Counter[str] = Counter()

    def heed(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1

    before = sys.getprofile()
    threading.setprofile(heed)
    sys.setprofile(heed)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


def normed_net() -> onnx.ModelProto:
    """Return a residual block with a BatchNorm after each convolution, and a classifier."""
    tensors = {"w": normal(4, 16) / 4, "b": normal(4, seed=1)}
    nodes = []
    for name, source in (("one", "x"), ("two", "one.relu")):
        tensors[f"{name}.w"] = normal(16, 16, 3, 3, seed=2) / 12
        for place, part in enumerate(("gamma", "beta", "mean", "var")):
            tensors[f"{name}.{part}"] = np.abs(normal(16, seed=place)) + np.float32(0.5)
        norm = [f"{name}.conv", *(f"{name}.{part}" for part in ("gamma", "beta", "mean", "var"))]
        nodes += [
            helper.make_node(
                "Conv", [source, f"{name}.w"], [f"{name}.conv"], name=name, pads=[1, 1, 1, 1]
            ),
            helper.make_node("BatchNormalization", norm, [f"{name}.norm"], name=f"{name}.norm"),
            helper.make_node("Relu", [f"{name}.norm"], [f"{name}.relu"], name=f"{name}.relu"),
        ]
    nodes += [
        helper.make_node("Add", ["two.relu", "x"], ["sum"], name="sum"),
        helper.make_node("GlobalAveragePool", ["sum"], ["mean"], name="mean"),
        helper.make_node("Flatten", ["mean"], ["flat"], name="flat"),
        helper.make_node("Gemm", ["flat", "w", "b"], ["y"], name="fc", transB=1),
    ]
    return model(nodes, tensors, (1, 16, 8, 8), "y")


@pytest.mark.slow(seconds=8)
def test_a_build_for_an_accelerator_imports_the_network_and_its_int8_form(tmp_path: Path) -> None:
    onnx.save(normed_net(), tmp_path / "net.onnx")
    options = BuildOptions(model=str(tmp_path / "net.onnx"), out=tmp_path / "art", trials=0)
    with counted(fixed_graph, normalise, import_onnx, unpack_arrays) as calls:
        build_artifact(LocalRunner(), options)
    assert calls == {"fixed_graph": 1, "import_onnx": 2}


@pytest.mark.slow(seconds=8)
def test_a_build_for_a_processor_imports_the_network_once(tmp_path: Path) -> None:
    options = BuildOptions(model="digits_cnn", out=tmp_path / "art", target="cpu", trials=0)
    with counted(fixed_graph, normalise, make_importable, import_onnx, unpack_arrays) as calls:
        build_artifact(LocalRunner(), options)
    assert calls == {"fixed_graph": 1, "make_importable": 1, "import_onnx": 1}


def test_a_run_imports_the_network_once(tmp_path: Path) -> None:
    _network.cache_clear()  # an earlier test of this process may have tuned the same network
    with counted(fixed_graph, normalise, make_importable, import_onnx) as calls:
        tune_bare(model="digits_cnn", out=str(tmp_path / "run"), tuner="random", trials=1, batch=1)
    assert calls == {"fixed_graph": 1, "make_importable": 1, "import_onnx": 1}


@pytest.mark.parametrize("network", ["digits_cnn", "normed"])
def test_the_calls_of_a_network_are_those_of_its_folded_form(network: str) -> None:
    source = normed_net() if network == "normed" else zoo.build(network)
    calls = Network(OnnxSource(network, source, lambda: source, {})).examined.found.calls
    folded = fold_batch_norms(fixed_graph(source, {}))
    known = calls_behind_folding(calls, folded)
    assert known is not None
    assert [node.op_type for node in folded.normal.graph.node].count("BatchNormalization") == 0
    imported = plan_layers(folded.normal, fused_calls(folded.normal), ())
    assert plan_layers(folded.normal, known, ()) == imported


def test_calls_are_looked_for_again_where_folding_changes_more_than_norms() -> None:
    """A multiplication per channel is folded into the weights, but only in the ONNX graph.

    TVM's import of the original model would keep the multiplication.
    """
    tensors = {"w": normal(16, 16, 1, 1), "factors": normal(16, 1, 1, seed=1)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], name="conv"),
        helper.make_node("Mul", ["conv", "factors"], ["scaled"], name="scaled"),
        helper.make_node("Relu", ["scaled"], ["y"], name="relu"),
    ]
    source = model(nodes, tensors, (1, 16, 8, 8), "y")
    calls = Network(OnnxSource("scaled", source, lambda: source, {})).examined.found.calls
    folded = fold_batch_norms(fixed_graph(source, {}))
    assert [node.name for node in folded.normal.graph.node] == ["conv", "relu"]
    assert calls_behind_folding(calls, folded) is None


def test_an_examined_network_is_split_without_reading_its_weights() -> None:
    reads = []

    def weighted() -> onnx.ModelProto:
        reads.append(1)
        return zoo.build("digits_cnn")

    source = OnnxSource("digits_cnn", zoo.build("digits_cnn", weights=False), weighted, {})
    source.examine()
    assert source.split() == (source, None)
    assert not reads
    other = source.refusing({"conv1": "of a test"})  # its examination is not reused
    other.split()
    assert reads == [1]


@pytest.mark.parametrize("name", ["digits_cnn", "resnet18", "bert_tiny"])
def test_shapes_inferred_without_weights_are_those_that_onnx_infers_with_them(name: str) -> None:
    model = zoo.build(name)
    assert infer_types(model) == shape_inference.infer_shapes(model)


def test_values_of_small_tensors_decide_shapes_and_large_ones_keep_their_data() -> None:
    shape = numpy_helper.from_array(np.array([2, -1], np.int64), "shape")
    weight = numpy_helper.from_array(np.ones((4, SMALL_ELEMENTS), np.float32), "weight")
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "weight"], ["y"]),
                helper.make_node("Reshape", ["y", "shape"], ["z"]),
            ],
            "net",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 4])],
            [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)],
            [shape, weight],
        )
    )
    inferred = infer_types(model)
    sizes = [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim]
    assert sizes == [2, 3 * SMALL_ELEMENTS // 2]
    assert list(inferred.graph.initializer) == [shape, weight]
    assert [info.name for info in inferred.graph.input] == ["x"]
