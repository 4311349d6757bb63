"""Searches the memory sizes of a Gemmini with the co-design methods for VTAs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.targets.gemmini.test_refusals import (
    ACCUMULATOR,
    BASE,
    CONFIG_EX,
    CONFIG_LD,
    CONFIG_ST,
    operand,
)
from tilewright.cli.views.codesign import named_as
from tilewright.core.errors import SpecError
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.hardware_space import HardwareSpace, ImpossibleHardware, area_of
from tilewright.hardware_search.methods import make_method
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.targets import gemmini, make_target
from tilewright.targets.capabilities import HasDesigns, capability
from tilewright.targets.gemmini import isa


def test_machines_within_a_budget_are_those_with_smaller_memories() -> None:
    hardware = HardwareSpace(make_target("gemmini"), 1.0)
    assert hardware.areas[-1] == pytest.approx(1.0), "the default machine"
    bits = [
        128 * spec.scratchpad_rows + 512 * spec.accumulator_rows
        for spec in (hardware.target(row).spec for row in range(len(hardware.points)))
    ]
    assert bits == sorted(bits)
    assert max(bits) == 8 * (256 + 64) * 1024
    with pytest.raises(ImpossibleHardware, match="no machine within these bounds has"):
        _ = HardwareSpace(make_target("gemmini"), 0.01).points


def test_a_machine_keeps_the_array_and_the_port_of_the_one_it_comes_from() -> None:
    base = make_target("gemmini")
    family = capability(base, HasDesigns)
    assert family is not None
    made = family.redesign({"scratchpad_rows": 4096}, "tree")
    assert area_of(made) < 1
    old, new = (item.spec.model_dump(exclude={"name", "source"}) for item in (base, made))  # type: ignore[attr-defined]
    assert {name for name in old if old[name] != new[name]} == {"scratchpad_rows"}
    with pytest.raises(SpecError, match="there is no hardware knob dim"):
        family.redesign({"dim": 32})


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("method", ["ours", "random"])
def test_a_search_of_memories_ends_with_its_budget(method: str) -> None:
    bounds = {"scratchpad_rows": (4096, 8192), "accumulator_rows": (256, 512)}
    hardware = HardwareSpace(make_target("gemmini"), 1.0, bounds)
    evaluator = BudgetedEvaluator(16)
    with suppress(BudgetSpent):
        problem = CodesignProblem(read_networks(["digits_cnn"]), hardware)
        make_method(method, {}).search(problem, evaluator, 0)
    assert len(evaluator.log) == 16
    assert all(point.found.cycles > 0 for point in evaluator.log if point.found.status == "valid")


def test_a_machine_that_was_found_is_named_with_its_kind() -> None:
    spec = Path("specs/gemmini-64k-16k.json")
    assert named_as("gemmini", spec) == f"gemmini:{spec}"
    assert named_as("gemmini:mine.json", spec) == f"gemmini:{spec}"
    assert named_as("vta-pynq", spec) == str(spec)


def _loads_beside_products(first: int) -> list[list[int]]:
    """Return a stream that loads into a scratchpad bank while products read from it.

    The rows that the products read begin at `first`.
    """
    commands = [CONFIG_LD, CONFIG_EX, CONFIG_ST]
    commands += [(isa.MVIN, BASE + 256 * k, operand(first + 16 * k)) for k in range(8)]
    for k in range(8):
        commands += [
            (isa.MVIN, BASE + 4096 + 256 * k, operand(first + 256 + 16 * k)),
            (isa.PRELOAD, operand(first + 16 * k), operand(ACCUMULATOR + 16 * k)),
            (isa.COMPUTE_PRELOADED, operand(first + 16 * (7 - k)), operand(isa.GARBAGE)),
        ]
    return [list(column) for column in zip(*commands, strict=True)]


def test_rows_beyond_those_of_the_default_machine_are_timed_in_their_own_bank() -> None:
    """All four banks of 8,192 rows are equal, so the choice of bank does not affect cycles."""
    machine = {"scratchpad_rows": 32768}
    cycles = {
        gemmini.cycles(*_loads_beside_products(first), machine)[0]
        for first in range(0, 32768, 8192)
    }
    assert len(cycles) == 1
