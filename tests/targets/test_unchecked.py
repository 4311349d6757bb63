"""Tests the unchecked schedule space, whose configs fail as they would on hardware.

Tiles that exceed a scratchpad wrap around and compute wrong results.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.schedule_spaces.vta_programs import mismatches
from tilewright.targets import make_target
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.ml2tuner_space import fits
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.verify import wrong_rows
from tilewright.targets.workload import parse_workload

SPEC = VtaSpec.load("evta-zcu102")


def _lowering(text: str) -> Lowering:
    return Lowering.for_workload(parse_workload(text), SPEC, "unchecked")


def _values(lowering: Lowering, count: int, seed: int) -> np.ndarray:
    flat = np.random.default_rng(seed).integers(0, lowering.space.size, count)
    return lowering.space.values(lowering.space.unravel(flat))


def test_the_space_has_the_published_number_of_points() -> None:
    assert _lowering("conv2d:c=64,h=56,w=56,o=64,k=3,p=1").space.size == 25_088


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:c=32,h=14,w=14,o=48,k=3,s=1,p=1",
        "conv2d:c=48,h=14,w=14,o=112,k=3,s=2,p=1",
        "conv2d:c=48,h=28,w=28,o=80,k=1,s=2,p=0",
        "conv2d:c=64,h=7,w=7,o=80,k=3,s=1,p=1",
    ],
)
def test_the_fast_verdict_is_what_the_hardware_computes(text: str) -> None:
    """The whole program is run on all channels with the hardware's wrap-around."""
    lowering = _lowering(text)
    values = _values(lowering, 80, 1)
    fast = wrong_rows(lowering, values)
    run = np.array([mismatches(lowering, row, 0, "chisel") != 0 for row in values])
    assert (fast == run).all(), values[fast != run]
    assert fast.any()
    assert not fast.all()


def test_what_fits_is_right() -> None:
    lowering = _lowering("conv2d:c=32,h=28,w=28,o=32,k=3,s=1,p=1")
    values = _values(lowering, 60, 2)
    fitting = [row for row in values if fits(lowering.geometry, SPEC.machine, row)]
    assert fitting
    assert all(mismatches(lowering, row, 3) == 0 for row in fitting)


def test_measuring_reports_wrong_results_only_after_a_successful_compile() -> None:
    target = make_target("evta-zcu102", "unchecked")
    workload = parse_workload("conv2d:c=32,h=14,w=14,o=32,k=3,s=1,p=1")
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(4).integers(0, space.size, 64))
    lowered = target.lower(workload, configs)
    measured = target.measure(lowered)
    assert lowered.ok.all()
    assert {"valid", "wrong_result"} == set(measured.status)
    assert (measured.cycles[measured.valid] > 0).all()
    assert (measured.cycles[~measured.valid] == -1).all()
