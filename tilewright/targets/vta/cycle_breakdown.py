"""Breakdown of a program's cycles: when each module works, and what it waits for.

The module also determines which of these waits delay the compute module.
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

_BARS = 3000  # spans that are closer than this fraction of the window are drawn as one


@dataclass(frozen=True, eq=False)
class Spans:
    """Intervals of cycles in ascending order.

    Attributes:
        begins: first cycle of each interval, shape (n,).
        ends: cycle after the last one of each interval, shape (n,).
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def clip(self, first: int, last: int) -> Spans:
        """Return the intervals that overlap the window [first, last), cut to the window.

        Neighbouring intervals that are too close to be distinguished in a plot are merged.

        Args:
            first: first cycle of the window.
            last: cycle after the last one of the window.
        """
        keep = (self.ends > first) & (self.begins < last)
        begins = np.maximum(self.begins[keep], first)
        ends = np.minimum(self.ends[keep], last)
        if not len(begins):
            return Spans(begins, ends)
        new = begins[1:] - ends[:-1] > (last - first) / _BARS
        return Spans(begins[np.concatenate([[True], new])], ends[np.concatenate([new, [True]])])

    def bars(self) -> list[tuple[float, float]]:
        """Return pairs of begin and length, as `Axes.broken_barh` takes them."""
        lengths = self.ends - self.begins
        return [(float(b), float(n)) for b, n in zip(self.begins, lengths, strict=True)]


def instruction_kinds(report: CycleReport) -> NDArray[np.str_]:
    """Name the kind of each instruction of a program, for example `LOAD INP` or `GEMM`.

    The name is that of the opcode. For a LOAD, the name of the memory type follows. A LOAD or STORE
    without elements is called `no-op`.

    Args:
        report: timing of a program with n instructions.

    Returns:
        Names, shape (n,).
    """
    opcode = (report.insns[:, 0] & np.uint64(7)).astype(np.int64)
    memory = (report.insns[:, 0] >> np.uint64(7) & np.uint64(7)).astype(np.int64)
    empty = (report.insns[:, 1] & np.uint64(0xFFFF0000)) == 0
    names = np.array([*OPCODE_NAMES, *["?"] * 3])[opcode].astype(object)
    load = opcode == LOAD
    names[load] = [f"LOAD {(*MEMORY_NAMES, '?', '?')[m]}" for m in memory[load]]
    names[(load | (opcode == STORE)) & empty] = "no-op"
    return names.astype(str)


def stalls(report: CycleReport) -> dict[tuple[str, str], Spans]:
    """Find the gaps between the instructions of each module, and the reason for each gap.

    A module waits for the fetch unit (reason `instruction`) or for a token queue. The k-th pop of a
    queue takes its k-th token. If an instruction waits for two tokens, the gap is attributed to the
    later token. The single cycle in which a module accepts an instruction does not count as a gap.

    Args:
        report: timing of a program.

    Returns:
        The gaps, by module name and reason.
    """
    ran = report.starts >= 0
    arrival, source = _last_tokens(report, ran)
    gaps: dict[tuple[str, str], Spans] = {}
    for module, unit in enumerate(MODULE_NAMES):
        mine = np.flatnonzero(ran & (report.modules == module))
        idle = np.concatenate([[0], report.ends[mine][:-1]])
        decided = report.starts[mine] - 1
        seen = np.clip(report.visible[mine], idle, decided)
        _add_spans(gaps, (unit, "instruction"), idle, seen)
        for queue, name in enumerate(QUEUE_NAMES):
            chosen = (source[mine] == queue) & (arrival[mine] >= decided)
            _add_spans(gaps, (unit, name), seen[chosen], decided[chosen])
    return gaps


def _add_spans(
    spans_of: dict[tuple[str, str], Spans],
    key: tuple[str, str],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    keep = ends > begins
    if keep.any():
        spans_of[key] = Spans(begins[keep], ends[keep])


def _last_tokens(
    report: CycleReport, ran: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the last dependency token that each instruction waited for.

    Args:
        report: simulated times of a program with n instructions.
        ran: mask of the instructions that started, shape (n,).

    Returns:
        The cycle in which the token was sent, and the index of its queue, shape (n,) each. Both are
        -1 for an instruction that waited for no token.
    """
    arrival = np.full(len(ran), -1, np.int64)
    source = np.full(len(ran), -1, np.int64)
    for queue in range(len(QUEUE_NAMES)):
        pushes = (report.ends >= 0) & _flagged(report, queue, (PUSH_PREV, PUSH_NEXT))
        pops = np.flatnonzero(ran & _flagged(report, queue, (POP_PREV, POP_NEXT)))
        times = np.sort(report.ends[pushes])
        initial = max(0, len(pops) - len(times))  # these tokens were in the queue before the launch
        pops = pops[initial:]
        later = times[: len(pops)] > arrival[pops]
        arrival[pops[later]] = times[: len(pops)][later]
        source[pops[later]] = queue
    return arrival, source


def _flagged(report: CycleReport, queue: int, flags: tuple[int, int]) -> NDArray[np.bool_]:
    """Return a mask of the instructions that use a dependency queue in one direction.

    Args:
        report: simulated times of a program with n instructions.
        queue: index of the token queue.
        flags: the two push flags, for instructions that send a token to the queue, or the two pop
            flags, for instructions that take a token from it.

    Returns:
        Mask of shape (n,).
    """
    mask = np.zeros(len(report.insns), np.bool_)
    for module, names in enumerate(FLAG_QUEUES):
        for flag in flags:
            if names[flag.bit_length() - 4] == queue:
                mask |= (report.modules == module) & (report.insns[:, 0] & np.uint64(flag) != 0)
    return mask


UNIT = "compute"
ARITHMETIC = ("GEMM", "ALU")
_WAITS = {"l2g": "reads", "s2g": "writes", "instruction": "reads"}


def breakdown(insns: NDArray[np.uint64], spec: VtaSpec, insn_address: int) -> NDArray[np.int64]:
    """Split the cycles of a program into `PARTS`.

    - Start-up is everything before the first arithmetic on loaded data.
    - Reads are the loads of the compute module itself, and its waiting for the load module or for
      instructions, after start-up.
    - Writes are its waiting for the store module, which frees accumulators or ends the program.
    - Compute is the rest.

    Args:
        insns: instructions, uint64, shape (n, 2).
        spec: the machine.
        insn_address: byte address of the first instruction.

    Returns:
        Cycles per part, shape (4,). They add up to the cycles of the program; all are -1 if the
        program does not finish.
    """
    try:
        report = simulate_program(insns, spec, insn_address)
    except CycleError:
        return np.full(len(PARTS), -1, np.int64)
    mine = np.flatnonzero((report.modules == MODULE_NAMES.index(UNIT)) & (report.starts >= 0))
    kind = instruction_kinds(report)[mine]
    first = _first(report, mine, kind)
    cycles = dict.fromkeys(PARTS, 0)
    cycles["start-up"] = first
    loads = np.array([name.startswith("LOAD") for name in kind], np.bool_)
    cycles["reads"] = _behind(first, report.starts[mine][loads], report.ends[mine][loads])
    for (unit, reason), gaps in stalls(report).items():
        if unit == UNIT and reason in _WAITS:
            cycles[_WAITS[reason]] += _behind(first, gaps.begins, gaps.ends)
    cycles["compute"] = report.total - sum(cycles.values())
    return np.array([cycles[part] for part in PARTS], np.int64)


def _first(report: CycleReport, mine: NDArray[np.int64], kind: NDArray[np.str_]) -> int:
    """Return the cycle in which a program starts the first arithmetic on loaded data.

    This is the first GEMM or ALU instruction after the compute module has waited for the load
    module. If there is none, it is the first GEMM or ALU instruction at all. Without any, it is the
    end of the program.

    Args:
        report: simulated times of a program.
        mine: indices of the compute module's instructions.
        kind: name of the kind of each of these instructions, from `instruction_kinds`.
    """
    works = np.isin(kind, ARITHMETIC)
    waits = (report.insns[mine, 0] & np.uint64(POP_PREV)) != 0
    for chosen in (works & (np.cumsum(waits) > 0), works):
        if chosen.any():
            return int(report.starts[mine][chosen][0])
    return report.total


def _behind(first: int, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Count the cycles after cycle `first` that lie inside the given intervals.

    Args:
        first: the cycle.
        begins: first cycle of each interval, shape (n,).
        ends: cycle after the last one of each interval, shape (n,).
    """
    return int(np.maximum(ends - np.maximum(begins, first), 0).sum())
