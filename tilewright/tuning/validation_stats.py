"""Describes how sure the figures of a run are on a target that does not repeat them, from its
validation measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from tilewright.tuning.intervals import Interval, interval_of, ratio_interval


class ValidationRow(TypedDict):
    """What of this is in `summary.json`, of one call or of an inference: how many measurements
    were made beside the trials, in how many seconds; the seconds of the chosen and of the baseline
    schedule in each turn of the report, null where one failed; 95 % intervals of both and of the
    gain, null where too little is known."""

    measurements: int
    seconds: float
    tuned_turns: list[float | None]
    baseline_turns: list[float | None]
    tuned_interval: Interval | None
    baseline_interval: Interval | None
    gain_interval: Interval | None


@dataclass(frozen=True)
class ValidationStats:
    """What was measured beside the trials: how many measurements, in how many seconds; the seconds
    of the chosen schedule and of the baseline (empty if there is none) in each turn of the
    report, (turns,), NaN where one failed."""

    measurements: int
    seconds: float
    tuned: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def tuned_interval(self) -> Interval | None:
        """Of the seconds the chosen schedule takes."""
        return interval_of(self.tuned)

    @property
    def gain_interval(self) -> Interval | None:
        """Of the baseline's seconds over the chosen one's."""
        return ratio_interval(self.baseline, self.tuned)

    def row(self) -> ValidationRow:
        """As `summary.json` has it."""
        return {
            "measurements": self.measurements,
            "seconds": round(self.seconds, 3),
            "tuned_turns": [None if math.isnan(each) else each for each in self.tuned],
            "baseline_turns": [None if math.isnan(each) else each for each in self.baseline],
            "tuned_interval": self.tuned_interval,
            "baseline_interval": interval_of(self.baseline),
            "gain_interval": self.gain_interval,
        }


def inference(counts: Sequence[int], rows: Sequence[ValidationRow]) -> ValidationRow:
    """The same of all workloads together, each as often as an inference runs it: turn by turn, as
    far as all of them have one."""
    return ValidationStats(
        sum(row["measurements"] for row in rows),
        sum(row["seconds"] for row in rows),
        _sums(counts, [row["tuned_turns"] for row in rows]),
        _sums(counts, [row["baseline_turns"] for row in rows]),
    ).row()


def _sums(counts: Sequence[int], turns: Sequence[Sequence[float | None]]) -> tuple[float, ...]:
    fewest = min(map(len, turns), default=0)
    table = np.array([row[:fewest] for row in turns], dtype=np.float64)
    return tuple((np.array(counts, dtype=np.float64) @ table).tolist())
