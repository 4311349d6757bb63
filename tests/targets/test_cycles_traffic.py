"""Checks that the counts of memory beats and bursts do not overflow their packed words."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.packing import pack_memory
from tilewright.targets.vta.instruction_format import (
    ACC,
    FINISH,
    INP,
    LOAD,
    POP_NEXT,
    PUSH_PREV,
    STORE,
)
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import CycleReport, simulate_batch, simulate_program
from tilewright.targets.vta.timing.transfer_table import MOST_PACKED

PYNQ = VtaSpec.load("vta-pynq")
OUT = 4
LONGEST = 65535
BYTES = {INP: PYNQ.machine.inp_bytes, ACC: PYNQ.machine.acc_bytes, OUT: PYNQ.machine.out_bytes}
MANY_ROWS = 4096  # of ACC: exactly as many beats as can be packed
FINISHED = (FINISH, 0)


def transfer(opcode: int, memory: int, rows: int, flags: int = 0) -> tuple[int, int]:
    """Return a transfer of the longest possible rows, stored contiguously from address 0."""
    lo, hi = pack_memory(opcode, flags, memory, 0, 0, rows, LONGEST, LONGEST, 0, 0, 0, 0)
    return int(lo), int(hi)


def traffic(memory: int, rows: int) -> tuple[int, int]:
    """Compute the beats and bursts of a transfer, row by row.

    A row takes one beat per touched bus word and one burst per window of the maximum burst size.
    """
    machine = PYNQ.machine
    window = machine.bus_bytes * machine.max_burst_beats
    row_bytes, beats, bursts = LONGEST * BYTES[memory], 0, 0
    for row in range(rows):
        begin, end = row * row_bytes, (row + 1) * row_bytes
        beats += -(-end // machine.bus_bytes) - begin // machine.bus_bytes
        bursts += (end - 1) // window - begin // window + 1
    return beats, bursts


def timed(*insns: tuple[int, int]) -> tuple[CycleReport, NDArray[np.uint64]]:
    words = np.array(insns, np.uint64)
    return simulate_program(words, PYNQ), words


def read(report: CycleReport) -> tuple[int, int]:
    """Return the beats and bursts of a report without those of the instruction fetch."""
    return report.read_beats - 2 * len(report.insns), report.read_bursts - 1


def test_as_many_beats_as_can_be_packed() -> None:
    assert traffic(ACC, MANY_ROWS)[0] <= MOST_PACKED < traffic(ACC, MANY_ROWS + 1)[0]


@pytest.mark.parametrize(
    "rows", [MANY_ROWS, pytest.param(MANY_ROWS + 1, marks=pytest.mark.slow(seconds=3))]
)
def test_loads_one_after_the_other(rows: int) -> None:
    count = 5
    report, words = timed(*[transfer(LOAD, ACC, rows)] * count, FINISHED)
    beats, bursts = traffic(ACC, rows)
    assert read(report) == (count * beats, count * bursts)
    assert report.read_beats > 1 << 32
    batch = simulate_batch(words, np.array([0, len(words)]), PYNQ)
    assert (batch.read_beats[0], batch.read_bursts[0]) == (report.read_beats, report.read_bursts)
    lengths = (report.ends - report.starts)[:count]
    assert lengths[-1] >= beats
    assert len(set(lengths[1:].tolist())) == 1


def test_a_load_whose_beats_were_emptied_is_joined() -> None:
    """The packed counter is emptied together with a load's beats, and then another load joins."""
    first = transfer(LOAD, ACC, MANY_ROWS, PUSH_PREV)
    second, third = transfer(LOAD, INP, 100, POP_NEXT), transfer(LOAD, ACC, 3)
    report, _ = timed(first, second, third, FINISHED)
    assert report.starts[1] == report.starts[2] == report.ends[0] + 1
    parts = np.array([traffic(ACC, MANY_ROWS), traffic(INP, 100), traffic(ACC, 3)])
    assert parts[:2, 0].sum() > MOST_PACKED
    assert read(report) == tuple(parts.sum(0))


@pytest.mark.parametrize("rows", [1, 16384, 16385, 65535])
def test_stores_one_after_the_other(rows: int) -> None:
    count = 5
    report, _ = timed(*[transfer(STORE, OUT, rows)] * count, FINISHED)
    beats, bursts = traffic(OUT, rows)
    assert (report.write_beats, report.write_bursts) == (count * beats, count * bursts)


def test_the_rows_of_stores_that_are_counted_apart() -> None:
    beats = [traffic(OUT, rows)[0] for rows in (16384, 16385)]
    assert beats[0] <= MOST_PACKED < beats[1]
