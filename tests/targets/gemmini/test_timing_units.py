"""Tests parts of the cycle simulator that no recorded stream reaches."""

from __future__ import annotations

import numba as nb
import pytest

from tilewright.targets.gemmini.spec import GemminiMachine, GemminiSpec
from tilewright.targets.gemmini.timing.execute_controller import source_of
from tilewright.targets.gemmini.timing.state import MOST_BANKS

IN_ACCUMULATOR = 1 << 31


@nb.njit
def source(machine: GemminiMachine, address: int) -> int:
    """Call `source_of` from compiled code, because Python cannot call it."""
    return source_of(machine, address, 0)


@pytest.mark.parametrize(
    ("address", "source_of_operand"),
    [
        (0, 0), (4096, 1), (4 * 4096 - 1, 3), (IN_ACCUMULATOR, MOST_BANKS),
        (IN_ACCUMULATOR + 511, MOST_BANKS), (IN_ACCUMULATOR + 600, MOST_BANKS + 1),
    ],
)  # fmt: skip
def test_banks_of_the_accumulator_come_after_the_scratchpads(
    address: int, source_of_operand: int
) -> None:
    assert source(GemminiSpec().machine, address) == source_of_operand
