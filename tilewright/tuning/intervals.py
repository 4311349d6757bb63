"""Confidence intervals for repeated measurements and for the latencies of a run."""

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
    """Lower and upper end of a confidence interval.

    Attributes:
        low: lower end.
        high: upper end.
    """

    low: float
    high: float


def interval_of(values: Sequence[float]) -> Interval | None:
    """Return a confidence interval for the median, based on order statistics.

    The confidence is at least `CONFIDENCE`, whatever the distribution of the values.

    Args:
        values: measurements, shape (n,); NaN and infinite values are ignored.

    Returns:
        The interval, or None for fewer than six finite values, for which no such interval exists.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if len(known) < 2:
        return None
    interval = stats.quantile_test(known, p=0.5).confidence_interval(CONFIDENCE)
    ends = Interval(float(interval.low), float(interval.high))
    return ends if np.isfinite(ends).all() else None


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Return a confidence interval for the median ratio of two series measured in turns.

    Drift from turn to turn cancels out. Turns in which one of the two values is missing are left
    out.

    Args:
        above: numerator in each turn.
        below: denominator in each turn.

    Returns:
        The interval, or None for fewer than six turns with both values.
    """
    turns = min(len(above), len(below))
    return interval_of(np.divide(above[:turns], below[:turns]).tolist())


class ValidationRow(TypedDict):
    """Entry about validation measurements in `summary.json`, for one call or for an inference.

    Validation measurements decide between the best trials and the rule schedule, which is used
    without tuning. In a turn, each of these schedules is measured once.

    Attributes:
        measurements: number of validation measurements.
        seconds: total duration of these measurements.
        tuned_turns: seconds of the chosen schedule in each turn of the last block; None where it
            failed.
        rule_turns: seconds of the rule schedule in each turn of the last block; None where it
            failed.
        tuned_interval: 95 % interval of the chosen schedule's seconds, if known.
        rule_interval: 95 % interval of the rule schedule's seconds, if known.
        gain_interval: 95 % interval of the speed-up, the rule schedule's seconds divided by the
            chosen schedule's seconds, if known.
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
    """Validation measurements of a workload, which decide between its best trials and the baseline.

    Attributes:
        measurements: number of validation measurements.
        seconds: total duration of these measurements.
        tuned: seconds of the chosen schedule in each turn of the last block, shape (turns,); NaN
            where it failed.
        baseline: seconds of the baseline (the schedule used without tuning) in the same turns;
            empty if there is no baseline.
    """

    measurements: int
    seconds: float
    tuned: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def tuned_interval(self) -> Interval | None:
        """Confidence interval for the median of the chosen schedule's seconds.

        It is None if the chosen schedule ran without a failure in fewer than six turns.
        """
        return interval_of(self.tuned)

    @property
    def gain_interval(self) -> Interval | None:
        """Confidence interval for the median speed-up of the chosen schedule over the baseline.

        It is None if there are fewer than six turns in which both schedules ran without a failure.
        """
        return ratio_interval(self.baseline, self.tuned)

    def row(self) -> ValidationRow:
        """Return the entry about validation measurements in `summary.json`."""
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
    """Combine the entries of all workloads into one entry for an inference.

    The latencies of a turn are summed over the workloads, each weighted by its number of calls. The
    sum is None if a schedule failed in this turn. The numbers of measurements and their total
    durations are summed without weights.

    Args:
        counts: number of calls of each workload per inference.
        rows: entries of the workloads. Turns beyond the smallest number of turns of a workload are
            ignored.
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
