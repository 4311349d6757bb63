"""Tests random schedules of every kind of layer: results, instruction streams and bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.schedule_spaces.vta_programs import mismatches
from tests.targets.drawn_layers import KINDS, PYNQ, accepted, complaints
from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.target import VtaTarget

SEEDS = st.integers(0, 2**32 - 1)
SLOW = {"averaged": 1.5, "leaky": 1.5, "shortcut": 1.5, "pooled": 2}
"""Seconds that the tests of some kinds of layers take on an idle machine."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow(seconds=SLOW[kind]) if kind in SLOW else ())
        for kind in KINDS
    ],
)
@settings(max_examples=150)
@given(data=st.data(), seed=SEEDS)
def test_accepted_schedules_compute_the_integer_reference(
    kind: str, data: st.DataObject, seed: int
) -> None:
    layers, specs, spaces, may_be_refused = KINDS[kind]
    workload, spec = data.draw(layers), data.draw(st.sampled_from(specs))
    space = data.draw(st.sampled_from(spaces))
    try:
        lowering = Lowering.for_workload(workload, spec, space)
    except WorkloadError:
        assume(not may_be_refused)
        raise
    values = accepted(lowering, seed)
    assume(len(values))
    assert mismatches(lowering, values[0], seed % 1000) == 0
    if space == "extended":
        assert complaints(lowering, values[0]) == []


@pytest.mark.parametrize(("kind", "space"), [("max_pool", "template"), ("pooled", "extended")])
@settings(max_examples=60)
@given(data=st.data(), seed=SEEDS)
def test_maxima_mean_the_same_to_the_hardware(
    kind: str, space: str, data: st.DataObject, seed: int
) -> None:
    """The functional simulator ignores hazards of the ALU, which the hardware semantics have."""
    lowering = Lowering.for_workload(data.draw(KINDS[kind].layers), PYNQ, space)  # type: ignore[arg-type]
    values = accepted(lowering, seed)
    assume(len(values))
    assert mismatches(lowering, values[0], seed % 1000, "chisel") == 0


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data(), seed=SEEDS)
def test_no_schedule_beats_its_bound(kind: str, data: st.DataObject, seed: int) -> None:
    layers, specs, spaces, _ = KINDS[kind]
    workload = data.draw(layers)
    target = VtaTarget(data.draw(st.sampled_from(specs)), data.draw(st.sampled_from(spaces)))
    try:
        space = target.space(workload)
    except WorkloadError:  # as above
        assume(False)
    configs = space.unravel(np.random.default_rng(seed).integers(0, space.size, 32))
    _, measured = target.lower_and_measure(workload, configs)
    assert (measured.valid | (measured.status == "compile_error")).all()
    bounds = target.schedule_bounds(workload, configs)
    assert bounds.min() >= (target.bound(workload).cycles or 0)
    assert (bounds <= np.where(measured.valid, measured.cycles, np.inf)).all()
