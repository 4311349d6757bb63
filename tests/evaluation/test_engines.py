"""Tests the timing of inference engines: alternating rounds, equal outputs, and busy machines."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import in_process
from tilewright.core.errors import UnknownName
from tilewright.evaluation.engines.engine import OWN, EngineError, check_engines
from tilewright.evaluation.engines.options import BenchmarkOptions
from tilewright.evaluation.engines.timing import EngineTimes, Rounds, Timed, ratio_of, time_engines
from tilewright.flows.benchmark import benchmark, write_model
from tilewright.flows.build import build_artifact
from tilewright.networks import zoo
from tilewright.networks.artifact import load
from tilewright.networks.sample_values import seeded_inputs
from tilewright.search import LocalRunner
from tilewright.search.events import Event
from tilewright.tuning.build_options import BuildOptions


def times(engine: str, wall: list[float]) -> EngineTimes:
    return EngineTimes(engine, np.array(wall), np.array(wall), 0.0)


def test_figures_are_of_quiet_rounds_unless_there_are_too_few() -> None:
    ours, theirs = [1.0, 1.0, 1.0, 9.0, 9.0], [2.0, 2.0, 2.0, 3.0, 3.0]
    quiet = np.array([True, True, True, False, False])
    engines = {OWN: times(OWN, ours), "onnxruntime": times("onnxruntime", theirs)}
    timed = Timed(engines, quiet, 0.0)
    assert timed.trustworthy
    assert timed.milliseconds(OWN) == 1000
    assert timed.ratio(OWN, "onnxruntime").median == 0.5
    disturbed = Timed(engines, np.array([True, True, False, False, False]), 0.0)
    assert not disturbed.trustworthy
    assert disturbed.ratio(OWN, "onnxruntime").high > 0.5


def test_an_interval_holds_the_median_of_what_was_drawn() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        ratio = ratio_of(np.exp(0.1 * rng.standard_normal(20)))
        assert ratio.low <= ratio.median <= ratio.high
        covered += ratio.low <= 1.0 <= ratio.high
    assert covered >= 51  # 57 expected; fewer than 51 has a chance of 1 %


def test_engines_nobody_knows_or_installed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="did you mean onnxruntime"):
        check_engines(("onnxruntim",))
    if find_spec("openvino") is None:
        with pytest.raises(
            EngineError, match="pip install openvino, or leave openvino out of --against"
        ):
            check_engines(("onnxruntime", "openvino"))


@pytest.mark.slow(seconds=15)
def test_a_network_is_timed_by_both_and_gives_the_same_numbers() -> None:
    heard: list[Event] = []
    options = BenchmarkOptions(model="digits_cnn", rounds=3, seconds=0.02)
    made = benchmark(LocalRunner(heard.append), options)
    timed = made.timed
    assert set(timed.engines) == {OWN, "onnxruntime"}
    for engine in timed.engines.values():
        assert len(engine.wall) == len(timed.quiet) >= 3
        assert (engine.wall > 0).all()
        assert (engine.cpu > 0).all()
    assert 0 < timed.engines["onnxruntime"].difference < 1e-4
    assert timed.engines[OWN].difference == 0


@pytest.mark.slow(seconds=3)
def test_another_network_in_its_place_shows_as_a_difference(
    digits_library: Path, tmp_path: Path
) -> None:
    """The network that onnxruntime runs has other weights than the library."""
    model = zoo.build("digits_cnn")
    for tensor in model.graph.initializer:
        if tensor.name == "fc.weight":
            changed = onnx.numpy_helper.to_array(tensor) * np.float32(1.5)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, tmp_path / "other.onnx")
    loaded = load(digits_library, allow_code=True)
    inputs = seeded_inputs({input_.name: (input_.shape, input_.dtype) for input_ in loaded.inputs})
    sources = {OWN: digits_library, "onnxruntime": tmp_path / "other.onnx"}
    timed = time_engines(sources, inputs, 1, Rounds(1, 1, 0.01))
    assert timed.engines["onnxruntime"].difference > 0.05


@pytest.mark.slow(seconds=3)
def test_a_model_that_an_engine_does_not_take_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(EngineError, match="onnxruntime cannot run the network"):
        time_engines({"onnxruntime": tmp_path / "broken.onnx"}, {}, 1, Rounds(1, 1, 0.01))


@pytest.mark.slow(seconds=5)
def test_a_simulated_accelerator_is_not_timed(tmp_path: Path) -> None:
    build_artifact(LocalRunner(), BuildOptions(model="digits_cnn", out=tmp_path / "art", trials=0))
    options = BenchmarkOptions(model="digits_cnn", artifact=tmp_path / "art")
    with pytest.raises(EngineError, match="for vta-pynq, which is simulated"):
        benchmark(LocalRunner(), options)


@pytest.mark.slow(seconds=1.5)
def test_a_shape_of_another_number_of_axes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="'input' has 4 axes, but --input-shape gives 2"):
        write_model("digits_cnn", {"input": (1, 64)}, tmp_path)


def test_a_torch_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"torch\.onnx\.export"):
        write_model("net.pt2", {}, tmp_path)


@pytest.mark.slow(seconds=10)
def test_the_command_prints_a_row_an_engine_and_json(tmp_path: Path) -> None:
    command = ("benchmark", "digits_cnn", "--rounds", "3", "--seconds", "0.02")
    shown = in_process.run(command, tmp_path, os.environ)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[2].startswith("tilewright ")
    assert lines[3].startswith("onnxruntime ")
    assert "rounds were undisturbed" in lines[4]
    said = in_process.run((*command, "--json", "--threads", "1"), tmp_path, os.environ)
    document = json.loads(said.stdout)
    assert [engine["engine"] for engine in document["engines"]] == ["tilewright", "onnxruntime"]
    assert document["threads"] == 1
    assert all(10e6 < engine["peak_bytes"] < 1e9 for engine in document["engines"])
    ratio = document["engines"][1]["wall_ratio"]
    assert ratio["low"] <= ratio["median"] <= ratio["high"]


def test_two_ways_to_say_what_is_timed_are_refused(tmp_path: Path) -> None:
    command = ("benchmark", "digits_cnn", "--trials", "4", "--schedules", "tuned")
    done = in_process.run(command, tmp_path, os.environ)
    assert done.returncode == 2
    assert "each select what is timed" in done.stderr
