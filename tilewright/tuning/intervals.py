"""Confidence intervals of repeated measurements, and of the latencies of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import numpy as np

from tilewright.core.lazy_module import lazy_module

stats = lazy_module("scipy.stats")

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Lower and upper end of an interval."""

    low: float
    high: float


def interval_of(values: Sequence[float]) -> Interval | None:
    """Return a confidence interval of the median, by order statistics.

    The confidence is at least `CONFIDENCE` for any distribution.

    Args:
        values: measurements of shape (n,); NaN is left out.

    Returns:
        The interval, or None for fewer than six values, for which it does not exist.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if len(known) < 2:
        return None
    interval = stats.quantile_test(known, p=0.5).confidence_interval(CONFIDENCE)
    ends = Interval(float(interval.low), float(interval.high))
    return ends if np.isfinite(ends).all() else None


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Return a confidence interval of the median ratio of two values that were measured in turns.

    Drift from turn to turn cancels out. Turns in which one of the two is missing are left out.

    Args:
        above: numerators by turn.
        below: denominators by turn.
    """
    turns = min(len(above), len(below))
    return interval_of(np.divide(above[:turns], below[:turns]).tolist())


class ValidationRow(TypedDict):
    """Entry about validation measurements in `summary.json`, for one call or for an inference.

    Validation measurements decide between the best trials and the rule, the schedule that is used
    without tuning. A turn measures each of these schedules once.

    Attributes:
        measurements: number of validation measurements.
        seconds: total duration of these measurements.
        tuned_turns: seconds of the chosen schedule per turn of the last block; None where it
            failed.
        rule_turns: seconds of the rule's schedule per turn of the last block; None where it failed.
        tuned_interval: 95 % interval of the chosen schedule's seconds, if known.
        rule_interval: 95 % interval of the seconds of the rule's schedule, if known.
        gain_interval: 95 % interval of the ratio of the rule's seconds to the chosen schedule's, if
            known.
    """

    measurements: int
    seconds: float
    tuned_turns: list[float | None]
    rule_turns: list[float | None]
    tuned_interval: Interval | None
    rule_interval: Interval | None
    gain_interval: Interval | None


@dataclass(frozen=True)
class ValidationStats:
    """Validation measurements of a run, which decide between its best trials and the baseline.

    Attributes:
        measurements: number of validation measurements.
        seconds: total duration of these measurements.
        tuned: seconds of the chosen schedule per turn of the last block, shape (turns,); NaN where
            it failed.
        baseline: seconds of the baseline (the schedule used without tuning) in the same turns;
            empty if there is no baseline.
    """

    measurements: int
    seconds: float
    tuned: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def tuned_interval(self) -> Interval | None:
        """Confidence interval of the seconds of the chosen schedule."""
        return interval_of(self.tuned)

    @property
    def gain_interval(self) -> Interval | None:
        """Confidence interval of the baseline's seconds over those of the chosen schedule."""
        return ratio_interval(self.baseline, self.tuned)

    def row(self) -> ValidationRow:
        """Return the entry in `summary.json`."""
        return {
            "measurements": self.measurements,
            "seconds": round(self.seconds, 3),
            "tuned_turns": [
                None if math.isnan(workload_result) else workload_result
                for workload_result in self.tuned
            ],
            "rule_turns": [None if math.isnan(item) else item for item in self.baseline],
            "tuned_interval": self.tuned_interval,
            "rule_interval": interval_of(self.baseline),
            "gain_interval": self.gain_interval,
        }


def inference(counts: Sequence[int], rows: Sequence[ValidationRow]) -> ValidationRow:
    """Combine the entries of all workloads into one entry for an inference, turn by turn.

    The seconds of a turn are the sum over workloads, each times its calls.

    Args:
        counts: calls of each workload per inference.
        rows: entries of the workloads. Turns that some workload lacks are left out.
    """
    return ValidationStats(
        sum(row["measurements"] for row in rows),
        sum(row["seconds"] for row in rows),
        _sums(counts, [row["tuned_turns"] for row in rows]),
        _sums(counts, [row["rule_turns"] for row in rows]),
    ).row()


def _sums(counts: Sequence[int], turns: Sequence[Sequence[float | None]]) -> tuple[float, ...]:
    fewest = min(map(len, turns), default=0)
    table = np.array([row[:fewest] for row in turns], dtype=np.float64)
    return tuple((np.array(counts, dtype=np.float64) @ table).tolist())
