"""Compares the computed waits of programs with a slow token simulation and known results."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from tilewright.targets import make_target
from tilewright.targets.vta.instruction_format import (
    FLAG_NAMES,
    FLAG_QUEUES,
    GEMM,
    INP,
    MODULE_NAMES,
    decode,
    module_of,
)
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.instruction_writer import ProgramState, columns
from tilewright.targets.workload import parse_workload

WORKLOAD = parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1")
WAITS = ("first_loaded", "exposed_loads", "exposed_stores", "last_stored", "last_iterations")


def read_slowly(lowering: Lowering, program: np.ndarray, state: ProgramState) -> list[float]:
    """Compute the five counts of waits, one instruction at a time, with one queue per direction."""
    m = lowering.machine
    work = state.gemm_iterations + state.alu_iterations + state.reset_iterations
    reads = state.inp_bytes + state.wgt_bytes + state.acc_bytes
    queues: list[deque[tuple[int, int]]] = [deque() for _ in range(4)]
    clock = arrived = 0
    ready, moved = {"load": 0, "store": 0}, {"load": 0, "compute": 0, "store": 0}
    first = loads = stores = 0.0
    last = 0
    started = False
    for lo, hi in program.tolist():
        insn = decode(lo | hi << 64, lowering.layout)
        number = module_of(insn["opcode"], insn.get("memory_type", 0))
        module = MODULE_NAMES[number]
        for flag, queue in zip(FLAG_NAMES[:2], FLAG_QUEUES[number][:2], strict=True):
            if not insn[flag] or queue < 0 or not queues[queue]:
                continue
            since, size = queues[queue].popleft()
            if module != "compute":
                if since > ready[module]:
                    ready[module] = since
                    last = 0 if module == "store" else last
            elif queue == 0 and size:
                arrived = clock
                hidden = (clock - since) * reads / work
                first, loads = (
                    (first, loads + max(0.0, size - hidden)) if started else (first + size, loads)
                )
            elif queue == 3:
                hidden = (clock - since) * state.out_bytes / work
                stores += max(0.0, size - hidden)
        if module == "compute":
            if "uop_bgn" in insn:
                started |= insn["opcode"] == GEMM and not insn["reset_reg"]
                uops = insn["uop_end"] - insn["uop_bgn"]
                clock += uops * insn["iter_out"] * insn["iter_in"]
        else:
            element = m.out_bytes
            if module == "load":
                element = m.inp_bytes if insn["memory_type"] == INP else m.wgt_bytes
            size = insn["y_size"] * insn["x_size"] * element
            moved[module] += size
            last += size if module == "store" else 0
        for flag, queue in zip(FLAG_NAMES[2:], FLAG_QUEUES[number][2:], strict=True):
            if insn[flag] and queue >= 0:
                queues[queue].append((ready.get(module, clock), moved[module]))
                moved[module] = 0
    return [first, loads, stores, last, clock - arrived]


@pytest.mark.parametrize("space", ["template", "extended", "unchecked"])
def test_waits_are_those_of_a_slow_reading(space: SpaceName) -> None:
    lowering = make_target("vta-pynq", space).lowering(WORKLOAD)
    flat = np.random.default_rng(1).permutation(lowering.space.size)[:200]
    values = lowering.space.values(lowering.space.unravel(flat))
    codes, counted = lowering.counts(values)
    fits = np.flatnonzero(codes == 0)[:40]
    assert len(fits) > 15
    for row in fits:
        _, program, _, state = lowering.program(values[row])
        slow = read_slowly(lowering, program, state)
        np.testing.assert_allclose(columns(counted, WAITS)[row], slow, atol=1.0)
    assert (columns(counted, WAITS)[fits].max(axis=0) > 0).sum() >= 4


def test_a_second_slot_hides_loads_and_stores() -> None:
    """The same tiles run with one accumulator slot and two, and with two weight slots and three."""
    lowering = make_target("vta-pynq", "extended").lowering(WORKLOAD)
    names = [knob.name for knob in lowering.space.knobs]
    plain = dict.fromkeys(names, 0) | {
        "tile_h": 7, "tile_w": 14, "tile_co": 2, "tile_ci": 1, "inp_slots": 2, "wgt_slots": 2,
        "acc_slots": 1, "head": 1, "tail": 1,
    }  # fmt: skip
    deeper = plain | {"acc_slots": 2, "inp_slots": 3, "wgt_slots": 3}
    eager = plain | {"head": 4, "ramp": 2, "tail": 8}
    values = np.array([[c[n] for n in names] for c in (plain, deeper, eager)], np.int64)
    codes, counted = lowering.counts(values)
    assert not codes.any()
    _, loads, stores, last, _ = columns(counted, WAITS).T
    assert loads[1] < loads[0]
    assert stores[1] < stores[0]
    assert last[2] < last[0]
    assert counted["first_loaded"][2] < counted["first_loaded"][0]
