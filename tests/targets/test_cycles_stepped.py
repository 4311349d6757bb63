"""Compares the event-driven with the clock-by-clock cycle simulator on random streams."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.draws import nightly_after
from tests.targets import cycle_stepped
from tests.targets.cycle_streams import Streams, random_spec
from tilewright.targets.vta.timing import simulator_of
from tilewright.targets.vta.timing.simulate import simulate_one
from tilewright.targets.vta.timing.simulator import (
    AHEAD_LOADS,
    BREAKDOWN_COLUMNS,
    DEADLOCK,
    ENDLESS,
    MISSING_FINISH,
    OVERTAKEN,
    RD_BEATS,
    START,
    STOP,
    TIMES_COLUMNS,
    UNDECODABLE,
    WR_BURSTS,
)

LIMIT = 1_000_000
LENGTHS = (1, 3, 10, 30, 60, 150, 400)


def compare(seed: int, small_scratchpads: bool = False) -> int:
    """Compare both simulators on three streams of one machine.

    Returns:
        The number of loads that ended before their data arrived.
    """
    r = random.Random(seed)
    spec = random_spec(r, small_scratchpads)
    sim, streams = simulator_of(spec), Streams(r, spec)
    early = 0
    for _ in range(3):
        insns = streams.stream(r.choice(LENGTHS))
        n = len(insns)
        address = 8 * r.randrange(1, 5000)
        most = min(2, spec.token_limit)
        tokens = np.array([r.choice([0, 0, 0, 1, most]) for _ in range(4)], np.int64)
        starts, ends, counters = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(6, np.int64)
        stepped = cycle_stepped.step(
            insns, address, spec.machine, sim.layout, tokens, starts, ends, counters, LIMIT
        )
        if stepped == cycle_stepped.TOO_LONG:
            continue
        times = np.zeros((n, TIMES_COLUMNS), np.int64)
        breakdown = np.zeros((3, BREAKDOWN_COLUMNS), np.int64)
        total = simulate_one(insns, address, tokens, times, breakdown, sim)
        if total == OVERTAKEN:
            assert counters[cycle_stepped.OVERFLOW] or sim.outcome[AHEAD_LOADS], seed
            continue
        if stepped == cycle_stepped.UNDECODABLE or total == UNDECODABLE:
            assert (stepped, total) == (cycle_stepped.UNDECODABLE, UNDECODABLE), seed
            continue
        if stepped >= 0:
            assert total == stepped, seed
            assert (breakdown.sum(axis=1) == total).all(), seed
        else:
            assert total in (DEADLOCK, MISSING_FINISH, ENDLESS), seed
        np.testing.assert_array_equal(times[:, START], starts, str(seed))
        np.testing.assert_array_equal(times[:, STOP], ends, str(seed))
        moved = sim.outcome[RD_BEATS : WR_BURSTS + 1]
        np.testing.assert_array_equal(moved, counters[1:5], str(seed))
        early += int(sim.outcome[AHEAD_LOADS])
    return early


@pytest.mark.parametrize("block", nightly_after(0, range(8), 8))
def test_random_streams_take_the_same_cycles_stepped_and_from_event_to_event(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        compare(seed)


@pytest.mark.nightly(seconds=6)
def test_loads_that_fill_a_scratchpad_wrap_their_counter_as_in_the_rtl() -> None:
    assert sum(compare(seed, small_scratchpads=True) for seed in range(60)) > 0
