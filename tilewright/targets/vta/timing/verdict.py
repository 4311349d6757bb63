"""Words what a simulation says once nothing happens any more: its cycles, or why FINISH was not
reached.

FINISH counts only if the fetch unit met nothing undecodable before.
"""

from __future__ import annotations

import numba as nb

from tilewright.targets.vta.isa import MODULE_COMPUTE, MODULE_LOAD, MODULE_STORE, POP_NEXT, POP_PREV
from tilewright.targets.vta.njit_args import stage
from tilewright.targets.vta.timing.cycle_accounting import spend
from tilewright.targets.vta.timing.fetch import UNDECODABLE as FETCH_UNDECODABLE
from tilewright.targets.vta.timing.fetch import UNDECODABLE_AT
from tilewright.targets.vta.timing.issue_logic import IssueProgress
from tilewright.targets.vta.timing.outcome import (
    CODE,
    CULPRIT,
    DEADLOCK,
    DONE,
    ENDLESS,
    HEAD,
    MISSING,
    MISSING_FINISH,
    UNDECODABLE,
)
from tilewright.targets.vta.timing.units import TimedRun, TimingUnit, UnitTokens


@stage
def finished(run: TimedRun, total: int) -> bool:
    """Whether FINISH was executed, and the fetch unit did not stop before."""
    return total >= 0 and run.sim.fetch[UNDECODABLE_AT] >= total


@stage
def account_rest(run: TimedRun, load: TimingUnit, store: TimingUnit, total: int) -> None:
    """The cycles between the last instructions of the other modules and FINISH."""
    if run.breakdown.shape[0] > 0:
        spend(run.breakdown, MODULE_LOAD, DONE, load.accounted, total, total)
        spend(run.breakdown, MODULE_STORE, DONE, store.accounted, total, total)


@stage
def failure(
    run: TimedRun, load: TimingUnit, compute: TimingUnit, store: TimingUnit, l2g: UnitTokens,
    s2g: UnitTokens, progress: IssueProgress,
) -> int:  # fmt: skip
    """The code of a program that never finishes."""
    outcome, stopped_at = run.sim.outcome, run.sim.fetch[FETCH_UNDECODABLE]
    if stopped_at >= 0:
        outcome[CODE], outcome[CULPRIT] = UNDECODABLE, stopped_at
    elif progress.endless >= 0:
        outcome[CODE], outcome[CULPRIT] = ENDLESS, progress.endless
    elif load.head + compute.head + store.head == run.insns.shape[0]:
        outcome[CODE] = MISSING_FINISH
    else:
        outcome[CODE] = DEADLOCK
        report_heads(run, load, compute, store, l2g, s2g)
    return outcome[CODE]


@stage
def report_heads(
    run: TimedRun,
    load: TimingUnit,
    compute: TimingUnit,
    store: TimingUnit,
    l2g: UnitTokens,
    s2g: UnitTokens,
) -> None:
    """The instructions a deadlock holds up, and the tokens they miss: one bit a queue."""
    outcome, queues, tails = run.sim.outcome, run.sim.queues, run.sim.tails
    mask = queues.shape[1] - 1
    if load.head < tails[MODULE_LOAD]:
        outcome[HEAD] = queues[MODULE_LOAD, load.head & mask, 0]
        outcome[MISSING] = 2
    if compute.head < tails[MODULE_COMPUTE]:
        insn = queues[MODULE_COMPUTE, compute.head & mask, 0]
        outcome[HEAD + 1] = insn
        if run.insns[insn, 0] & nb.uint64(POP_PREV) and l2g.held == 0:
            outcome[MISSING + 1] += 1
        if run.insns[insn, 0] & nb.uint64(POP_NEXT) and s2g.held == 0:
            outcome[MISSING + 1] += 8
    if store.head < tails[MODULE_STORE]:
        outcome[HEAD + 2] = queues[MODULE_STORE, store.head & mask, 0]
        outcome[MISSING + 2] = 4
