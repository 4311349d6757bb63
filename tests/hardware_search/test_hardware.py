"""Tests the enumeration of the machines that can be built within bounds and an area budget."""

import numpy as np
import pytest

from tests.hardware_search.small import BOUNDS, BUDGET, small_problem
from tilewright.core.errors import SpecError
from tilewright.hardware_search.hardware_space import HardwareSpace, ImpossibleHardware, area_of
from tilewright.targets import make_target
from tilewright.targets.capabilities import HasDesigns, capability
from tilewright.targets.vta.area import area_of as area_of_spec
from tilewright.targets.vta.target import VtaTarget


def test_every_machine_can_be_built_within_bounds_and_budget():
    hardware = small_problem().hardware
    assert len(hardware.points) > 20
    assert (np.diff(hardware.areas) >= 0).all()
    assert hardware.areas.max() <= BUDGET
    for row in range(0, len(hardware.points), 7):
        spec = hardware.target(row).spec
        for knob, (low, high) in BOUNDS.items():
            assert low <= getattr(spec, knob) <= high
        assert area_of_spec(spec).relative == hardware.areas[row]
        assert hardware.row_of(hardware.points[row]) == row


def test_what_is_left_out_cannot_be_built_or_is_too_large():
    hardware = small_problem().hardware
    family = capability(make_target("vta-pynq"), HasDesigns)
    for flat in range(hardware.space.size):
        point = hardware.space.unravel(np.array([flat]))[0]
        if hardware.row_of(point) is None:
            try:
                made = family.redesign(hardware.space.describe(point.tolist()))
            except SpecError:
                continue
            assert area_of(made) > BUDGET


def test_a_machine_that_cannot_be_built_is_refused_with_the_sum():
    family = capability(make_target("vta-pynq"), HasDesigns)
    with pytest.raises(SpecError, match=r"cannot be encoded: .* = 34 bits, but has 32"):
        family.redesign({"log_block_in": 3})
    with pytest.raises(SpecError, match="there is no hardware knob log_bus"):
        family.redesign({"log_bus": 3})


def test_neighbours_are_one_step_of_one_knob_away():
    hardware = small_problem().hardware
    for row in (0, len(hardware.points) // 2):
        for other in hardware.neighbours(row):
            assert np.abs(hardware.points[row] - hardware.points[other]).sum() == 1


@pytest.mark.parametrize(
    ("budget", "bounds", "said"),
    [
        (0.001, BOUNDS, r"an area of at most 0\.001; the smallest has 0\.\d+"),
        (-1.0, BOUNDS, "--budget -1 is impossible"),
        (float("nan"), BOUNDS, "--budget nan is impossible"),
        (1.0, {"bus_bits": (512, 64)}, "the lower bound is above the upper bound"),
        (1.0, {"bus_bits": (65, 100)}, "no value lies between the bounds"),
        (1.0, {"bus": (64, 64)}, "there is no hardware knob bus; the knobs are log_batch"),
    ],
)
def test_bounds_and_budgets_that_nothing_keeps(budget, bounds, said):
    with pytest.raises(ImpossibleHardware, match=said):
        _ = HardwareSpace(make_target("vta-pynq"), budget, bounds).points


def test_a_target_without_a_family_is_refused():
    with pytest.raises(ImpossibleHardware, match="has no hardware knobs"):
        HardwareSpace(make_target("cpu"), 1.0)


def test_the_clock_falls_with_the_levels_of_the_adder_tree():
    family = capability(make_target("vta-pynq"), HasDesigns)
    mhz = [
        family.redesign(
            {"log_block_in": side, "log_wgt_buff_size": 15}, clock="tree"
        ).spec.clock_mhz
        for side in (3, 4, 5)
    ]
    assert mhz == [pytest.approx(100 * 7 / 6, abs=1e-3), 100.0, pytest.approx(87.5)]


def test_a_design_is_a_target_of_its_own():
    made = small_problem().hardware.target(0)
    assert isinstance(made, VtaTarget)
    assert made.fingerprint != make_target("vta-pynq").fingerprint
