"""Computes how sure a figure is that was measured several times, and describes how sure the figures
of a run are on a target that does not repeat them."""

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
    """Two numbers in JSON."""

    low: float
    high: float


def interval_of(values: Sequence[float]) -> Interval | None:
    """Of the median of what `values`, (n,), are drawn from, at `CONFIDENCE` or above whatever its
    distribution: by order statistics. NaN is left out; None for fewer than six values, of which
    there is no such interval."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if len(known) < 2:
        return None
    found = stats.quantile_test(known, p=0.5).confidence_interval(CONFIDENCE)
    ends = Interval(float(found.low), float(found.high))
    return ends if np.isfinite(ends).all() else None


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """The same of a ratio that was measured in turns: what drifts from turn to turn cancels out. Of
    turns that one of the two does not have nothing is taken."""
    turns = min(len(above), len(below))
    return interval_of(np.divide(above[:turns], below[:turns]).tolist())


class ValidationRow(TypedDict):
    """What of this is in `summary.json`, of one call or of an inference: how many measurements
    were made beside the trials, in how many seconds; the seconds of the chosen and of the baseline
    schedule in each turn of the report, null where one failed; 95 % intervals of both and of the
    gain, null where too little is known."""

    measurements: int
    seconds: float
    tuned_turns: list[float | None]
    rule_turns: list[float | None]
    tuned_interval: Interval | None
    rule_interval: Interval | None
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
            "rule_turns": [None if math.isnan(each) else each for each in self.baseline],
            "tuned_interval": self.tuned_interval,
            "rule_interval": interval_of(self.baseline),
            "gain_interval": self.gain_interval,
        }


def inference(counts: Sequence[int], rows: Sequence[ValidationRow]) -> ValidationRow:
    """The same of all workloads together, each as often as an inference runs it: turn by turn, as
    far as all of them have one."""
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
