"""Predicts the steps of simulating a program from its instructions, before it begins. Every burst
read and every row written is a step, and one instruction can ask for millions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    ACC,
    ALU,
    GEMM,
    INP,
    LOAD,
    STORE,
    UOP,
    WGT,
    Layout,
)
from tilewright.targets.vta.spec import LOOP_FIELD_BITS, Machine
from tilewright.targets.vta.timing.errors import CycleLimitExceeded, TooManyCycles

WORK_LIMIT = 1 << 30
"""Default bound on a program's steps: half a minute on one core at worst."""
MOST_CYCLES = 1 << 58
"""A program that might run for longer is refused: times are kept in 64 bits."""
_CHUNK = 1 << 16  # instructions looked at at once


def check_work(
    insns: NDArray[np.uint64], machine: Machine, layout: Layout, limit: int = WORK_LIMIT
) -> None:
    """Raises `CycleLimitExceeded` where the steps of `insns` (n, 2) come to more than `limit`, and
    `TooManyCycles` where their cycles might come to more than `MOST_CYCLES`."""
    steps = cycles = 0.0
    for begin in range(0, len(insns), _CHUNK):
        more = most_work(insns[begin : begin + _CHUNK], machine, layout)
        steps_after, cycles_after = steps + np.cumsum(more[0]), cycles + np.cumsum(more[1])
        for total, most, error in (
            (steps_after, limit, CycleLimitExceeded), (cycles_after, MOST_CYCLES, TooManyCycles),
        ):  # fmt: skip
            if total[-1] > most:
                raise error(begin + int(np.argmax(total > most)), most)
        steps, cycles = steps_after[-1], cycles_after[-1]


def most_work(
    insns: NDArray[np.uint64], machine: Machine, layout: Layout
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most so many steps and so many cycles for each instruction, one after the other, each of
    shape (n,); the batches that fetch them included."""
    lo, hi = insns[:, 0], insns[:, 1]
    opcode, memory = _field(lo, 0, 3), _field(lo, 7, 3)
    element = np.zeros(len(insns))
    for kind, size in (
        (UOP, machine.uop_bytes), (INP, machine.inp_bytes), (WGT, machine.wgt_bytes),
        (ACC, machine.acc_bytes),
    ):  # fmt: skip
        element[(opcode == LOAD) & (memory == kind)] = size
    element[opcode == STORE] = machine.out_bytes
    rows, width, pads = _field(hi, 0, 16), _field(hi, 16, 16), _field(hi, 48, 16)
    rows[(rows == 0) & (opcode == STORE)] = 1 << 16  # what a narrow store makes of none
    row_bytes = width * element
    row_bursts = np.where(
        row_bytes > 0, row_bytes // (machine.bus_bytes * machine.max_burst_beats) + 2, 0
    )
    bursts = rows * row_bursts
    beats = rows * (row_bytes // machine.bus_bytes + 2) * (row_bytes > 0)
    padding = np.where(pads > 0, (rows + 30) * (width + 30), 0)
    cycles = bursts * (machine.memory_latency_cycles + 16) + 2 * beats + padding
    computes = (opcode == GEMM) | (opcode == ALU)
    cycles += np.where(computes, 2 * _iterations(lo, hi, layout), 0)
    steps = np.where(opcode == STORE, rows, bursts) + 1
    return steps, cycles + machine.memory_latency_cycles + 32


def _iterations(lo: NDArray[np.uint64], hi: NDArray[np.uint64], lay: Layout) -> NDArray[np.float64]:
    """As `store_and_gemm_cycles.loop_iterations`, but at most: a counter that is 0 or wraps runs in
    full."""
    whole = 1 << LOOP_FIELD_BITS
    outer, inner = (_bits(lo, hi, place, LOOP_FIELD_BITS) for place in (lay.iter_out, lay.iter_in))
    begin = _bits(lo, hi, lay.uop_bgn, lay.uop_index_bits)
    end = _bits(lo, hi, lay.uop_end, lay.uop_index_bits + 1)
    uops = np.where(end > begin, end - begin, 1 << (lay.uop_index_bits + 1))
    return np.where(outer > 0, outer, whole) * np.where(inner > 0, inner, whole) * uops


def _bits(
    lo: NDArray[np.uint64], hi: NDArray[np.uint64], place: int, width: int
) -> NDArray[np.float64]:
    """A field of an instruction, which never lies across its two words."""
    return _field(lo, place, width) if place < 64 else _field(hi, place - 64, width)


def _field(words: NDArray[np.uint64], place: int, width: int) -> NDArray[np.float64]:
    mask = np.uint64((1 << width) - 1)
    return ((words >> np.uint64(place)) & mask).astype(np.float64)
