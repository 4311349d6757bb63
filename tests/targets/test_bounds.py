"""Checks that no schedule is faster than its lower bound, on any machine, with any epilogue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layers import RESNET18
from tests.targets.drawn_layers import SPECS, convolutions
from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.workload_bound import bound_cycles, bounds
from tilewright.targets.workload import Workload, parse_workload


@given(convolutions(), st.sampled_from(SPECS), st.integers(0, 2**31))
@settings(max_examples=80)
def test_no_program_beats_its_schedule_bound(workload: Workload, spec: VtaSpec, seed: int) -> None:
    """The schedules are random ones, and those with the lowest and highest bounds."""
    target = VtaTarget(spec, "extended")
    try:
        space = target.space(workload)
    except WorkloadError:
        return
    every = space.unravel(np.arange(space.size))
    bounds = target.schedule_bounds(workload, every)
    assert bounds.min() >= target.bound(workload).cycles
    drawn = np.random.default_rng(seed).integers(0, space.size, 256)
    order = np.argsort(np.where(np.isfinite(bounds), bounds, np.inf), kind="stable")
    fitting = order[: np.isfinite(bounds).sum()]
    flat = np.unique(np.concatenate([drawn, fitting[:64], fitting[-64:]]))
    _, measured = target.lower_and_measure(workload, every[flat])
    assert not measured.valid[np.isinf(bounds[flat])].any()
    assert (measured.cycles[measured.valid] >= bounds[flat][measured.valid]).all()


@pytest.mark.parametrize("epilogue", ["bias, >> 8", "bias, residual 3, >> 8, min 127", ">> 8, add"])
def test_schedule_bounds_are_near_the_cycles_of_programs(epilogue: str) -> None:
    """For a large layer, half of the programs are less than a sixth above their bounds."""
    target = VtaTarget(VtaSpec.load("vta-pynq"), "extended")
    workload = parse_workload("conv2d:n=1,c=128,h=14,w=14,o=128,k=3,p=1", epilogue)
    space = target.space(workload)
    flat = np.random.default_rng(0).integers(0, space.size, 2000)
    bounds = target.schedule_bounds(workload, space.unravel(flat))
    _, measured = target.lower_and_measure(workload, space.unravel(flat[np.isfinite(bounds)]))
    ratios = measured.cycles[measured.valid] / bounds[np.isfinite(bounds)][measured.valid]
    assert 1 <= ratios.min() < 1.02
    assert np.median(ratios) < 1 + 1 / 6


def test_the_bound_counts_what_the_roofline_leaves_out() -> None:
    """In a 1×1 layer with few channels, the epilogue is most of the work."""
    workload = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=1,s=1,p=0", ">> 8, min 127, max 0")
    spec = VtaSpec.load("vta-pynq")
    assert bounds(workload, spec) == {
        "compute": 64 * (1 + 1 + 3), "read": (64 * 16 + 256) // 8, "write": 64 * 16 // 8
    }  # fmt: skip
    target = VtaTarget(spec, "extended")
    assert target.roofline(workload).cycles < target.bound(workload).cycles == 64 * 5


def test_a_tensor_that_comes_first_saves_the_reset_and_its_addition() -> None:
    spec = VtaSpec.load("vta-pynq")
    text = "conv2d:n=1,c=256,h=14,w=14,o=256,k=3,s=1,p=1"
    first, later = (
        bounds(parse_workload(text, epilogue), spec)["compute"]
        for epilogue in ("add, >> 8", ">> 8, add")
    )
    assert later - first == 3 * 16 * 196


@pytest.mark.parametrize(
    ("epilogue", "cycles"),
    [("bias", 2), ("residual 6", 1 + 1), ("residual 7", 1 + 2), ("bias, residual 9", 2 + 2),
     ("add", 8), ("bias, residual 3, add", 8 + 1 + 1), ("bias, >> channel", 2 + 2)],
)  # fmt: skip
def test_what_an_accumulator_takes_besides_the_reduction(epilogue: str, cycles: int) -> None:
    """The bus loads an accumulator in eight beats. The layer has two input blocks and a shift."""
    workload = parse_workload("conv2d:n=1,c=32,h=8,w=8,o=16,k=1", f"{epilogue}, >> 8")
    assert bounds(workload, VtaSpec.load("vta-pynq"))["compute"] == 64 * (2 + cycles + 1)


@pytest.mark.parametrize(("preset", "total"), [("vta-pynq", 7_043_456), ("huge", 544_936)])
def test_the_bound_of_resnet_18_is_the_published_one(preset: str, total: int) -> None:
    """The values are published in `docs/evidence/schedule-spaces.md`."""
    spec = VtaSpec.load(preset)
    layers = RESNET18.values()
    assert sum(count * bound_cycles(workload, spec) for workload, count in layers) == total
