"""Says which tuner won on each network and target of a sweep.

A tuner's figure is the median over its seeds. The tuner with the shortest median latency wins; on
how many seeds each was the fastest, or as fast, stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tilewright.evaluation.sweep.runs import SweptRun
from tilewright.tuning.gains import RULE


@dataclass(frozen=True)
class TunerMedians:
    """A tuner on one network and target: medians over its seeds, None where one of them is not
    known; on how many seeds it was the fastest, alone or with others."""

    tuner: str
    seeds: int
    gain: float | None
    tuned_cycles: float | None
    tuned_seconds: float | None
    fastest_on: int


@dataclass(frozen=True)
class Leaderboard:
    """A network on a target: its tuners, the fastest first, and those that share the first place.
    `baseline` says what gains are over."""

    network: str
    target: str
    baseline: str
    tuners: tuple[TunerMedians, ...]
    winners: tuple[str, ...]


def leaderboards(runs: Sequence[SweptRun]) -> tuple[Leaderboard, ...]:
    """Of all networks and targets, in the order of the runs."""
    pairs = dict.fromkeys((run.network, run.target) for run in runs)
    return tuple(
        _leaderboard([run for run in runs if (run.network, run.target) == pair]) for pair in pairs
    )


def _leaderboard(runs: Sequence[SweptRun]) -> Leaderboard:
    """Of the runs of one network on one target."""
    best = {seed: min(_cost(run) for run in runs if run.seed == seed) for seed in _seeds(runs)}
    names = dict.fromkeys(run.tuner for run in runs)
    tuners = [_tuner_medians([run for run in runs if run.tuner == name], best) for name in names]
    costs = {each.tuner: _median_cost(each) for each in tuners}
    ranked = sorted(tuners, key=lambda each: costs[each.tuner])
    least = costs[ranked[0].tuner]
    winners = [each.tuner for each in ranked if costs[each.tuner] == least < math.inf]
    over = {run.baseline for run in runs}
    first = runs[0]
    return Leaderboard(
        first.network, first.target, over.pop() if len(over) == 1 else RULE, tuple(ranked),
        tuple(winners),
    )  # fmt: skip


def _tuner_medians(runs: Sequence[SweptRun], best: dict[int, float]) -> TunerMedians:
    return TunerMedians(
        tuner=runs[0].tuner,
        seeds=len(runs),
        gain=_median([run.gain for run in runs]),
        tuned_cycles=_median([run.tuned_cycles for run in runs]),
        tuned_seconds=_median([run.tuned_seconds for run in runs]),
        fastest_on=sum(_cost(run) == best[run.seed] < math.inf for run in runs),
    )


def _seeds(runs: Sequence[SweptRun]) -> dict[int, None]:
    return dict.fromkeys(run.seed for run in runs)


def _cost(run: SweptRun) -> float:
    """Cycles, or seconds where none are counted; infinite where nothing valid was found."""
    return run.tuned_cycles or run.tuned_seconds or math.inf


def _median_cost(tuner: TunerMedians) -> float:
    return tuner.tuned_cycles or tuner.tuned_seconds or math.inf


def _median(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return float(median(known)) if len(known) == len(values) else None
