"""Breaks a program's cycles down, seen from the unit that computes: it works, or it waits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.capabilities import PARTS
from tilewright.targets.vta.isa import MODULE_NAMES, POP_PREV
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.stall_kinds import kinds, stalls
from tilewright.targets.vta.timing.errors import CycleError
from tilewright.targets.vta.timing.report import CycleReport, simulate_program

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
