"""Tests scales on inputs beyond the calibration samples, and the reported error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.flows.build import build_artifact
from tilewright.networks.artifact import Artifact, load
from tilewright.networks.model_runner import run_feeds
from tilewright.networks.quantisation import Samples, quantise
from tilewright.networks.quantisation.activation_ranges import WEIGHT, Tail
from tilewright.networks.quantisation.samples import with_held_out
from tilewright.search import LocalRunner
from tilewright.targets.registry import make_target
from tilewright.tuning.build_artifact import integer_network, read_model
from tilewright.tuning.build_options import BuildOptions

Feeds = list[dict[str, NDArray[np.float32]]]
WIDTH = 64


def _squares(scale: float) -> onnx.ModelProto:
    """Return a product of x · |x| · `scale`, whose values have long tails; (1, 64) to (1, 16)."""
    nodes = [
        helper.make_node("Abs", ["x"], ["abs"], name="abs"),
        helper.make_node("Mul", ["x", "abs"], ["square"], name="square"),
        helper.make_node("Mul", ["square", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Gemm", ["scaled", "w"], ["y"], name="gemm"),
    ]
    float_type = onnx.TensorProto.FLOAT
    weights = np.random.default_rng(0).standard_normal((WIDTH, 16)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "squares",
        [helper.make_tensor_value_info("x", float_type, (1, WIDTH))],
        [helper.make_tensor_value_info("y", float_type, (1, 16))],
        [
            numpy_helper.from_array(np.array(scale, np.float32), "scale"),
            numpy_helper.from_array(weights, "w"),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )  # fmt: skip


def _inputs(count: int, seed: int) -> Feeds:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((1, WIDTH)).astype(np.float32)} for _ in range(count)]


def _filled(samples: Feeds) -> onnx.ModelProto:
    """Return the network with a scale that maps the samples' largest value to 126 of 127 steps."""
    return _squares(126 / 16 / max(float(np.abs(sample["x"]).max()) ** 2 for sample in samples))


def _error(one: onnx.ModelProto, other: onnx.ModelProto, feeds: Feeds) -> float:
    pairs = list(zip(run_feeds(one, ["y"], feeds), run_feeds(other, ["y"], feeds), strict=True))
    off = np.linalg.norm([a["y"] - b["y"] for a, b in pairs])
    return float(off / np.linalg.norm([a["y"] for a, _ in pairs]))


@pytest.mark.parametrize("seed", range(6))
def test_new_inputs_are_not_cut_off_where_a_sample_fills_the_range(seed: int) -> None:
    """Inputs that are larger than every sample are not clipped.

    An earlier version took the largest value in the samples for the largest possible value. Its
    error on new inputs was three to five times that on the samples.
    """
    samples = _inputs(16, seed)
    source = _filled(samples)
    made = quantise(source, Samples(tuple(samples)))
    seen, new = (_error(source, made.model, feeds) for feeds in (samples, _inputs(400, seed + 100)))
    print(f"error on the samples {seen:.4f}, on new inputs {new:.4f}")
    assert new <= 1.5 * seen


def test_values_with_a_hard_end_lose_no_bit() -> None:
    """Pixels from 0 to 254 get a scale of 2, which just covers them, without extra headroom."""
    tail = Tail()
    random = np.random.default_rng(0)
    for _ in range(8):
        tail.add(np.clip(random.normal(200, 60, 3000), 0, 254))
    assert tail.unseen_error(254.0) == 0
    assert Tail().unseen_error(1.0) == 0


@pytest.mark.parametrize("limit", [7.0, 9.0, 11.0])
def test_what_an_exponential_tail_loses_is_expected_before_it_is_seen(limit: float) -> None:
    """The mean estimate over many draws equals the integral n · 2 · exp(−limit)."""
    count, result = 4000, []
    for seed in range(60):
        values = np.random.default_rng(seed).exponential(size=count)
        tail = Tail()
        tail.add(values)
        seen = float(np.sum(np.maximum(values - limit, 0) ** 2))
        result.append(seen + tail.unseen_error(limit) / WEIGHT)
    right = count * 2 * np.exp(-limit)
    assert right / 3 <= np.mean(result) <= 3 * right


@given(st.integers(1, 200))
def test_samples_either_choose_scales_or_judge_them(count: int) -> None:
    result = with_held_out([{"x": np.array([number])} for number in range(count)])
    chosen, judging = (
        [int(feed["x"][0]) for feed in feeds] for feeds in (result.feeds, result.judging_samples)
    )
    if count < 8:
        assert chosen == judging == list(range(count))
        assert "larger on new inputs" in result.warning
        return
    assert sorted(chosen + judging) == list(range(count))
    assert len(judging) == min(4, count // 4)
    assert result.warning == ""


def test_the_error_of_a_build_is_measured_on_samples_that_chose_no_scale(tmp_path: Path) -> None:
    """The held-out samples are ten times as large. Scales chosen on them would cover them."""
    samples = _inputs(16, 1)
    held = {id(feed) for feed in with_held_out(samples).judging_samples}
    for sample in samples:
        sample["x"] *= 10 if id(sample) in held else 1
    onnx.save(_squares(1.0), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=np.stack([item["x"] for item in samples]))
    options = BuildOptions(
        model=str(tmp_path / "net.onnx"), out=tmp_path / "art", trials=0, tolerance=1.0,
        calibration=tmp_path / "samples.npz",
    )  # fmt: skip
    made = build_artifact(LocalRunner(), options)
    artifact = load(options.out, allow_code=True)
    assert isinstance(artifact, Artifact)
    accuracy = artifact.accuracy()
    assert accuracy is not None
    assert accuracy.samples == 4
    assert accuracy.error > 0.5
    assert made.warnings == ()


def test_few_samples_do_both_and_the_build_says_so(tmp_path: Path) -> None:
    onnx.save(_squares(1.0), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=_inputs(1, 2)[0]["x"])
    options = BuildOptions(
        model=str(tmp_path / "net.onnx"), out=tmp_path / "art", trials=0,
        calibration=tmp_path / "samples.npz",
    )  # fmt: skip
    made = integer_network(options, make_target(options.target), read_model(options))
    assert len(made.samples) == 1
    assert "measured on the one sample that the scales were computed from" in "".join(made.warnings)
