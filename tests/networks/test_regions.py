"""Tests networks of which onnxruntime runs some regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import normal

import tilewright
from tilewright import networks
from tilewright.flows.build import build_artifact
from tilewright.networks.artifact import ArtifactError, CompiledArtifact, load
from tilewright.networks.artifact.regions import refuse_regions
from tilewright.networks.artifact.run import as_arrays
from tilewright.networks.errors import InputError, ModelFileError, UnsupportedOperatorError
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.onnx.graph import NormalGraph
from tilewright.networks.partition.region_models import collapse, region_model
from tilewright.networks.partition.region_session import RegionCalls, RegionSession
from tilewright.networks.partition.regions import find_regions
from tilewright.networks.partition.supported_forms import FormTable, supported_forms
from tilewright.reports.artifact import built_lines
from tilewright.search import LocalRunner
from tilewright.targets import make_target
from tilewright.tuning import build_cpu_library
from tilewright.tuning.build_artifact import read_model
from tilewright.tuning.build_options import BuildOptions

SHAPE = (1, 3, 32, 32)


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, name: str, value: object) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, name: str, inputs: list[str], **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, name: str, out: int, into: int, kernel: int, stride: int) -> str:
        drawn = np.random.default_rng(len(self.tensors)).standard_normal(
            (out, into, kernel, kernel)
        )
        scaled = (drawn / np.sqrt(into * kernel**2)).astype(np.float32)
        weight = self.constant(f"{name}.weight", scaled)
        pad = kernel // 2
        return self.op("Conv", name, [x, weight], strides=[stride] * 2, pads=[pad] * 4)


def detector(path: Path) -> Path:
    """Write a detector with boxes, scores and NonMaxSuppression, and return its path.

    The number of kept boxes is known only when the model runs. The scores are an output too, and
    the image is read again after the boxes.
    """
    net = _Graph()
    x = net.op("Relu", "relu1", [net.conv("image", "conv1", 16, 3, 3, 2)])
    x = net.op("Relu", "relu2", [net.conv(x, "conv2", 32, 16, 3, 2)])
    shape = net.constant("box_shape", np.array([1, 4, 64]))
    boxes = net.op("Reshape", "boxes4", [net.conv(x, "box", 4, 32, 1, 1), shape])
    boxes = net.op("Transpose", "boxes", [boxes], perm=[0, 2, 1])
    shape = net.constant("score_shape", np.array([1, 3, 64]))
    scores = net.op("Reshape", "scores3", [net.conv(x, "score", 3, 32, 1, 1), shape])
    scores = net.op("Sigmoid", "scores", [scores])
    limits = [
        net.constant("most", np.array([60])), net.constant("overlap", np.array([0.3], np.float32)),
        net.constant("least", np.array([0.1], np.float32)),
    ]  # fmt: skip
    kept = net.op("NonMaxSuppression", "nms", [boxes, scores, *limits])
    index = net.op("Gather", "index", [kept, net.constant("column", np.array(2))], axis=1)
    mean = net.op("GlobalAveragePool", "mean", ["image"])
    rows = net.op("Shape", "rows", [index])
    count = net.op("Cast", "count", [rows], to=TensorProto.FLOAT)
    net.op("Add", "both", [mean, count])
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes, "detector", [of("image", TensorProto.FLOAT, SHAPE)],
        [of("index", TensorProto.INT64, ("kept",)), of("scores", TensorProto.FLOAT, (1, 3, 64)),
         of("both", TensorProto.FLOAT, (1, 3, 1, 1))],
        net.tensors,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _graph(
    nodes: list[onnx.NodeProto], outputs: dict[str, int], shape: object = (2, 3)
) -> NormalGraph:
    """Return a graph with the input `x` of shape (2, 3) and the given outputs with their types."""
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "graph", [of("x", TensorProto.FLOAT, (2, 3))],
        [of(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.ones((3, 3), np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return NormalGraph(onnx.shape_inference.infer_shapes(model), ())


def _save(graph: onnx.GraphProto, path: Path) -> None:
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def _node(kind: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    name = outputs.split()[0]
    return helper.make_node(kind, inputs.split(), outputs.split(), name=name, **attributes)


def _found(nodes: list[onnx.NodeProto], outside: str, **outputs: int) -> list[tuple[str, bool]]:
    """Return the operators of each region, and whether the region runs last."""
    named = outputs or {nodes[-1].output[0]: TensorProto.FLOAT}
    regions = find_regions(_graph(nodes, named), dict.fromkeys(outside.split(), "not compiled"))
    return [(" ".join(region.nodes), region.last) for region in regions]


def test_regions_lie_anywhere_and_what_nothing_compiled_reads_runs_last() -> None:
    nodes = [
        _node("Erf", "x", "first"), _node("MatMul", "first w", "a"), _node("Erf", "a", "mid"),
        _node("MatMul", "mid w", "b"), _node("Erf", "b", "end"),
    ]  # fmt: skip
    assert _found(nodes, "first mid end") == [("first", False), ("mid", False), ("end", True)]


def test_adjacent_operators_share_a_region_and_parallel_ones_do_not() -> None:
    nodes = [
        _node("Erf", "x", "p"), _node("Sin", "p", "q"), _node("Cos", "x", "r"),
        _node("MatMul", "q w", "a"), _node("MatMul", "r w", "b"), _node("Add", "a b", "y"),
    ]  # fmt: skip
    assert _found(nodes, "p q r") == [("p q", False), ("r", False)]


def test_operators_around_a_compiled_one_do_not_share_a_region() -> None:
    nodes = [
        _node("Erf", "x", "p"), _node("MatMul", "p w", "a"), _node("Add", "p a", "q"),
        _node("MatMul", "q w", "y"),
    ]  # fmt: skip
    assert _found(nodes, "p q") == [("p", False), ("q", False)]


def test_small_operators_join_the_regions_beside_them_where_that_saves_a_transfer() -> None:
    nodes = [
        _node("MatMul", "x w", "a"), _node("Erf", "a", "p"), _node("Relu", "p", "small"),
        _node("Erf", "small", "q"), _node("MatMul", "q w", "y"),
    ]  # fmt: skip
    assert _found(nodes, "p q") == [("p small q", False)]
    nodes[2] = _node("MatMul", "p w", "small")
    assert _found(nodes, "p q") == [("p", False), ("q", False)]


def test_a_tensor_whose_shape_depends_on_values_stays_in_one_region() -> None:
    nodes = [
        _node("MatMul", "x w", "a"), _node("NonZero", "a", "places"),
        _node("ReduceSum", "places", "sum", keepdims=0), _node("Cast", "sum", "number", to=1),
        _node("Mul", "a number", "b"), _node("MatMul", "b w", "y"),
    ]  # fmt: skip
    assert _found(nodes, "") == [("places sum number", False)] or _found(nodes, "") == [
        ("places sum", False)
    ]


def test_an_output_whose_shape_depends_on_values_keeps_all_behind_it_from_being_compiled() -> None:
    nodes = [
        _node("MatMul", "x w", "a"), _node("NonZero", "a", "places"),
        _node("ReduceSum", "places", "sum", keepdims=0), _node("Cast", "sum", "number", to=1),
        _node("Mul", "a number", "b"), _node("MatMul", "b w", "y"),
    ]  # fmt: skip
    result = _found(nodes, "", places=TensorProto.INT64, y=TensorProto.FLOAT)
    assert result == [("places sum number b y", True)]


def test_operators_that_exchange_a_shape_of_values_run_after_all_that_they_read() -> None:
    nodes = [
        _node("NonZero", "x", "places"), _node("MatMul", "x w", "a"),
        _node("ReduceSum", "a", "total", keepdims=0), _node("Cast", "total", "whole", to=7),
        _node("Add", "places whole", "moved"), _node("ReduceMax", "moved", "most", keepdims=0),
        _node("Cast", "most", "number", to=1), _node("Mul", "a number", "b"),
        _node("MatMul", "b w", "y"),
    ]  # fmt: skip
    graph = _graph(nodes, {"y": TensorProto.FLOAT})
    (region,) = find_regions(graph, {})
    assert {"places", "moved"} <= set(region.nodes)
    assert not region.last
    normal = collapse(graph, [region])
    assert [node.op_type for node in normal.graph.node].count("Region") == 1
    onnx.checker.check_model(region_model(graph, region).model)


def _everything_but(monkeypatch: pytest.MonkeyPatch, *operators: str) -> None:
    """Remove the forms of some operators from the table of supported forms."""
    table = supported_forms()
    kept = FormTable(form for form in table.forms if form.operator not in operators)
    monkeypatch.setattr("tilewright.networks.importing.supported_forms", lambda: kept)


def _layers_around(kind: str, **attributes: object) -> onnx.ModelProto:
    """Return a model with an operator between two convolutions."""
    net = _Graph()
    x = net.op(kind, "odd", [net.conv("image", "conv1", 16, 3, 3, 2)], **attributes)
    net.conv(x, "conv2", 8, 16, 3, 2)
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes, "around", [of("image", TensorProto.FLOAT, SHAPE)],
        [of("conv2", TensorProto.FLOAT, (1, 8, 8, 8))], net.tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow(seconds=8)
def test_an_operator_between_two_layers_runs_in_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _everything_but(monkeypatch, "Erf")
    model = _layers_around("Erf")
    onnx.save(model, tmp_path / "m.onnx")
    options = BuildOptions(
        model=str(tmp_path / "m.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    made = build_artifact(LocalRunner(), options)
    (region,) = made.manifest["regions"]
    assert [cause["name"] for cause in region["causes"]] == ["odd"]
    assert not region["last"]
    assert len(made.manifest["layers"]) == 2
    lines = "\n".join(built_lines(made.manifest, tmp_path / "art"))
    assert "onnxruntime runs 1 operator" in lines
    assert "because of 'odd' (Erf)" in lines
    theirs = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for threads in (1, None):
        artifact = load(tmp_path / "art", allow_code=True, threads=threads)
        for seed in range(3):
            image = {"image": normal(*SHAPE, seed=seed)}
            result = artifact.infer(image)["conv2"]
            np.testing.assert_allclose(result, theirs.run(None, image)[0], atol=1e-4)
    with pytest.raises(ArtifactError, match=r"'odd' \(Erf\)"):
        refuse_regions(tmp_path / "art")


@pytest.mark.slow(seconds=4)
def test_a_network_runs_in_onnxruntime_as_a_whole_where_that_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thresholds are set so that every network meets them, whatever its measured times."""
    _everything_but(monkeypatch, "Erf")
    monkeypatch.setattr(build_cpu_library, "WORTH_IT", 0.0)
    monkeypatch.setattr(build_cpu_library, "LEAST_SECONDS", 0.0)
    onnx.save(_layers_around("Erf"), tmp_path / "m.onnx")
    options = BuildOptions(
        model=str(tmp_path / "m.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    made = build_artifact(LocalRunner(), options)
    assert made.manifest["layers"] == []
    assert "so that onnxruntime runs the whole network: the compiled network" in made.warnings[0]
    image = {"image": normal(*SHAPE)}
    theirs = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, image)[0]
    result = load(tmp_path / "art", allow_code=True).infer(image)["conv2"]
    np.testing.assert_allclose(result, theirs, atol=1e-5)


def test_a_layer_that_multiplies_much_without_a_kernel_is_left_to_onnxruntime(
    tmp_path: Path,
) -> None:
    net = _Graph()
    x = net.op("Relu", "relu", [net.conv("image", "conv", 16, 3, 3, 2)])
    parts = ["integers", "scale", "zero"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], parts, name="integers"))
    weight = net.constant("w", np.random.default_rng(0).integers(0, 9, (16, 16, 3, 3), np.uint8))
    net.op("ConvInteger", "sums", ["integers", weight, "zero"])
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes, "dynamic", [of("image", TensorProto.FLOAT, SHAPE)],
        [of("sums", TensorProto.INT32, (1, 16, 14, 14))], net.tensors,
    )  # fmt: skip
    _save(graph, tmp_path / "m.onnx")
    options = BuildOptions(
        model=str(tmp_path / "m.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    layers = build_cpu_library.read_layers(make_target("cpu"), read_model(options))
    assert [layer.call.node for layer in layers.layers] == ["conv"]
    causes = [cause for region in layers.network.examined.regions for cause in region.causes]
    reasons = {cause.name: cause.reason for cause in causes}
    assert reasons["sums"] == "Tilewright has no kernel for it"


def test_a_network_whose_inputs_nobody_can_draw_is_built_and_says_so(tmp_path: Path) -> None:
    """The shape of the output is an input, and it has to match another input."""
    of = helper.make_tensor_value_info
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshaped")
    graph = helper.make_graph(
        [node], "reshape",
        [of("x", TensorProto.FLOAT, (7, 11)), of("shape", TensorProto.INT64, (3,))],
        [of("y", TensorProto.FLOAT, ("a", "b", "c"))],
    )  # fmt: skip
    _save(graph, tmp_path / "m.onnx")
    options = BuildOptions(
        model=str(tmp_path / "m.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    made = build_artifact(LocalRunner(), options)
    assert "its outputs were not compared" in made.warnings[1]
    assert made.manifest["not_checked"] == ["y"]
    artifact = load(tmp_path / "art", allow_code=True)
    x = normal(7, 11)
    result = artifact.infer({"x": x, "shape": np.array([1, 11, 7])})["y"]
    np.testing.assert_array_equal(result, x.reshape(1, 11, 7))
    assert isinstance(artifact, CompiledArtifact)
    with pytest.raises(ArtifactError, match="holds no samples"):
        artifact.output_error()


def test_a_network_that_takes_a_sequence_runs_in_onnxruntime(tmp_path: Path) -> None:
    part = helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 3))
    graph = helper.make_graph(
        [_node("ConcatFromSequence", "parts", "y", axis=0)], "joins",
        [helper.make_value_info("parts", helper.make_sequence_type_proto(part))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows", 3))],
    )  # fmt: skip
    _save(graph, tmp_path / "m.onnx")
    options = BuildOptions(
        model=str(tmp_path / "m.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    made = build_artifact(LocalRunner(), options)
    assert "its outputs were not compared" in made.warnings[1]
    session = tilewright.load(tmp_path / "art", allow_code=True)
    assert [(value.name, value.dtype) for value in session.get_inputs()] == [("parts", "sequence")]
    parts = [normal(2, 3, seed=seed) for seed in range(3)]
    (result,) = session.run(None, {"parts": parts})
    np.testing.assert_array_equal(result, np.concatenate(parts))
    with pytest.raises(InputError, match="'parts' is missing"):
        session.run(None, {})


def test_weights_that_a_graph_computes_from_constants_are_constants(tmp_path: Path) -> None:
    """The weights are a filter that is computed from its taps."""
    net = _Graph()
    taps = [
        net.constant(name, np.int64(number)) for name, number in zip("abc", (0, 9, 1), strict=True)
    ]
    net.op("Range", "taps", taps)
    net.op("Cast", "reals", ["taps"], to=TensorProto.FLOAT)
    net.op("Cos", "curve", ["reals"])
    net.op("Reshape", "filter", ["curve", net.constant("shape", np.array([1, 1, 3, 3]))])
    net.op("Conv", "y", ["image", "filter"])
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes, "filtered", [of("image", TensorProto.FLOAT, (1, 1, 8, 8))],
        [of("y", TensorProto.FLOAT, (1, 1, 6, 6))], net.tensors,
    )  # fmt: skip
    _save(graph, tmp_path / "m.onnx")
    network = networks.load(tmp_path / "m.onnx")
    assert not network.examined.regions
    image = {"image": normal(1, 1, 8, 8)}
    theirs = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, image)[0]
    np.testing.assert_allclose(network.run(image)["y"], theirs, atol=1e-5)


@pytest.mark.slow(seconds=3)
def test_a_region_never_passes_another_shape_to_compiled_code() -> None:
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        [_node("NonZero", "x", "y")], "region", [of("x", TensorProto.FLOAT, (2, 2))],
        [of("y", TensorProto.INT64, (2, "n"))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = RegionSession(model.SerializeToString(), ["x"], ["y"], 1)
    calls = RegionCalls([session])
    place = np.zeros((2, 4), np.int64)
    with calls.registered():
        call = tvm_ffi.get_global_func("tilewright.region0")
    full, empty = (tvm_ffi.from_dlpack(np.full((2, 2), n, np.float32)) for n in (1, 0))
    with calls.reraise_errors():
        call(full, tvm_ffi.from_dlpack(place))
    np.testing.assert_array_equal(place, [[0, 0, 1, 1], [0, 1, 0, 1]])
    message = r"'y' as int64 with shape \(2, 0\)"
    with pytest.raises(InputError, match=message), calls.reraise_errors():
        call(empty, tvm_ffi.from_dlpack(place))


@pytest.mark.slow(seconds=15)
def test_a_detector_gives_what_onnxruntime_gives(tmp_path: Path) -> None:
    path = detector(tmp_path / "detector.onnx")
    options = BuildOptions(model=str(path), out=tmp_path / "art", target="cpu", trials=0)
    made = build_artifact(LocalRunner(), options)
    last = [region for region in made.manifest["regions"] if region["last"]]
    kinds = {operator["operator"] for region in last for operator in region["operators"]}
    assert kinds >= {"NonMaxSuppression", "Gather", "Shape", "Cast", "Add"}
    assert len(made.manifest["layers"]) == 4
    session = tilewright.load(tmp_path / "art", allow_code=True)
    assert [(v.name, v.shape) for v in session.get_outputs()] == [
        ("index", (-1,)), ("scores", (1, 3, 64)), ("both", (1, 3, 1, 1)),
    ]  # fmt: skip
    theirs = onnxruntime.InferenceSession(path)
    lengths = set()
    for seed in range(12):
        image = normal(*SHAPE, seed=seed)
        result, wanted = session.run(None, {"image": image}), theirs.run(None, {"image": image})
        np.testing.assert_array_equal(result[0], wanted[0])
        np.testing.assert_allclose(result[1], wanted[1], atol=1e-5)
        np.testing.assert_allclose(result[2], wanted[2], rtol=1e-5)
        lengths.add(len(result[0]))
    assert len(lengths) > 1
    artifact = load(tmp_path / "art", allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    assert artifact.output_error() < 1e-5
    _, spent = artifact.run({"image": image}, layers=True)
    assert spent.others[-1][0] == "onnxruntime"
    assert spent.others[-1][1] > 0


@pytest.mark.slow(seconds=5)
def test_layers_before_an_operator_that_cannot_be_imported_are_tuned(tmp_path: Path) -> None:
    network = networks.load(detector(tmp_path / "detector.onnx"))
    workloads = network.workloads_on(Accelerator.for_target(make_target("cpu")))
    assert [names for _, _, names in workloads] == [("conv1",), ("conv2",), ("box",), ("score",)]
    regions = network.report(16, 16).regions
    assert [(region.cause, region.cause_type) for region in regions] == [
        ("nms", "NonMaxSuppression")
    ]


@pytest.mark.slow(seconds=3)
def test_a_network_without_a_layer_runs_in_onnxruntime_with_a_warning(tmp_path: Path) -> None:
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"], name="where")], "first",
        [of("x", TensorProto.FLOAT, (4, 4))], [of("y", TensorProto.INT64, (2, "n"))],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "first.onnx",
    )
    for target in ("cpu", "vta-pynq"):
        options = BuildOptions(
            model=str(tmp_path / "first.onnx"), out=tmp_path / target, target=target, trials=0
        )
        made = build_artifact(LocalRunner(), options)
        assert "so that onnxruntime runs the whole network: 'where' (NonZero)" in made.warnings[0]
        session = tilewright.load(tmp_path / target)  # it holds no machine code
        x = normal(4, 4)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.stack(np.nonzero(x)))


@pytest.mark.parametrize(
    ("nodes", "opset", "ir", "said"),
    [
        ([_node("Wobble", "x", "y", domain="org.example")], 17, 8, "'y'.*org.example.Wobble"),
        ([_node("Wobble", "x", "y")], 17, 8, "'y'.*Wobble, which neither"),
        ([_node("Relu", "x", "y")], 99, 8, "opset 99, but onnxruntime"),
        ([_node("Relu", "x", "y")], 17, 99, "IR version 99, but onnxruntime"),
    ],
)
def test_what_onnxruntime_does_not_know_is_refused_before_any_work(
    nodes: list[onnx.NodeProto], opset: int, ir: int, said: str, tmp_path: Path
) -> None:
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "odd", [of("x", TensorProto.FLOAT, (2,))], [of("y", TensorProto.FLOAT, (2,))]
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("org.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir), tmp_path / "odd.onnx")
    with pytest.raises((UnsupportedOperatorError, ModelFileError), match=said):
        networks.load(tmp_path / "odd.onnx").split()


def test_every_row_of_the_table_can_be_written_and_read() -> None:
    table = supported_forms()
    assert FormTable.from_json(table.to_json()).forms == table.forms
    assert len(table.forms) > 100


def test_a_network_of_text_runs_in_onnxruntime(tmp_path: Path) -> None:
    of = helper.make_tensor_value_info
    nodes = [
        helper.make_node("StringConcat", ["word", "ending"], ["joined"]),
        helper.make_node("Equal", ["word", "ending"], ["same"]),
    ]
    inputs = [of(name, TensorProto.STRING, [2, 2]) for name in ("word", "ending")]
    outputs = [of("joined", TensorProto.STRING, [2, 2]), of("same", TensorProto.BOOL, [2, 2])]
    graph = helper.make_graph(nodes, "text", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, tmp_path / "text.onnx")
    build_artifact(
        LocalRunner(),
        BuildOptions(
            model=str(tmp_path / "text.onnx"), out=tmp_path / "art", target="cpu", trials=0
        ),
    )
    session = tilewright.load(tmp_path / "art", allow_code=True)
    assert [value.dtype for value in session.get_inputs()] == ["str", "str"]
    words = np.array([["tile", "é"], ["", "a"]])
    joined, same = session.run(None, {"word": words, "ending": words.astype(object)})
    assert joined.tolist() == [["tiletile", "éé"], ["", "aa"]]
    assert same.all()
    with pytest.raises(InputError, match="'word' has type float32 instead of str"):
        session.run(None, {"word": np.zeros((2, 2), np.float32), "ending": words})


def test_a_classifier_gives_the_maps_of_its_scores(tmp_path: Path) -> None:
    """Models that were converted from scikit-learn have such outputs."""
    of = helper.make_tensor_value_info
    weights, intercepts = [0.5, -1.0, 2.0, 0.1, 0.2, -0.3], [0.1, -0.1]
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
            classlabels_ints=[3, 7], coefficients=weights, intercepts=intercepts,
            post_transform="SOFTMAX",
        ),
        helper.make_node(
            "ZipMap", ["scores"], ["by_label"], domain="ai.onnx.ml", classlabels_int64s=[3, 7]
        ),
    ]  # fmt: skip
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(
            TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
        )
    )
    outputs = [of("label", TensorProto.INT64, [4]), helper.make_value_info("by_label", kind)]
    graph = helper.make_graph(nodes, "classes", [of("x", TensorProto.FLOAT, [4, 3])], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path, x = tmp_path / "classes.onnx", normal(4, 3, seed=2)
    onnx.save(model, path)
    build_artifact(
        LocalRunner(), BuildOptions(model=str(path), out=tmp_path / "art", target="cpu", trials=0)
    )
    artifact = load(tmp_path / "art", allow_code=True)
    assert artifact.manifest["not_checked"] == ["by_label"]
    label, by_label = tilewright.load(tmp_path / "art", allow_code=True).run(None, {"x": x})
    expected = onnxruntime.InferenceSession(path).run(None, {"x": x})
    np.testing.assert_array_equal(label, expected[0])
    assert by_label == expected[1]
    arrays = as_arrays({"label": label, "by_label": by_label})
    assert set(arrays) == {"label"} | {
        f"by_label.{row}.{part}" for row in range(4) for part in ("keys", "values")
    }
    np.testing.assert_array_equal(arrays["by_label.0.keys"], [3, 7])
