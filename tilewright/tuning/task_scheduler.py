"""Heavy tasks first: the workloads of a network share its trials, and each round goes to the one
whose next round is expected to save the most of the network's latency (`tuning.turns` has them wait
for it).

Whose it is follows from what their histories hold alone: a run that is resumed chooses as one
that was not stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from tilewright.search import History
from tilewright.search.expected_gain import best_latency, expected_saving

Why = Literal["gain", "trials", "exhausted"]


class StopGain(TypedDict):
    """What became of a run's trials, in `summary.json`. `share` is what was asked for, `trials` are
    those of all workloads, of at most so many. `why` no more were made: no next round was expected
    to save more than the share (`gain`), they were spent (`trials`), or nothing is left to try
    (`exhausted`). `expected_gain` is the share of the latency that the best next round would have
    been expected to save; null where none is left, or nothing was valid."""

    share: float
    trials: int
    most_trials: int
    why: Why
    expected_gain: float | None


@dataclass(frozen=True)
class SharingRules:
    """How trials are shared: `trials` a workload on average, `batch` a round, until no round
    is expected to save more than a `share` of the whole."""

    trials: int
    batch: int
    share: float


@dataclass(frozen=True)
class TaskState:
    """Where a workload stands: how often an inference calls it, what a call multiplies, and what
    its rounds have shown. `asks` says whether it waits for a round, `in_hand` are trials of one
    that is under way, `exhausted` is who has nothing left to try. `baseline` is what a call takes
    with the schedule there is without trials, in the unit of `History.latency`, if one is known
    that takes the same each time."""

    count: int
    macs: int
    history: History | None = None
    asks: bool = False
    in_hand: int = 0
    exhausted: bool = False
    baseline: float | None = None

    @property
    def latency(self) -> float:
        """Of all calls, with what is known by now; 0 if nothing is."""
        best = None if self.history is None else best_latency(self.history)
        known = [each for each in (best, self.baseline) if each is not None]
        return self.count * min(known, default=0.0)

    def saving(self, trials: int) -> float:
        """Expected of a round of so many trials (`search.expected_gain`)."""
        if self.history is None:
            return 0.0
        return expected_saving(self.history, self.count, trials, self.baseline)

    @property
    def made(self) -> int:
        """Trials, with those in hand."""
        return self.in_hand + (0 if self.history is None else len(self.history))

    @property
    def weight(self) -> int:
        """Multiply-accumulates of all calls."""
        return self.count * self.macs


def next_round(states: Sequence[TaskState], rules: SharingRules) -> tuple[int, int] | None:
    """Whose the next round is, and of how many trials; None if it is nobody's of those who ask.

    Who has no round yet comes first, the heaviest before all; then who has no valid trial, up to
    the average; then the greatest expected saving. Equals come in their order."""
    found: list[tuple[tuple[float, ...], int, int]] = []
    left, least = trials_left(states, rules), rules.share * _latency(states)
    for place, each in enumerate(states):
        if not each.asks or each.history is None:
            continue
        own = min(rules.batch, rules.trials - len(each.history))
        if each.history.round == 0:
            found.append(((0, -each.weight), place, own))
        elif best_latency(each.history) is None:
            if min(own, left) > 0:
                found.append(((1, len(each.history), -each.weight), place, min(own, left)))
        elif left > 0:
            saving = each.saving(min(rules.batch, left))
            if saving > least:
                found.append(((2, -saving), place, min(rules.batch, left)))
    return min(found)[1:] if found else None


def trials_left(states: Sequence[TaskState], rules: SharingRules) -> int:
    """Of those that all workloads share; below 0 where more were recorded before."""
    return rules.trials * len(states) - sum(each.made for each in states)


def outcome(states: Sequence[TaskState], rules: SharingRules) -> StopGain:
    """What to say of a run in which no round is under way, and no other is to come."""
    left, total = trials_left(states, rules), _latency(states)
    able = [each for each in states if each.history is not None and not each.exhausted]
    savings = [
        each.saving(rules.batch) / total
        for each in able
        if each.history is not None and best_latency(each.history) is not None
    ]
    expected = max(savings, default=None)
    spent = left < 1 and (expected is None or expected > rules.share)
    return {
        "share": rules.share,
        "trials": sum(each.made for each in states),
        "most_trials": rules.trials * len(states),
        "why": "exhausted" if not able else "trials" if spent else "gain",
        "expected_gain": expected,
    }


def _latency(states: Sequence[TaskState]) -> float:
    """Of one inference, as far as it is known."""
    return sum(each.latency for each in states)
