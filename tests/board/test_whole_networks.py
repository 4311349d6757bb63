"""Compares built zoo networks with plain integer arithmetic, in Python and in the C runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.quantisation.integer_graphs import in_memory
from benchmarks.quantisation.integer_graphs import run as run_graph
from tests.board.boards import run
from tilewright.flows.build import tuned_picks
from tilewright.networks import artifact
from tilewright.networks.artifact import Artifact
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.zoo import digits
from tilewright.targets import make_target
from tilewright.targets.vta.spec import VtaSpec
from tilewright.tuning.build_artifact import integer_network, read_model
from tilewright.tuning.build_options import BuildOptions

TARGET = "vta-pynq"
CNNS = [
    pytest.param(name, per_channel, marks=mark(seconds=seconds))
    for name, per_channel, mark, seconds in (
        ("digits_cnn", False, pytest.mark.slow, 5), ("digits_cnn", True, pytest.mark.slow, 5),
        ("mobilenet_v1", True, pytest.mark.nightly, 12),
        ("resnet18", False, pytest.mark.nightly, 15),
    )
]  # fmt: skip
MEMORY = 1 << 26


def made(name: str, out: Path, per_channel: bool = False) -> tuple[IntegerGraph, Artifact]:
    """Build a network with the schedules of lowest estimated cost. Return graph and artifact."""
    target = make_target(TARGET)
    options = BuildOptions(model=name, out=out, target=TARGET, per_channel=per_channel)
    graph = integer_network(options, target, read_model(options)).graph
    picks = tuned_picks(artifact.canonical_workloads(graph), target, trials=0)
    artifact.build(graph, picks, target, "vta", out)
    return graph, artifact.load(out, allow_code=True)


def drawn(graph: IntegerGraph, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.standard_normal(value.shape).astype(value.dtype) for value in graph.inputs
    }


@pytest.mark.parametrize(("name", "per_channel"), CNNS)
def test_python_and_c_compute_the_integer_reference(
    name: str, per_channel: bool, tmp_path: Path, plain: Path
) -> None:
    graph, built = made(name, tmp_path / "art", per_channel)
    assert per_channel == any(layer.shifts is not None for layer in graph.layers)
    inputs = drawn(graph, 3)
    expected = run_graph(graph, inputs, in_memory(graph))
    outputs = built.infer(inputs)
    for value in graph.outputs:
        assert (outputs[value.name] == expected[value.name]).all()
    assert all(check.wrong == 0 for check in built.verify())
    data = inputs[graph.inputs[0].name].tobytes()
    done = run(plain, tmp_path / "art", data, VtaSpec.load(TARGET), memory=MEMORY)
    assert (done.code, done.said) == (0, "")
    assert done.output == outputs[graph.outputs[0].name].tobytes()


@pytest.mark.nightly(seconds=11)
def test_attention_computes_the_integer_reference(tmp_path: Path) -> None:
    graph, built = made("vit_tiny", tmp_path / "art")
    inputs = drawn(graph, 3)
    expected = run_graph(graph, inputs, in_memory(graph))
    outputs = built.infer(inputs)
    for value in graph.outputs:
        assert (outputs[value.name] == expected[value.name]).all()
    assert all(check.wrong == 0 for check in built.verify())


@pytest.mark.slow(seconds=2)
def test_held_out_digits_are_read_as_well_in_int8(tmp_path: Path) -> None:
    """All images run on the simulated accelerator; onnxruntime runs the float network."""
    import onnxruntime

    from tilewright.networks.zoo import build

    _, built = made("digits_cnn", tmp_path / "art")
    images, labels = digits.held_out()
    session = onnxruntime.InferenceSession(build("digits_cnn", 0).SerializeToString())
    exact = [session.run(None, {"input": image[None]})[0].argmax() for image in images]
    (output,) = built.infer({"input": images[:1]})
    seen = [built.infer({"input": image[None]})[output].argmax() for image in images]
    assert np.mean(exact == labels) > 0.95
    assert abs(np.mean(seen == labels) - np.mean(exact == labels)) <= 0.005
