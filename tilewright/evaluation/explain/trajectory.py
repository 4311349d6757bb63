"""Describes how a search went on a workload: its trials one after the other, and what they came
to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.explain.folder import TunedFolder
from tilewright.targets.capabilities import Bounds, capability, limit_of
from tilewright.targets.workload import Workload

LATE = 0.25
"""The last part of the trials, in which an improvement says that more would find more."""


@dataclass(frozen=True)
class Trajectory:
    """`best` is the latency of the fastest valid trial up to each, NaN before the first, shape
    (trials,); `limit` what no schedule beats, in the same unit, NaN where that is not known.
    `failures` counts the trials that are not valid by status, `reasons` by reason. `calls` is how
    often an inference runs the workload."""

    best: NDArray[np.float64]
    limit: float
    failures: Counter[str]
    reasons: Counter[str]
    calls: int

    @property
    def trials(self) -> int:
        """How many there are."""
        return len(self.best)

    @property
    def cost(self) -> float:
        """Latency of the best, as often as an inference runs it; NaN without a valid trial."""
        return float(self.best[-1]) * self.calls if self.trials else float("nan")

    @property
    def above(self) -> float:
        """How many times its limit the best takes."""
        return float(self.best[-1]) / self.limit if self.trials else float("nan")

    @property
    def late_gain(self) -> float:
        """By which share the last part of the trials (`LATE`) improved the best; 0 if it did not,
        infinite if the first valid one came then, NaN if there is none."""
        if not self.trials or np.isnan(self.best[-1]):
            return float("nan")
        before = self.best[int((1 - LATE) * self.trials) - 1] if self.trials > 1 else np.nan
        return float("inf") if np.isnan(before) else float(before / self.best[-1] - 1)

    @property
    def last_improvement(self) -> int:
        """The trial, from 1, that is the best of all; 0 if none is valid."""
        found = np.flatnonzero(self.best == self.best[-1]) if self.trials else np.empty(0, np.int64)
        return int(found[0]) + 1 if len(found) else 0


def trajectory_of(folder: TunedFolder, workload: Workload) -> Trajectory:
    """Of a workload of a run. Raises `FolderError` if its trials are missing."""
    rounds = [done.measured for done in folder.rounds(workload)]
    valid = np.concatenate([each.valid for each in rounds])
    latency = np.concatenate([each.latency for each in rounds])
    status = np.concatenate([each.status for each in rounds])
    reason = np.concatenate([each.reason for each in rounds])
    return Trajectory(
        best=np.fmin.accumulate(np.where(valid, latency, np.nan)),
        limit=_limit(folder, workload),
        failures=Counter(map(str, status[~valid])),
        reasons=Counter(map(str, reason[~valid])),
        calls=folder.counts.get(workload.id, 1),
    )


def _limit(folder: TunedFolder, workload: Workload) -> float:
    known = capability(folder.target, Bounds)
    if known is None:
        return float("nan")
    found = limit_of(known, workload)
    return float(found.cycles) if found.cycles > 0 else found.seconds
