"""Breaks a program's cycles down: what its units do, what they wait for, and which waits delay the
unit that computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.capabilities import PARTS
from tilewright.targets.vta.instruction_format import (
    FLAG_QUEUES,
    LOAD,
    MEMORY_NAMES,
    MODULE_NAMES,
    OPCODE_NAMES,
    POP_NEXT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    QUEUE_NAMES,
    STORE,
)
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing.errors import CycleError
from tilewright.targets.vta.timing.simulate import CycleReport, simulate_program

_BARS = 3000  # spans closer together than this share of the window are drawn as one


@dataclass(frozen=True, eq=False)
class Spans:
    """Intervals of cycles on one lane: begins and ends, shape (n,), ascending."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def within(self, first: int, last: int) -> Spans:
        """What lies in the window [first, last), neighbours merged that no eye could part."""
        keep = (self.ends > first) & (self.begins < last)
        begins = np.maximum(self.begins[keep], first)
        ends = np.minimum(self.ends[keep], last)
        if not len(begins):
            return Spans(begins, ends)
        new = begins[1:] - ends[:-1] > (last - first) / _BARS
        return Spans(begins[np.concatenate([[True], new])], ends[np.concatenate([new, [True]])])

    def bars(self) -> list[tuple[float, float]]:
        """(begin, length), as `Axes.broken_barh` takes them."""
        lengths = self.ends - self.begins
        return [(float(b), float(n)) for b, n in zip(self.begins, lengths, strict=True)]


def kinds(report: CycleReport) -> NDArray[np.str_]:
    """Shape (n,): the kind of each instruction: its opcode's name, of a load with the memory's
    behind it, "no-op" for a transfer of nothing."""
    opcode = (report.insns[:, 0] & np.uint64(7)).astype(np.int64)
    memory = (report.insns[:, 0] >> np.uint64(7) & np.uint64(7)).astype(np.int64)
    empty = (report.insns[:, 1] & np.uint64(0xFFFF0000)) == 0
    names = np.array([*OPCODE_NAMES, *["?"] * 3])[opcode].astype(object)
    load = opcode == LOAD
    names[load] = [f"LOAD {(*MEMORY_NAMES, '?', '?')[m]}" for m in memory[load]]
    names[(load | (opcode == STORE)) & empty] = "no-op"
    return names.astype(str)


def stalls(report: CycleReport) -> dict[tuple[str, str], Spans]:
    """The gaps between instructions by unit and by what they wait for: fetch unit or token queue.

    The k-th pop of a queue takes its k-th token; of two tokens the one that came last is named.
    The one cycle in which an instruction is taken is no stall.
    """
    ran = report.starts >= 0
    arrival, source = _last_tokens(report, ran)
    found: dict[tuple[str, str], Spans] = {}
    for module, unit in enumerate(MODULE_NAMES):
        mine = np.flatnonzero(ran & (report.modules == module))
        idle = np.concatenate([[0], report.ends[mine][:-1]])
        taken = report.starts[mine] - 1
        seen = np.clip(report.visible[mine], idle, taken)
        _add_spans(found, (unit, "instruction"), idle, seen)
        for queue, name in enumerate(QUEUE_NAMES):
            chosen = (source[mine] == queue) & (arrival[mine] >= taken)
            _add_spans(found, (unit, name), seen[chosen], taken[chosen])
    return found


def _add_spans(
    found: dict[tuple[str, str], Spans],
    key: tuple[str, str],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    keep = ends > begins
    if keep.any():
        found[key] = Spans(begins[keep], ends[keep])


def _last_tokens(
    report: CycleReport, ran: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each instruction the cycle and the queue of the last token it popped, -1 for none."""
    arrival = np.full(len(ran), -1, np.int64)
    source = np.full(len(ran), -1, np.int64)
    for queue in range(len(QUEUE_NAMES)):
        pushes = (report.ends >= 0) & _flagged(report, queue, (PUSH_PREV, PUSH_NEXT))
        pops = np.flatnonzero(ran & _flagged(report, queue, (POP_PREV, POP_NEXT)))
        times = np.sort(report.ends[pushes])
        initial = max(0, len(pops) - len(times))  # those were there before launch
        pops = pops[initial:]
        later = times[: len(pops)] > arrival[pops]
        arrival[pops[later]] = times[: len(pops)][later]
        source[pops[later]] = queue
    return arrival, source


def _flagged(report: CycleReport, queue: int, flags: tuple[int, int]) -> NDArray[np.bool_]:
    """Which instructions pop from (or push to) a token queue."""
    found = np.zeros(len(report.insns), np.bool_)
    for module, names in enumerate(FLAG_QUEUES):
        for flag in flags:
            if names[flag.bit_length() - 4] == queue:
                found |= (report.modules == module) & (report.insns[:, 0] & np.uint64(flag) != 0)
    return found


UNIT = "compute"
ARITHMETIC = ("GEMM", "ALU")
_WAITS = {"l2g": "reads", "s2g": "writes", "instruction": "reads"}


def breakdown(insns: NDArray[np.uint64], spec: VtaSpec, insn_address: int) -> NDArray[np.int64]:
    """Cycles of a program, `insns` (n, 2), by `PARTS`, shape (4,): they sum to its cycles; -1 for a
    program that does not run to its end.

    Start-up is all before the first arithmetic on loaded data. From then on, reads are the compute
    unit's own loads and its waiting for the load unit's or for instructions; writes its waiting for
    the store unit, which frees accumulators or ends the program; compute is what is left.
    """
    try:
        report = simulate_program(insns, spec, insn_address)
    except CycleError:
        return np.full(len(PARTS), -1, np.int64)
    mine = np.flatnonzero((report.modules == MODULE_NAMES.index(UNIT)) & (report.starts >= 0))
    kind = kinds(report)[mine]
    first = _first(report, mine, kind)
    found = dict.fromkeys(PARTS, 0)
    found["start-up"] = first
    loads = np.array([each.startswith("LOAD") for each in kind], np.bool_)
    found["reads"] = _behind(first, report.starts[mine][loads], report.ends[mine][loads])
    for (unit, reason), gaps in stalls(report).items():
        if unit == UNIT and reason in _WAITS:
            found[_WAITS[reason]] += _behind(first, gaps.begins, gaps.ends)
    found["compute"] = report.total - sum(found.values())
    return np.array([found[part] for part in PARTS], np.int64)


def _first(report: CycleReport, mine: NDArray[np.int64], kind: NDArray[np.str_]) -> int:
    """The cycle of the first arithmetic that had waited for the load unit; without any, of the
    first; else the program's last."""
    works = np.isin(kind, ARITHMETIC)
    waits = (report.insns[mine, 0] & np.uint64(POP_PREV)) != 0
    for chosen in (works & (np.cumsum(waits) > 0), works):
        if chosen.any():
            return int(report.starts[mine][chosen][0])
    return report.total


def _behind(first: int, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Cycles of intervals, without what lies before `first`."""
    return int(np.maximum(ends - np.maximum(begins, first), 0).sum())
