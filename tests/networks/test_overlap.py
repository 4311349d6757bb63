"""Tests the pipeline schedule of successive images: feasible, near its bound, and correct.

The result is compared with a schedule that is computed one resource at a time.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from integer_nets import random_inputs
from quantised_graphs import Graph
from test_integer_networks import attention_net

from tests.networks.small_artifacts import build_small, rewrite_manifest
from tilewright.flows.build import tuned_picks
from tilewright.networks import artifact
from tilewright.networks.artifact import ArtifactError, load
from tilewright.networks.artifact.pipeline import (
    ENOUGH,
    MOST_IN_FLIGHT,
    PipelineStage,
    bound,
    busy,
    simulate,
    steady_state,
    steady_states,
)
from tilewright.networks.artifact.session import join_outputs, split_images
from tilewright.networks.errors import InputError
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.offloading.cpu_costs import SECONDS, SLOWDOWN
from tilewright.targets.artifact_types import HoldsImages
from tilewright.targets.capabilities import traits_of
from tilewright.targets.layer import Value
from tilewright.targets.registry import kind_of, make_target

CHAINS = st.lists(st.integers(1, 60), min_size=1, max_size=9).map(
    lambda times: [
        PipelineStage("accelerator" if at % 2 else "cpu", time) for at, time in enumerate(times)
    ]
)


@given(CHAINS, st.integers(1, 6), st.integers(1, 12))
def test_a_schedule_is_feasible(stages: list[PipelineStage], in_flight: int, images: int) -> None:
    runs = simulate(stages, images, in_flight)
    assert sorted((run.image, run.stage) for run in runs) == [
        (image, stage) for image in range(images) for stage in range(len(stages))
    ]
    assert all(run.end - run.begin == stages[run.stage].nanoseconds for run in runs)
    by_image = sorted(runs, key=lambda run: (run.image, run.stage))
    for _, group in groupby(by_image, key=lambda run: run.image):
        chain = list(group)
        assert all(a.end <= b.begin for a, b in pairwise(chain))
    for resource in ("cpu", "accelerator"):
        group = sorted((r for r in runs if stages[r.stage].resource == resource),
                     key=lambda run: run.begin)  # fmt: skip
        assert all(a.end <= b.begin for a, b in pairwise(group))
    begins = [min(r.begin for r in runs if r.image == image) for image in range(images)]
    ends = [max(r.end for r in runs if r.image == image) for image in range(images)]
    assert ends == sorted(ends)
    for at in begins:
        assert sum(a <= at < b for a, b in zip(begins, ends, strict=True)) <= in_flight


@given(CHAINS, st.integers(1, 6))
def test_no_schedule_beats_the_bound_and_its_interval_is_that_of_the_simulation(
    stages: list[PipelineStage], in_flight: int
) -> None:
    state = steady_state(stages, in_flight)
    assert state.interval >= bound(stages) * (1 - 1e-9)
    assert state.interval <= (busy(stages, "cpu") + busy(stages, "accelerator")) * (1 + 1e-9)
    images = 200
    last = len(stages) - 1
    ends = [run.end for run in simulate(stages, images, in_flight) if run.stage == last]
    longest = max(stage.nanoseconds for stage in stages) * len(stages)
    inner = ends[: images - in_flight]
    measured = (inner[-1] - inner[0]) / (len(inner) - 1) / 1e9
    assert abs(measured - state.interval) <= in_flight * longest / 1e9 / (len(inner) - 1) + 1e-12


@given(CHAINS)
@example([PipelineStage("cpu", 1), PipelineStage("accelerator", 19), PipelineStage("cpu", 19)])
def test_with_images_enough_the_bound_is_reached(stages: list[PipelineStage]) -> None:
    """If the largest tried number of images is too small, the bound is only nearly reached."""
    states = steady_states(stages)
    enough = ENOUGH if len(states) < MOST_IN_FLIGHT else 1 + 1 / MOST_IN_FLIGHT
    assert states[-1].interval <= enough * bound(stages)


def test_one_image_at_a_time_takes_the_sum_and_two_of_one_stage_each_the_larger() -> None:
    stages = [PipelineStage("cpu", 30), PipelineStage("accelerator", 50)]
    assert steady_state(stages, 1).interval == pytest.approx(80e-9)
    state = steady_state(stages, 2)
    assert state.is_exact
    assert state.interval == pytest.approx(50e-9)
    assert [state.in_flight for state in steady_states(stages)] == [1, 2]


def test_more_images_than_two_are_taken_where_two_leave_the_bound_out_of_reach() -> None:
    """With two images the CPU sometimes waits for both of them."""
    times = (40, 10, 10, 40)
    stages = [
        PipelineStage("accelerator" if at % 2 else "cpu", time) for at, time in enumerate(times)
    ]
    states = steady_states(stages)
    assert states[-1].interval <= ENOUGH * bound(stages)
    assert len(states) > 2
    assert states[1].interval > ENOUGH * bound(stages)


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact with CPU islands between its segments, which tests only read."""
    out = tmp_path_factory.mktemp("attention") / "built"
    model: onnx.ModelProto = attention_net(Graph())
    target = make_target("vta-pynq")
    graph = integer_graph(model, traits_of(target).blocks)
    picks = tuned_picks(artifact.canonical_workloads(graph), target, trials=0)
    seconds = {name: 1e-5 for island in graph.islands for name, _ in island.nodes}
    artifact.build(graph, picks, target, kind_of("vta-pynq")[0].name, out, cpu_seconds=seconds)
    np.savez(out.parent / "inputs.npz", **random_inputs(graph))
    return out


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_images_in_flight_give_what_each_gives_alone(attention: Path, in_flight: int) -> None:
    from tilewright.networks.artifact.pipeline import run_images

    loaded = load(attention, allow_code=True)
    assert isinstance(loaded, artifact.Artifact)
    rng = np.random.default_rng(5)
    images = [
        {v.name: rng.normal(0, 1, v.shape).astype(v.dtype) for v in loaded.inputs} for _ in range(7)
    ]
    alone = [loaded.infer(image) for image in images]
    plan = loaded.plan_images(images[0])
    assert plan.has_islands
    assert plan.cpu.source == "estimated"
    program = loaded.program
    assert isinstance(program, HoldsImages)
    together = run_images(
        loaded._order, program, loaded._cpu, images, plan.stages, in_flight
    )  # fmt: skip
    for one, other in zip(alone, together, strict=True):
        for name, expected in one.items():
            np.testing.assert_array_equal(other[name], expected)
    assert len({array.tobytes() for item in alone for array in item.values()}) > 1
    assert [list(image) for image in loaded.run_images(images[:2], plan)] == [
        list(item) for item in alone[:2]
    ]


@pytest.mark.slow(seconds=1)
def test_a_plan_counts_each_island_and_all_packing(attention: Path) -> None:
    import json

    loaded = load(attention, allow_code=True)
    assert isinstance(loaded, artifact.Artifact)
    manifest = json.loads((attention / "manifest.json").read_text())
    with np.load(attention.parent / "inputs.npz") as inputs:
        plan = loaded.plan_images(dict(inputs))
    islands = sum(island["estimated_seconds"] for island in manifest["cpu"])
    assert islands >= 1e-5 * sum(bool(island["operators"]) for island in manifest["cpu"])
    assert plan.busy("cpu") == pytest.approx(islands + plan.cpu.packing, abs=1e-7)
    assert plan.busy("accelerator") == pytest.approx(manifest["cycles"]["stream"] / 100e6, abs=1e-7)
    assert plan.interval >= plan.bound
    assert plan.interval <= plan.latency
    # tensors that cross the border without unfolding have one byte per element
    moved = sum(
        np.prod(manifest["values"][name]["shape"], dtype=int)
        for step in manifest["steps"] if step["kind"] == "segment"
        for name in (*step["loads"], *step["stores"]) if name in manifest["values"]
    )  # fmt: skip
    assert plan.cpu.packing == pytest.approx(SLOWDOWN * SECONDS["pack"] * moved, rel=0.5)


@pytest.mark.slow(seconds=1)
def test_memory_is_that_of_one_image_and_of_what_each_more_takes(attention: Path) -> None:
    loaded = load(attention, allow_code=True)
    program = loaded.program  # type: ignore[union-attr]
    assert isinstance(program, HoldsImages)
    assert program.room_bytes(1) == loaded.manifest["dram_bytes"]
    for images in (1, 2, 3):
        assert program.with_room(images).dram_bytes == program.room_bytes(images)


@pytest.mark.slow(seconds=1)
def test_an_artifact_without_estimates_is_timed(attention: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(attention, tmp_path / "art")

    def forget(manifest: dict) -> None:  # type: ignore[type-arg]
        manifest.pop("host_slowdown")
        for island in manifest["cpu"]:
            island.pop("estimated_seconds")

    rewrite_manifest(tmp_path / "art", forget)
    loaded = load(tmp_path / "art", allow_code=True)
    assert isinstance(loaded, artifact.Artifact)
    with np.load(attention.parent / "inputs.npz") as inputs:
        plan = loaded.plan_images(dict(inputs))
    assert plan.cpu.source == "measured"
    assert all(island > 0 for island in plan.cpu.islands)


@pytest.mark.parametrize("value", [-1.0, 1e300, "long", True])
def test_a_slowdown_that_cannot_be_is_refused(value: object, tmp_path: Path) -> None:
    build_small(tmp_path / "art")
    rewrite_manifest(tmp_path / "art", lambda m: m.update(host_slowdown=value))
    with pytest.raises(ArtifactError, match="does not have the content that this version builds"):
        load(tmp_path / "art")


def test_a_network_without_islands_overlaps_packing_alone(tmp_path: Path) -> None:
    build_small(tmp_path / "art")
    loaded = load(tmp_path / "art")
    assert isinstance(loaded, artifact.Artifact)
    rng = np.random.default_rng(1)
    images = [{"image": rng.normal(0, 1, (1, 1, 12, 12)).astype(np.float32)} for _ in range(5)]
    plan = loaded.plan_images(images[0])
    assert not plan.has_islands
    assert plan.busy("cpu") == pytest.approx(plan.cpu.packing, abs=1e-8)
    for image, made in zip(images, loaded.run_images(images, plan), strict=True):
        np.testing.assert_array_equal(made["logits"], loaded.infer(image)["logits"])


def test_images_lie_along_the_first_axis() -> None:
    wanted = [Value("x", (2, 3), "float32"), Value("mask", (1, 4), "int8")]
    x, mask = np.arange(18.0).reshape(6, 3), np.ones((1, 4))
    images = split_images(wanted, {"x": x, "mask": mask})
    assert [image["x"].tolist() for image in images] == [
        x[at : at + 2].tolist() for at in (0, 2, 4)
    ]
    assert all(image["mask"] is mask for image in images)
    np.testing.assert_array_equal(join_outputs(images)["x"], x)
    assert join_outputs([{"n": np.float32(1)}, {"n": np.float32(2)}])["n"].tolist() == [1, 2]
    with pytest.raises(InputError, match="different numbers of images: 'x' 3, 'mask' 2"):
        split_images(wanted, {"x": x, "mask": np.ones((2, 4))})
    assert split_images(wanted, {"x": np.zeros((5, 3))})[0]["x"].shape == (5, 3)  # `run` refuses it
