"""Tests unusual models that ONNX allows but few exporters write.

Each one computes what onnxruntime computes, or is refused with a message that names the operator
and the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import model, normal, reference, session

import tilewright
from benchmarks.quantisation.integer_graphs import in_memory, run
from tilewright import networks
from tilewright.core.files import Json
from tilewright.flows.build import build_artifact
from tilewright.networks.artifact import load
from tilewright.networks.artifact.run import check_arrays
from tilewright.networks.errors import InputError
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.offloading.report import ModelReport
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.onnx.reference_model import is_half
from tilewright.networks.quantisation import quantise
from tilewright.networks.sample_values import seeded_inputs
from tilewright.reports.artifact import built_lines
from tilewright.search import LocalRunner
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import Value
from tilewright.tuning.build_options import BuildOptions

Arrays = Mapping[str, NDArray[Any]]
WEIGHTS: dict[str, NDArray[Any]] = {"w": normal(16, 16, 3, 3) / np.float32(12)}
SHAPE = (1, 16, 6, 6)


def _node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """Make a node. A `.` in `inputs` stands for an omitted input."""
    read = [name.replace(".", "") for name in inputs.split()]
    return helper.make_node(kind, read, output.split(), name=f"{kind}_{output}", **attributes)


CONV = _node("Conv", "x w", "a", pads=[1] * 4)


def _network(
    nodes: Sequence[onnx.NodeProto], tensors: Arrays, outputs: Sequence[str] = ("y",)
) -> onnx.ModelProto:
    whole = {**WEIGHTS, **{name: np.asarray(array) for name, array in tensors.items()}}
    source = model([CONV, *nodes], whole, SHAPE, outputs[0])
    source.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs[1:])
    return onnx.shape_inference.infer_shapes(source)


def _integers(source: onnx.ModelProto) -> IntegerGraph:
    return integer_graph(quantise(source).model, Blocks(1, 16, 16))


def _computed(graph: IntegerGraph, inputs: Arrays) -> dict[str, NDArray[Any]]:
    return run(graph, inputs, in_memory(graph))


def _left(graph: IntegerGraph) -> set[str]:
    """Return the kinds of operators that the CPU computes, without quantisation."""
    return {kind for island in graph.islands for _, kind in island.nodes} - {"QuantizeLinear"}


def _report(path: Path, source: onnx.ModelProto) -> ModelReport:
    onnx.save(source, path / "m.onnx")
    return networks.load(path / "m.onnx").report(16, 16)


@pytest.mark.parametrize(
    ("nodes", "tensors"),
    [
        ([_node("Clip", "a lo hi", "y")], {"lo": np.zeros(1, "f4"), "hi": np.full(1, 2, "f4")}),
        ([_node("Clip", "a lo hi", "y")], {"lo": np.float32(1), "hi": np.float32(-1)}),
        ([_node("Clip", "a . hi", "y")], {"hi": np.full(1, 0.5, "f4")}),
        ([_node("ReduceMax", "a", "m", keepdims=0), _node("Clip", "a lo m", "y")],
         {"lo": np.float32(0)}),
        ([_node("ReduceMean", "a", "m"), _node("Squeeze", "m axes", "s"),
          _node("Clip", "a s .", "y")], {"axes": np.array([0, 2])[:0]}),
        ([_node("Cast", "a", "d", to=TensorProto.DOUBLE), _node("Clip", "d lo .", "e"),
          _node("Cast", "e", "y", to=TensorProto.FLOAT)], {"lo": np.zeros(1)}),
        ([_node("Pad", "a pads value", "y")],
         {"pads": np.array([0, 0, 1, 0, 0, 0, 0, 2]), "value": np.full(1, 0.5, "f4")}),
        ([_node("CumSum", "a axis", "y")], {"axis": np.array([1])}),
        ([_node("Split", "a", "b y", axis=1), _node("Softmax", "b", "c", axis=1)], {}),
        ([_node("TopK", "a k", "y places", axis=1)], {"k": np.array([3])}),
    ],
)  # fmt: skip
def test_what_the_cpu_is_left_is_computed_as_onnxruntime_does(
    nodes: list[onnx.NodeProto], tensors: Arrays
) -> None:
    """The CPU's part computes what onnxruntime computes.

    The models have clip bounds that are one-element tensors, computed, or reversed, operators that
    TVM implements in TIR, and several outputs.
    """
    source = _network(nodes, tensors)
    graph, x = _integers(source), normal(*SHAPE, seed=3)
    wanted = reference(source, x)
    error = np.abs(_computed(graph, {"x": x})["y"] - wanted).max()
    assert error <= 0.05 * np.abs(wanted).max()
    assert graph.layers
    if graph.islands:
        assert _left(graph) <= {node.op_type for node in nodes} | {"Reshape", "Region"}
        assert nodes[-1].op_type in _left(graph) | {"Softmax"} or graph.regions


def test_a_lone_number_among_the_inputs_stays_one() -> None:
    source = _network([_node("Mul", "a k", "y")], {})
    source.graph.input.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, ()))
    graph, x = _integers(source), normal(*SHAPE, seed=3)
    made = _computed(graph, {"x": x, "k": np.array(2, np.float32)})["y"]
    plain = reference(_network([_node("Identity", "a", "y")], {}), x)
    np.testing.assert_allclose(made, 2 * plain, atol=0.1)


def _halves(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in float16: weights, inputs, outputs and casts."""
    copy = onnx.ModelProto()
    copy.CopyFrom(source)
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    del copy.graph.value_info[:]
    for info in (*copy.graph.input, *copy.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    return copy


def test_a_model_in_half_precision_is_read_in_single(tmp_path: Path) -> None:
    """Every float16 is also a float32, so nothing is lost. onnxruntime casts around its kernels."""
    nodes = [
        _node("Cast", "a", "b", to=TensorProto.FLOAT16), _node("Relu", "b", "c"),
        _node("Mul", "c two", "d"), _node("Conv", "d w", "y", pads=[1] * 4),
    ]  # fmt: skip
    source = _halves(_network(nodes, {"two": np.float32(2)}))
    assert is_half(source)
    single = normalise(source, {}).model
    assert not is_half(single)
    assert [node.op_type for node in single.graph.node] == ["Conv", "Relu", "Mul", "Conv"]
    x = normal(*SHAPE, seed=3).astype(np.float16)
    half = session(source, optimised=True).run(None, {"x": x})[0]
    made = reference(single, x.astype(np.float32))
    np.testing.assert_allclose(made, half.astype(np.float32), rtol=0.01, atol=0.02)
    report = _report(tmp_path, source)
    assert "half precision" in report.notes[0]
    assert report.offloaded_macs == report.total_macs
    kinds = {o.op_type for o in report.operators if o.status == "cpu"}
    assert kinds <= {"Cast", "Mul"}


@pytest.mark.slow(seconds=4)
def test_outputs_in_half_precision_are_halves_on_a_cpu(tmp_path: Path) -> None:
    source = _halves(_network([_node("Relu", "a", "y")], {}))
    onnx.save(source, tmp_path / "m.onnx")
    options = BuildOptions(
        model=str(tmp_path / "m.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    made = build_artifact(LocalRunner(), options)
    assert made.manifest["layers"]
    (output,) = load(tmp_path / "art", allow_code=True).outputs
    assert output.dtype == "float16"
    x = normal(*SHAPE, seed=3).astype(np.float16)
    half = session(source, optimised=True).run(None, {"x": x})[0]
    result = tilewright.load(tmp_path / "art").run(None, {"x": x})[0]
    assert result.dtype == half.dtype == np.float16
    np.testing.assert_allclose(result, half, rtol=0.01, atol=0.01)


@pytest.mark.slow(seconds=0.7)
@pytest.mark.parametrize(
    ("kind", "nodes", "tensors"),
    [
        ("NonZero", [_node("NonZero", "a", "y")], {}),
        ("Unique", [_node("Unique", "a", "y")], {}),
        ("Compress", [_node("Compress", "a picked", "y", axis=1)], {"picked": np.arange(16) > 5}),
        ("Slice", [_node("ArgMax", "a", "i", keepdims=0), _node("ReduceMax", "i", "m", keepdims=0),
                   _node("Unsqueeze", "m zero", "k"), _node("Slice", "a zero k one", "y")],
         {"zero": np.array([0]), "one": np.array([1])}),
        ("NonMaxSuppression", [
            _node("Reshape", "a rows", "b"), _node("Slice", "b zero four two", "boxes"),
            _node("Slice", "b four five two", "s"), _node("Transpose", "s", "t", perm=[0, 2, 1]),
            _node("NonMaxSuppression", "boxes t most limit", "y"),
        ], {"rows": np.array([1, -1, 6]), "zero": np.array([0]), "four": np.array([4]),
            "five": np.array([5]), "two": np.array([2]), "most": np.array([20]),
            "limit": np.full(1, 0.5, "f4")}),
    ],
)  # fmt: skip
def test_a_shape_that_depends_on_values_is_left_to_onnxruntime(
    kind: str, nodes: list[onnx.NodeProto], tensors: Arrays, tmp_path: Path
) -> None:
    source = _network(nodes, tensors)
    left = _report(tmp_path, source).by_status("onnxruntime")
    assert kind in {operator.op_type for operator in left}
    assert any("depends on values" in operator.reason for operator in left)
    options = BuildOptions(
        model=str(tmp_path / "m.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    build_artifact(LocalRunner(), options)
    (array,) = seeded_inputs({"x": (SHAPE, "float32")}, seed=1).values()
    result = load(tmp_path / "art", allow_code=True).infer({"x": array})
    wanted = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": array})
    for mine, theirs in zip(result.values(), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def _branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    last = nodes[-1].output[0]
    info = helper.make_tensor_value_info(last, TensorProto.FLOAT, SHAPE)
    return helper.make_graph(nodes, "branch", [], [info])


THEN = _branch(_node("Conv", "a w", "t", pads=[1] * 4), _node("Relu", "t", "b"))
ELSE = _branch(_node("Neg", "a", "b"))


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_takes_its_branch(condition: bool, tmp_path: Path) -> None:
    choice = _node("If", "c", "y", then_branch=THEN, else_branch=ELSE)
    source = _network([choice], {"c": np.array([condition])[0]})
    x = normal(*SHAPE, seed=3)
    plain = normalise(source, {}).model
    np.testing.assert_allclose(reference(plain, x), reference(source, x), atol=1e-5)
    assert _report(tmp_path, source).total_macs == (1 + condition) * 16 * 16 * 9 * 36


def test_control_flow_is_left_to_onnxruntime(tmp_path: Path) -> None:
    nodes = [
        _node("ReduceSum", "a", "s", keepdims=0), _node("Greater", "s zero", "c"),
        _node("If", "c", "y", then_branch=THEN, else_branch=ELSE),
    ]  # fmt: skip
    source = _network(nodes, {"zero": np.float32(0)})
    (region,) = _report(tmp_path, source).regions
    assert "If_y" in region.operators


SMALL: dict[str, tuple[list[onnx.NodeProto], tuple[str, ...]]] = {
    "weights of two operators": ([_node("Relu", "a", "b"), _node("Conv", "b w", "y")], ("y",)),
    "weights that are data, too": (
        [_node("ReduceSum", "w", "s", keepdims=0), _node("Mul", "a s", "y")], ("y",)
    ),
    "weights that are computed": (
        [_node("Mul", "w2 v", "u"), _node("Conv", "a u", "y")], ("y",)
    ),
    "results in between": (
        [_node("Relu", "a", "b"), _node("Conv", "b w2", "y")], ("y", "a", "b")
    ),
    "one result twice": ([_node("Relu", "a", "y"), _node("Identity", "y", "z")], ("y", "z")),
    "an input that is a result": ([_node("Relu", "a", "y")], ("y", "x")),
    "several results of one": (
        [_node("Conv", "a w2", "b"), _node("Split", "b", "y z", axis=1)], ("y", "z")
    ),
    "a sum with itself": ([_node("Add", "a a", "y")], ("y",)),
    "a dropout at the end": ([_node("Relu", "a", "b"), _node("Dropout", "b", "y")], ("y",)),
    "the same twice in one": ([_node("Concat", "a a", "y", axis=1)], ("y",)),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_graphs_of_uncommon_form_give_every_output(name: str) -> None:
    nodes, outputs = SMALL[name]
    tensors = {"w2": normal(16, 16, 3, 3, seed=2) / np.float32(12), "v": normal(16, 1, 1, 1)}
    source = _network(nodes, tensors, outputs)
    for output in source.graph.output:
        output.type.tensor_type.elem_type = TensorProto.FLOAT
        if output.name == "x":
            output.CopyFrom(source.graph.input[0])
    graph, x = _integers(source), normal(*SHAPE, seed=3)
    opened = session(source, optimised=True)
    made = _computed(graph, {"x": x})
    for wanted, output in zip(opened.run(None, {"x": x}), outputs, strict=True):
        assert made[output].shape == wanted.shape
        assert np.abs(made[output] - wanted).max() <= 0.06 * np.abs(wanted).max()


def test_bytes_that_the_cpu_reads_are_the_bytes_that_are_given() -> None:
    """The input is a uint8 image, which the first operators scale before it is quantised."""
    nodes = [
        _node("Cast", "x", "f", to=TensorProto.FLOAT), _node("Mul", "f k", "g"),
        _node("Conv", "g w", "y", pads=[1] * 4),
    ]  # fmt: skip
    tensors = {**WEIGHTS, "k": np.asarray(1 / 255, np.float32)}
    source = model(nodes, tensors, SHAPE, "y")
    source.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    graph, x = _integers(source), np.random.default_rng(0).integers(0, 256, SHAPE).astype(np.uint8)
    wanted = reference(source, x)
    error = np.abs(_computed(graph, {"x": x})["y"] - wanted).max()
    assert error <= 0.05 * np.abs(wanted).max()


def test_a_build_names_what_stays_with_the_cpu_in_words(tmp_path: Path) -> None:
    """CPU work between layers that belongs to no operator is reported as a change of layout."""
    operators: list[Json] = [{"name": "clip", "operator": "Clip"}]
    islands: list[Json] = [{"operators": operators}, {"operators": []}, {"operators": []}]
    said = built_lines(
        {
            "network": "net", "target": "vta", "cycles": {"stream": 1, "sum_of_layers": 1},
            "macs": {"total": 1, "accelerator": 1}, "layers": [], "steps": [], "dram_bytes": 0,
            "memory": {"buffers": []}, "specification": {"keys": {"clock_mhz": 100}},
            "quantisation": {}, "cpu": islands, "bare": False, "why_not_bare": "",
        },
        tmp_path,
    )  # fmt: skip
    assert "  left to the CPU: 1 Clip, 2 changes of layout" in said


def test_an_operator_that_the_cpu_does_not_compile_runs_in_onnxruntime() -> None:
    """The operator is Sign on uint8. Its neighbours are compiled."""
    nodes = [
        _node("Sigmoid", "a", "b"), _node("Cast", "b", "c", to=TensorProto.UINT8),
        _node("Sign", "c", "d"), _node("Cast", "d", "e", to=TensorProto.FLOAT),
        _node("Tanh", "e", "y"),
    ]  # fmt: skip
    source = _network(nodes, {})
    graph, x = _integers(source), normal(*SHAPE, seed=3)
    assert "Sign" in [kind for region in graph.regions for _, kind in region.operators]
    np.testing.assert_allclose(_computed(graph, {"x": x})["y"], reference(source, x), atol=1e-6)


def test_arrays_of_halves_are_widened_for_an_input_in_single() -> None:
    """float16 arrays are widened without loss. float64 arrays are refused."""
    value, halves = Value("x", (3,), "float32"), np.array([1, 2, 3], np.float16)
    widened = check_arrays([value], {"x": halves})["x"]
    assert widened.dtype == np.float32
    np.testing.assert_array_equal(widened, halves)
    with pytest.raises(InputError, match="float64 instead of float32"):
        check_arrays([value], {"x": halves.astype(np.float64)})
