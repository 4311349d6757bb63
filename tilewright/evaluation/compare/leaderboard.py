"""Ranks the tuners of a comparison.

Whole runs of networks are ranked by latency: a tuner's figure is the median over its seeds, and the
tuner with the shortest median latency wins. Runs of single workloads are ranked by their distance
from the optimum, its price, and how sure that is.

Regret is best latency / optimum - 1, infinite before the first valid trial. A seed's figure over
several workloads is the geometric mean of best / optimum, minus 1, and the plain mean of counts and
seconds. A tuner's figure is the median over seeds. Intervals are 95 % percentile bootstraps over
seeds (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13).

A batch is measured before anyone looks at it. So the cost of a goal (trials, compiles, seconds) is
counted to the end of the batch that reached it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.compare.network_runs import SweptRun
from tilewright.evaluation.compare.plan import GOAL
from tilewright.evaluation.compare.runs import TunerRun
from tilewright.tuning.gains import RULE

OPTIMUM = "optimum"
RESAMPLES = 1000  # of a figure
CURVE_RESAMPLES = 300
COVERAGE = (0.025, 0.975)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ConfidenceInterval:
    """A median over seeds with its 95 % interval; the three are equal with a single seed."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Results:
    """Runs as arrays; axes are always (tuner, workload, seed), then trial.

    Curves, shape (tuners, workloads, seeds, trials): `regret` is infinite before the first valid
    trial, `invalid` counts the invalid trials so far; by the end of a trial's batch, `measured`
    counts the trials, `compiled` every config compiled, `elapsed` the seconds, and `stack` those
    that the recorded stack took, 0 where no table says. A run that exhausted its space stays where
    it ended. Figures of a run, shape (tuners, workloads, seeds): trials it `spent`, configs
    `lowered` beyond them, compiles that `failed` among those, and `seconds`.
    """

    tuners: tuple[str, ...]
    workloads: tuple[str, ...]
    seeds: tuple[int, ...]
    trials: int
    regret: Floats
    invalid: Floats
    spent: NDArray[np.int64]
    lowered: NDArray[np.int64]
    failed: NDArray[np.int64]
    seconds: Floats
    measured: NDArray[np.int64]
    compiled: Floats
    elapsed: Floats
    stack: Floats

    @cached_property
    def first_within(self) -> NDArray[np.int64]:
        """The place in the order of trials of the first one within `GOAL`, counted from 1, shape
        (tuners, workloads, seeds); the whole budget where a run never came there (see `reached`).
        """
        first = np.argmax(self._near, axis=-1) + 1
        return np.where(self.reached, first, self.trials)

    @cached_property
    def trials_to_goal(self) -> NDArray[np.int64]:
        """Trials measured when a run first was within `GOAL`: to the end of that batch. Shape
        (tuners, workloads, seeds); the whole budget where a run never came there."""
        ends = np.take_along_axis(self.measured, self.first_within[..., None] - 1, -1)[..., 0]
        return np.where(self.reached, ends, self.trials)

    @cached_property
    def reached(self) -> NDArray[np.bool_]:
        """Which runs came within `GOAL`, shape (tuners, workloads, seeds)."""
        return self._near[..., -1]

    @cached_property
    def _near(self) -> NDArray[np.bool_]:
        """Where regret is within the goal, what rounding adds to it forgiven."""
        return np.asarray(self.regret <= GOAL + 1e-9)

    def at_goal(self, curve: Floats) -> Floats:
        """The value of a curve (tuners, workloads, seeds, trials) at the trial where the goal was
        reached, or at the end; shape (tuners, workloads, seeds)."""
        return np.take_along_axis(curve, self.trials_to_goal[..., None] - 1, -1)[..., 0]

    @cached_property
    def stack_seconds_to_goal(self) -> Floats:
        """What reaching the goal takes on the recorded stack: its compiling and measuring, and the
        tuner's own time, shape (tuners, workloads, seeds); 0 where no table says."""
        stack = self.at_goal(self.stack)
        return np.where(stack > 0, stack + self.at_goal(self.elapsed), 0.0)

    @cached_property
    def overall(self) -> Floats:
        """Regret of a seed over all workloads, shape (tuners, seeds, trials)."""
        return np.asarray(np.exp(np.log1p(self.regret).mean(axis=1)) - 1.0)


def results_of(runs: Sequence[TunerRun], optimum: Mapping[str, float], trials: int) -> Results:
    """The arrays of `runs`, which are in the order of `evaluation.compare.runs.ordered`. `optimum`
    is by workload, in cycles, or in seconds where none are counted; `trials` the budget of a run.
    """
    tuners = tuple(dict.fromkeys(run.tuner for run in runs))
    workloads = tuple(dict.fromkeys(run.workload for run in runs))
    seeds = tuple(dict.fromkeys(run.seed for run in runs))
    shape = (len(tuners), len(workloads), len(seeds))

    def grid(rows: list[Floats]) -> Floats:
        return np.array(rows).reshape(*shape, -1)

    def each(name: str) -> Floats:
        return np.array([getattr(run, name) for run in runs]).reshape(shape)

    return Results(
        tuners=tuners,
        workloads=workloads,
        seeds=seeds,
        trials=trials,
        regret=grid([_regret(run, optimum[run.workload], trials) for run in runs]),
        invalid=grid([_invalid(run, trials) for run in runs]),
        spent=np.array([len(run.statuses) for run in runs]).reshape(shape),
        lowered=each("lowered").astype(np.int64),
        failed=each("failed_compiles").astype(np.int64),
        seconds=each("wall_seconds"),
        measured=grid([_held(_batch_ends(run), trials) for run in runs]).astype(np.int64),
        compiled=grid([_held(run.compiled, trials) for run in runs]),
        elapsed=grid([_held(run.elapsed_seconds, trials) for run in runs]),
        stack=grid([_held(run.stack_seconds, trials) for run in runs]),
    )


def interval(figures: Floats) -> ConfidenceInterval:
    """Median and bootstrap of figures, one a seed, shape (seeds,)."""
    low, middle, high = band(figures[:, None], RESAMPLES)
    return ConfidenceInterval(float(middle[0]), float(low[0]), float(high[0]))


def band(figures: Floats, resamples: int = CURVE_RESAMPLES) -> tuple[Floats, Floats, Floats]:
    """Low end, median and high end of the 95 % interval over the first axis (seeds), each of the
    remaining shape.

    Infinite figures are allowed; resampling is seeded, so equal runs give equal reports."""
    middle = np.median(figures, axis=0)
    if len(figures) == 1:
        return middle, middle, middle
    drawn = np.random.default_rng(0).integers(0, len(figures), (resamples, len(figures)))
    medians = np.median(figures[drawn], axis=1)
    # An order statistic, since between two infinite medians there is nothing to interpolate.
    low, high = np.quantile(medians, COVERAGE, axis=0, method="inverted_cdf")
    return low, middle, high


# -- one row a tuner -----------------------------------------------------------------------------


@dataclass(frozen=True)
class LeaderboardRow:
    """A tuner's line in the table. Counts and seconds are means over workloads of a run; those to
    the goal count whole batches, and a run that never came there counts with its budget."""

    tuner: str
    regret: ConfidenceInterval
    worst: tuple[str, float]  # workload with the largest median regret
    reached: float  # share of runs within the goal
    trials: ConfidenceInterval  # to the goal
    first_within: (
        ConfidenceInterval  # the place in the order of trials of the first within the goal
    )
    invalid_share: ConfidenceInterval
    invalid: ConfidenceInterval  # trials spent on invalid configs until the goal
    compiled: ConfidenceInterval  # every config compiled until the goal
    failed: ConfidenceInterval  # compiles beyond the trials that failed, in the whole run
    seconds: ConfidenceInterval
    seconds_to_goal: ConfidenceInterval
    stack_to_goal: (
        ConfidenceInterval  # seconds of the recorded stack and the tuner; 0 if none is recorded
    )


def leaderboard(results: Results) -> list[LeaderboardRow]:
    """A line for each tuner, best first: by regret at the end, then by trials to the goal."""
    rows = [_row(results, k) for k in range(len(results.tuners))]
    return sorted(rows, key=lambda row: (round(row.regret.middle, 4), row.trials.middle))


def relative_trials(results: Results, tuner: str, to: str) -> float:
    """Trials to the goal relative to another tuner's: the geometric mean over workloads of the
    ratio of medians over seeds."""
    medians = np.median(results.trials_to_goal, axis=2)
    mine, other = (medians[results.tuners.index(name)] for name in (tuner, to))
    return float(np.exp(np.log(mine / other).mean()))


def _row(results: Results, k: int) -> LeaderboardRow:
    final = np.median(results.regret[k, :, :, -1], axis=1)
    worst = int(np.argmax(final))

    def mean(figures: NDArray[np.generic]) -> ConfidenceInterval:
        return interval(np.asarray(figures[k], np.float64).mean(axis=0))

    return LeaderboardRow(
        tuner=results.tuners[k],
        regret=interval(results.overall[k, :, -1]),
        worst=(results.workloads[worst], float(final[worst])),
        reached=float(results.reached[k].mean()),
        trials=interval(np.exp(np.log(results.trials_to_goal[k]).mean(axis=0))),
        invalid_share=interval(
            results.invalid[k, :, :, -1].sum(axis=0) / results.spent[k].sum(axis=0)
        ),
        invalid=mean(results.at_goal(results.invalid)),
        first_within=interval(np.exp(np.log(results.first_within[k]).mean(axis=0))),
        compiled=mean(results.at_goal(results.compiled)),
        failed=mean(results.failed),
        seconds=mean(results.seconds),
        seconds_to_goal=mean(results.at_goal(results.elapsed)),
        stack_to_goal=mean(results.stack_seconds_to_goal),
    )


# -- one run -------------------------------------------------------------------------------------


def _regret(run: TunerRun, optimum: float, trials: int) -> Floats:
    """At least 0: measured anew, a schedule may take less than when the space was enumerated."""
    best = [np.inf if each is None else max(each / optimum - 1.0, 0.0) for each in run.best]
    return _held(best, trials, np.inf)


def _invalid(run: TunerRun, trials: int) -> Floats:
    return _held(np.cumsum([status != "valid" for status in run.statuses]).tolist(), trials)


def _batch_ends(run: TunerRun) -> list[int]:
    """For each trial, how many trials there were when its batch had been measured: every batch
    compiles something, so the trials of one are those with equal counts."""
    compiled = np.asarray(run.compiled)
    return [int(end) for end in np.searchsorted(compiled, compiled, side="right")]


def _held(curve: Sequence[float], trials: int, empty: float = 0.0) -> Floats:
    """A curve of `trials` entries that stays at its last one."""
    last = curve[-1] if len(curve) else empty
    return np.array([*curve, *[last] * (trials - len(curve))], dtype=np.float64)


# -- what every comparison comes to: in its file, and on the start page ---------------------------


@dataclass(frozen=True)
class TunerMedians:
    """A tuner on one subject and target: medians over its seeds, None where one of them is not
    known; on how many seeds it was the fastest, alone or with others.

    Latencies and gains are those of whole networks. Regret, the share of runs within `GOAL` and the
    trials that they took to come there are known where the optimum is.
    """

    tuner: str
    seeds: int
    gain: float | None
    tuned_cycles: float | None
    tuned_seconds: float | None
    fastest_on: int
    regret: float | None = None
    within_goal: float | None = None
    trials_to_goal: float | None = None
    invalid_share: float | None = None
    wall_seconds: float | None = None


@dataclass(frozen=True)
class Leaderboard:
    """A subject on a target: its tuners, the best first, and those that share the first place.

    The subject is a network, or several workloads. `baseline` says what gains are over; it is
    `OPTIMUM` where tuners are compared with the best config of each space.
    """

    network: str
    target: str
    baseline: str
    tuners: tuple[TunerMedians, ...]
    winners: tuple[str, ...]


def network_leaderboards(runs: Sequence[SweptRun]) -> tuple[Leaderboard, ...]:
    """Of all networks and targets, in the order of the runs."""
    pairs = dict.fromkeys((run.network, run.target) for run in runs)
    return tuple(
        _leaderboard([run for run in runs if (run.network, run.target) == pair]) for pair in pairs
    )


def layer_leaderboard(results: Results, rows: Sequence[LeaderboardRow], target: str) -> Leaderboard:
    """Return the rows of `leaderboard` in the form that whole networks have, too."""
    count = len(results.workloads)
    subject = results.workloads[0] if count == 1 else f"{count} workloads"
    final = results.overall[:, :, -1]
    fastest = (final == final.min(axis=0)) & np.isfinite(final)
    tuners = tuple(
        TunerMedians(
            tuner=row.tuner, seeds=len(results.seeds), gain=None, tuned_cycles=None,
            tuned_seconds=None, fastest_on=int(fastest[results.tuners.index(row.tuner)].sum()),
            regret=_finite(row.regret.middle), within_goal=row.reached,
            trials_to_goal=row.trials.middle, invalid_share=row.invalid_share.middle,
            wall_seconds=row.seconds.middle,
        )
        for row in rows
    )  # fmt: skip
    best = tuners[0]
    equal = (best.regret, best.trials_to_goal)
    winners = tuple(
        each.tuner
        for each in tuners
        if best.regret is not None and (each.regret, each.trials_to_goal) == equal
    )
    return Leaderboard(subject, target, OPTIMUM, tuners, winners)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
        invalid_share=_median(
            [run.invalid_trials / run.trials if run.trials else None for run in runs]
        ),
        wall_seconds=_median([run.wall_seconds for run in runs]),
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
