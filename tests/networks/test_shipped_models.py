"""Runs the models that the `onnx` package ships and compares them with the shipped outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from benchmarks.coverage.model_answers import Answer, difference, judge, refusal_flaw
from benchmarks.coverage.model_files import sweep
from benchmarks.coverage.onnx_models import ModelCase, cases
from tilewright import networks
from tilewright.networks.offloading.report import ModelReport

SHIPPED = cases(("light", "simple", "pytorch-converted", "pytorch-operator"), Path())
BY_TITLE = {case.title: case for case in SHIPPED}


def _weights_are_inputs(case: ModelCase) -> bool:
    graph = onnx.load(case.path).graph
    weights = {tensor.name for tensor in graph.initializer}
    return any(info.name in weights for info in graph.input)


@pytest.fixture(scope="module")
def vgg19() -> ModelReport:
    """Return the report of VGG-19, which takes most of a minute."""
    network = networks.load(BY_TITLE["light/light_vgg19"].path)
    assert len(network.examined.inputs) == 1, "weights are no inputs"
    return network.report(16, 16)


@pytest.mark.nightly(seconds=55)
def test_models_whose_weights_are_also_inputs_load(vgg19: ModelReport) -> None:
    """IR version 3 requires that weights are inputs too, and later versions allow it."""
    layers = [case for case in SHIPPED if case.kind.startswith("pytorch")]
    assert _weights_are_inputs(BY_TITLE["light/light_vgg19"])
    assert not vgg19.by_status("unsupported")
    shufflenet = BY_TITLE["light/light_shufflenet"]
    old = [case for case in (*layers, shufflenet) if _weights_are_inputs(case)]
    assert len(old) >= 30
    for case in old:
        network = networks.load(case.path)
        assert not network.report(16, 16).by_status("unsupported"), case.title
        assert len(network.examined.inputs) == 1, "weights are no inputs"


@pytest.mark.nightly(seconds=15)
def test_vgg19_has_its_published_macs(vgg19: ModelReport) -> None:
    assert vgg19.total_macs == 19_632_062_464


@pytest.mark.parametrize(
    ("name", "total"),
    [
        pytest.param("resnet50", 4_089_184_256, marks=pytest.mark.nightly(seconds=7)),
        ("squeezenet", 349_151_936),
    ],
)
def test_published_networks_have_their_published_macs(name: str, total: int) -> None:
    assert networks.load(BY_TITLE[f"light/light_{name}"].path).report(16, 16).total_macs == total


@pytest.mark.nightly(seconds=8)
def test_no_answer_to_a_shipped_model_is_false() -> None:
    quick = [case for case in SHIPPED if case.kind == "simple"]
    quick += [case for case in SHIPPED if case.kind.startswith("pytorch")][::4]
    answers = sweep(quick, processes=2, seconds=60)
    assert [answer for answer in answers if answer.verdict == "false"] == []
    verdicts = [answer.verdict for answer in answers]
    assert verdicts.count("right") > verdicts.count("refused") > 0


def _alone(node: onnx.NodeProto, path: Path, opset: int = 18, **arrays: object) -> ModelCase:
    """Return a model with a single operator and no expected outputs."""
    shapes = {name: np.shape(value) for name, value in arrays.items()}
    infos = [
        onnx.helper.make_tensor_value_info(name, 7 if name in INTEGERS else 1, shape)
        for name, shape in shapes.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = onnx.helper.make_graph([node], "one", infos, outputs)
    opsets = [onnx.helper.make_opsetid("", opset)]
    built = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(built)
    for info in inferred.graph.output:  # the checker requires a shape, even an unknown one
        if not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.dim.add().dim_param = "some"
    onnx.save(inferred, path)
    return ModelCase("made", path.stem, path, None)


NEWEST = onnx.defs.onnx_opset_version()
INTEGERS = ("axes", "repeats", "k")
X = np.zeros((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("node", "arrays"),
    [
        (
            onnx.helper.make_node("ReduceSum", ["x", "axes"], ["y"], name="sum"),
            {"x": X, "axes": np.zeros(1, np.int64)},
        ),
        (
            onnx.helper.make_node("TopK", ["x", "k"], ["v", "i"], name="top"),
            {"x": X, "k": np.ones(1, np.int64)},
        ),
        (onnx.helper.make_node("IsInf", ["x"], ["y"], detect_negative=0), {"x": X}),
        (
            onnx.helper.make_node("Det", ["i"], ["y"]),
            {"i": np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)},
        ),
        (onnx.helper.make_node("Dropout", ["x"], ["y", "mask"]), {"x": X}),
    ],
)
def test_what_is_not_compiled_runs_in_onnxruntime(
    node: onnx.NodeProto, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    case = _alone(node, tmp_path / "one.onnx", **arrays)
    network = networks.load(case.path)
    assert network.report(16, 16).by_status("onnxruntime")
    result = network.run(arrays)
    wanted = onnxruntime.InferenceSession(case.path).run(None, arrays)
    for array, other in zip(result.values(), wanted, strict=True):
        np.testing.assert_array_equal(array, other)


def test_an_input_without_elements_runs_in_onnxruntime_and_says_what_to_do(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    case = _alone(node, tmp_path / "empty.onnx", x=np.zeros((2, 0, 4)))
    network = networks.load(case.path)
    (operator,) = network.report(16, 16).operators
    assert operator.status == "onnxruntime"
    assert "the shape (2, 0, 4), which has no elements" in operator.reason
    assert "--input-shape" in operator.reason
    assert network.run({"x": np.zeros((2, 0, 4), np.float32)})["y"].shape == (2, 0, 4)
    assert networks.load(case.path, {"x": (2, 5, 4)}).report(16, 16).inputs == {"x": (2, 5, 4)}


def test_scalars_go_in_as_scalars(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Clip", ["x", "low"], ["y"])
    case = _alone(node, tmp_path / "clip.onnx", x=X, low=np.float32(0))
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    result = networks.load(case.path).run({"x": x, "low": np.array(0.5, np.float32)})["y"]
    np.testing.assert_array_equal(result, np.maximum(x, 0.5))


def test_an_output_shape_of_a_transposed_convolution_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "up.onnx"
    node = onnx.helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=[3, 2], output_shape=[10, 8]
    )
    weight = np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)
    graph = onnx.helper.make_graph(
        [node], "up",
        [onnx.helper.make_tensor_value_info("x", 1, (1, 1, 3, 3))],
        [onnx.helper.make_tensor_value_info("y", 1, (1, 2, 10, 8))],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 22)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    want = onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": x})[0]
    assert difference(networks.load(path).run({"x": x})["y"], want) == ""


def test_the_judge_sees_through_false_answers(tmp_path: Path) -> None:
    case = _alone(onnx.helper.make_node("Relu", ["x"], ["y"], name="r"), tmp_path / "r.onnx", x=X)
    for message in (
        "input 'x' has the dynamic shape (2, 3, 4); give its sizes",
        "the model is not valid ONNX: not in SSA form; export it again",
        "operator 'r' (Relu) cannot be imported: 'num_heads'; export it again",
        "operator 'r' (Relu) cannot be imported: object of type 'Call' has no len(); export it",
        "operator 's' (Sigmoid) cannot be imported: its axis is odd; export it again",
        "operator 'r' (Relu) cannot be imported",
    ):
        assert refusal_flaw(message, case.path), message
    assert (
        refusal_flaw("operator 'r' (Relu) cannot be imported: it is odd; cut it off", case.path)
        == ""
    )
    assert difference(np.zeros(3, np.float32), np.ones(3, np.float32)) == "3 of 3 values"
    assert judge(case) == Answer(
        case.title, "loads", "the package contains no tensors for this model"
    )
