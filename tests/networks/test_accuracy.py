"""Tests the accuracy check of a build, which compares the network with its source model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.utils
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from quantise_nets import residual_net

from tilewright.core.files import pack_arrays, unpack_arrays
from tilewright.flows.build import build_artifact
from tilewright.networks import load as load_network
from tilewright.networks.artifact import Artifact, ArtifactError, Check, canonical_workloads, load
from tilewright.networks.artifact.accuracy import accuracy
from tilewright.networks.artifact.load import CPU_LIBRARY
from tilewright.networks.model_runner import run_feeds
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.quantisation import model_with_weights
from tilewright.networks.requantisation import FINE_BITS, scale_weights, weighted_pair
from tilewright.search import LocalRunner
from tilewright.targets.registry import make_target
from tilewright.tuning.build_artifact import integer_network, read_model
from tilewright.tuning.build_options import BuildOptions

pytestmark = pytest.mark.filterwarnings("ignore")
INPUT = (1, 8, 12, 12)
TFLITE = Path(__file__).parents[1] / "data" / "tflite"


class _Samples(CalibrationDataReader):
    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._left: Iterator[Any] = (
            {"input": random.standard_normal(INPUT, np.float32)} for _ in range(8)
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


@pytest.fixture(scope="module")
def asymmetric(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a residual network with scales and zero points chosen by onnxruntime."""
    folder = tmp_path_factory.mktemp("asymmetric")
    onnx.save(residual_net(), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx", folder / "int8.onnx", _Samples(), activation_type=QuantType.QUInt8
    )
    return folder / "int8.onnx"


@pytest.mark.slow(seconds=5)
def test_a_model_with_asymmetric_scales_is_built_right_and_says_so(
    asymmetric: Path, tmp_path: Path
) -> None:
    """Such a build was once wrong by three quarters of the output, and `verify` did not notice."""
    out = tmp_path / "art"
    made = build_artifact(LocalRunner(), BuildOptions(model=str(asymmetric), out=out, trials=0))
    artifact = load(out, allow_code=True)
    assert isinstance(artifact, Artifact)
    model, image = onnx.load(asymmetric), np.random.default_rng(9).standard_normal(INPUT)
    feed = {"input": image.astype(np.float32)}
    (name,) = [output.name for output in model.graph.output]
    theirs = next(run_feeds(model, [name], [feed]))[name]
    ours = np.asarray(artifact.infer(feed)[name])
    assert np.linalg.norm(ours - theirs) <= 0.05 * np.linalg.norm(theirs)
    accuracy = artifact.accuracy()
    assert accuracy is not None
    assert accuracy.is_right
    assert accuracy.to_json() == made.manifest["accuracy"]
    assert not any(check.wrong for check in artifact.verify())


@pytest.mark.slow(seconds=3)
def test_outputs_beyond_the_tolerance_are_refused_and_nothing_is_written(
    asymmetric: Path, tmp_path: Path
) -> None:
    out = tmp_path / "art"
    with pytest.raises(ArtifactError, match=r"is off by .* --tolerance"):
        build_artifact(
            LocalRunner(), BuildOptions(model=str(asymmetric), out=out, trials=0, tolerance=1e-6)
        )
    assert not out.exists()


def test_what_is_inspected_and_tuned_is_what_is_built(asymmetric: Path, tmp_path: Path) -> None:
    target = make_target("vta-pynq")
    accelerator = Accelerator.for_target(target)
    network = load_network(asymmetric)
    tuned = {workload.workload for workload in network.workloads_on(accelerator)}
    said = {row.id for row in network.report_on(accelerator).workloads}
    options = BuildOptions(model=str(asymmetric), out=tmp_path / "art")
    graph = integer_network(options, target, read_model(options)).graph
    built = set(canonical_workloads(graph))
    assert tuned == built
    assert said == {workload.id for workload in built}


def _found(expected: NDArray[Any], found: NDArray[Any], zero: int | None = None) -> float:
    check = Check([{"x": np.zeros(1)}], [{"y": expected}], "onnxruntime")
    zeros = {} if zero is None else {"y": zero}
    return accuracy(check, lambda _: {"y": found}, 0.1, zeros).error


def test_the_error_of_an_output_is_the_difference_over_its_size() -> None:
    real = np.array([3.0, 4.0], np.float32)
    assert _found(real, real) == 0
    assert _found(real, -real) == 2
    assert _found(real, np.array([3.0, np.nan], np.float32)) == np.inf
    assert _found(np.array([np.nan, 1.0]), np.array([np.nan, 1.0])) == 0
    assert _found(np.zeros(2), np.ones(2)) > 1e4
    assert _found(np.zeros(2), np.full(2, 1e-7)) < 0.1  # a difference that is none
    assert _found(real, real.astype(np.float64)) == np.inf
    assert _found(real, real[:1]) == np.inf


def test_integers_count_from_their_zero_point_or_are_equal_or_not() -> None:
    steps = np.array([-128, -118], np.int8)
    assert _found(steps, np.array([-128, -117], np.int8), zero=-128) == 0.1
    classes = np.array([3, 5, 7, 9], np.int64)
    assert _found(classes, np.array([3, 5, 7, 8], np.int64)) == 0.25


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.int64, (3, 20), elements=st.integers(-255, 255)),
    arrays(np.float64, 3, elements=st.floats(1e-6, 0.4)),
)
def test_two_int8_weights_hold_a_product_to_15_bits(
    weight: NDArray[np.int64], factors: NDArray[np.float64]
) -> None:
    made = scale_weights(weight, factors)
    assert made is not None
    exact = weight * factors[:, None] * np.exp2(made.shifts)[:, None]
    both = made.coarse.astype(float)
    if made.fine is not None:
        both = both + made.fine / (1 << FINE_BITS)
        assert abs((exact - made.coarse).sum(axis=1)).max() <= 0.5 + 1e-9
    # the first step away from the nearest integer may take a remainder to the end of its range
    assert np.abs(both - exact).max() <= 1.5 / (1 << FINE_BITS)


@given(st.floats(0.01, 8), st.floats(1, 16))
def test_two_factors_of_a_sum_have_seven_bits_each(one: float, more: float) -> None:
    made = weighted_pair(one, one * more)
    assert made is not None
    first, second, shift = made
    assert 1 <= first <= 127
    assert abs(first / 2**shift - one) <= one / 100
    assert abs(second / 2**shift - one * more) <= one * more / 100


def test_what_an_inference_gave_stays_when_the_next_one_runs(tmp_path: Path) -> None:
    """int8 outputs were once views of the simulated memory."""
    source = TFLITE / "kws_ref_model.tflite"
    model = model_with_weights(source)
    out = tmp_path / "art"
    # without its softmax, the last layer's int8 is the output
    (last,) = [node.input[0] for node in model.graph.node if node.op_type == "Softmax"]
    quantised = next(node.input[0] for node in model.graph.node if last in node.output)
    cut = tmp_path / "cut.onnx"
    onnx.save(
        onnx.utils.Extractor(model).extract_model([model.graph.input[0].name], [quantised]), cut
    )
    build_artifact(LocalRunner(), BuildOptions(model=str(cut), out=out, trials=0))
    artifact = load(out, allow_code=True)
    assert isinstance(artifact, Artifact)
    (value,) = artifact.inputs
    random = np.random.default_rng(0)
    feeds = [random.integers(-128, 128, value.shape).astype(np.int8) for _ in range(3)]
    results = [artifact.infer({value.name: feed})[quantised] for feed in feeds]
    assert results[0].dtype == np.int8
    again = artifact.infer({value.name: feeds[0]})[quantised]
    np.testing.assert_array_equal(results[0], again)
    assert (results[0] != results[1]).any()


def _logarithms() -> onnx.ModelProto:
    """Return a model that takes the logarithm of sums of fourth powers.

    Small sums are lost in eight bits.
    """
    rng = np.random.default_rng(0)
    f32, node = onnx.TensorProto.FLOAT, onnx.helper.make_node
    weights = {
        "w": rng.standard_normal((16, 4, 3)).astype(np.float32),
        "v": np.abs(rng.standard_normal((8, 16, 1))).astype(np.float32),
        "eps": np.float32(1e-7),
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="first", pads=[1, 1]), node("Mul", ["c", "c"], ["p"]),
        node("Mul", ["p", "p"], ["q"]), node("Conv", ["q", "v"], ["m"], name="second"),
        node("Clip", ["m", "eps"], ["k"]), node("Log", ["k"], ["y"]),
    ]  # fmt: skip
    graph = onnx.helper.make_graph(
        nodes, "logarithms",
        [onnx.helper.make_tensor_value_info("x", f32, (1, 4, 64))],
        [onnx.helper.make_tensor_value_info("y", f32, (1, 8, 64))],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.slow(seconds=8)
def test_layers_for_which_int8_is_too_coarse_are_computed_in_float(tmp_path: Path) -> None:
    """If the user gives a tolerance, the quantised network itself has to meet it."""
    onnx.save(_logarithms(), tmp_path / "logarithms.onnx")
    options = BuildOptions(
        model=str(tmp_path / "logarithms.onnx"), out=tmp_path / "built", target="vta-pynq", trials=0
    )
    built = build_artifact(LocalRunner(), options)
    assert [row["name"] for row in built.manifest["layers"]] == ["first"]
    assert built.manifest["accuracy"]["error"] < 0.1
    assert built.warnings[0].startswith(
        "int8 was too inaccurate for second, which the CPU now computes in"
    )
    looser = options.model_copy(update={"out": tmp_path / "other", "tolerance": 0.5})
    with pytest.raises(ArtifactError, match=r"the tolerance is 0\.5"):
        build_artifact(LocalRunner(), looser)


@pytest.mark.slow(seconds=3)
def test_samples_that_were_changed_with_their_manifest_are_refused(
    asymmetric: Path, tmp_path: Path
) -> None:
    out = tmp_path / "art"
    build_artifact(LocalRunner(), BuildOptions(model=str(asymmetric), out=out, trials=0))
    artifact = load(out, allow_code=True)
    assert isinstance(artifact, Artifact)
    whole, check = artifact.manifest, (out / "check.npz").read_bytes()
    library = (out / CPU_LIBRARY).read_bytes() if (out / CPU_LIBRARY).exists() else None
    texts = {
        name: np.array(["?"]) if name.startswith("output") else array
        for name, array in unpack_arrays(check).items()
    }
    accuracy = Artifact(whole, artifact.program, library, pack_arrays(texts)).accuracy()
    assert accuracy is not None
    assert not accuracy.is_right
    for manifest, content in (
        ({**whole, "accuracy": {}}, check),
        ({key: value for key, value in whole.items() if key != "accuracy"}, check),
        (whole, pack_arrays({"reference": np.array("me")})),
        (whole, check[:100]),
    ):
        forged = Artifact(manifest, artifact.program, library, content)
        with pytest.raises(ArtifactError, match="was changed after the build"):
            forged.accuracy()
