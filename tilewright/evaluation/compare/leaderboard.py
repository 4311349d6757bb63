"""Computes the leaderboard of a comparison of tuners.

A comparison first reduces its runs to one `SeedFigures` per tuner and seed. For whole networks,
`network_figures` does this, and tuners are ranked by latency. For single workloads,
`workload_figures` does this, and tuners are ranked by their regret. The function `leaderboard` then
takes medians over seeds and ranks the tuners; no other function ranks tuners.

Regret is best latency / optimum - 1. It is infinite before the first valid trial. If there are
several workloads, the results of a seed are averaged over the workloads: the geometric mean of best
/ optimum, minus 1, for the regret; the geometric mean for numbers of trials; and the arithmetic
mean for other counts and for seconds. Intervals over seeds are 95 % percentile bootstrap intervals
(Efron & Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13).

A tuner sees the results of a batch only after the whole batch was measured. The cost of reaching a
goal (trials, compilations, seconds) is therefore counted up to the end of the batch that reached
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.compare.network_runs import NetworkRun
from tilewright.evaluation.compare.plan import GOAL
from tilewright.evaluation.compare.workload_runs import TunerRun
from tilewright.tuning.gains import RULE
from tilewright.tuning.run_figures import invalid_share

OPTIMUM = "optimum"
"""Baseline of a leaderboard that compares tuners with the best config of each space."""
YARDSTICK = "autotvm"
"""Tuner with which a verdict compares the best tuner. Users of TVM know AutoTVM."""
RESAMPLES = 1000  # bootstrap resamples of a single number
CURVE_RESAMPLES = 300
COVERAGE = (0.025, 0.975)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ConfidenceInterval:
    """Median of a quantity over seeds, with its 95 % confidence interval.

    With a single seed, both ends of the interval equal the median.

    Attributes:
        middle: the median.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Results:
    """Results of a comparison's runs as arrays with the axes (tuner, workload, seed).

    Curves have a fourth axis, the trials. A run that exhausted its space ends early; its curves
    repeat the last value up to the budget. The regret is how much slower the best schedule so far
    is than the optimum; 0.05 means 5 %.

    Attributes:
        tuners: names of the tuners.
        workloads: names of the workloads.
        seeds: the seeds.
        trials: budget of a run in trials.
        regret: curve of the regret; infinite before the first valid trial.
        invalid: curve of the number of invalid trials so far.
        spent: number of trials of each run.
        lowered: number of configs of each run that were lowered but did not become trials.
        failed: number of configs in `lowered` that did not compile.
        seconds: duration of each run.
        measured: curve: number of trials at the end of the batch of each trial.
        compiled: curve: number of compiled configs at the end of the batch of each trial.
        elapsed: curve: seconds from the start of the run to the end of the batch of each trial.
        stack: curve: seconds that the recorded compiler and board took until the end of the batch
            of each trial; 0 if the table does not contain durations.
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
        """Number of the first trial whose regret is at most `GOAL`, counted from 1.

        Int array of shape (tuners, workloads, seeds). For a run that did not reach the goal (see
        `reached`), it is the whole budget.
        """
        first = np.argmax(self._within_goal, axis=-1) + 1
        return np.where(self.reached, first, self.trials)

    @cached_property
    def trials_to_goal(self) -> NDArray[np.int64]:
        """Number of trials up to the end of the batch in which the regret fell to `GOAL`.

        Int array of shape (tuners, workloads, seeds). For a run that did not reach the goal, it is
        the whole budget.
        """
        ends = np.take_along_axis(self.measured, self.first_within[..., None] - 1, -1)[..., 0]
        return np.where(self.reached, ends, self.trials)

    @cached_property
    def reached(self) -> NDArray[np.bool_]:
        """Mask of the runs that reached `GOAL`, bool array of shape (tuners, workloads, seeds)."""
        return self._within_goal[..., -1]

    @cached_property
    def _within_goal(self) -> NDArray[np.bool_]:
        """Mask of the trials after which the regret is at most `GOAL`, up to rounding errors."""
        return np.asarray(self.regret <= GOAL + 1e-9)

    def at_goal(self, curve: Floats) -> Floats:
        """Return the value of a curve at the end of the batch that reached the goal.

        For a run that did not reach the goal, it is the value at the end of the run.

        Args:
            curve: array of shape (tuners, workloads, seeds, trials).

        Returns:
            Array of shape (tuners, workloads, seeds).
        """
        return np.take_along_axis(curve, self.trials_to_goal[..., None] - 1, -1)[..., 0]

    @cached_property
    def stack_seconds_to_goal(self) -> Floats:
        """Seconds to the goal, as if each run had used the hardware of the recorded table.

        They include compiling, measuring and the tuner's own time. Float array of shape (tuners,
        workloads, seeds); 0 if the table does not contain durations.
        """
        stack = self.at_goal(self.stack)
        return np.where(stack > 0, stack + self.at_goal(self.elapsed), 0.0)

    @cached_property
    def overall(self) -> Floats:
        """Curve of the regret over the trials, averaged over the workloads.

        Float array of shape (tuners, seeds, trials). It is the geometric mean of (regret + 1),
        minus 1.
        """
        return np.asarray(np.exp(np.log1p(self.regret).mean(axis=1)) - 1.0)


def results_of(runs: Sequence[TunerRun], optimum: Mapping[str, float], trials: int) -> Results:
    """Convert the results of runs to arrays.

    Args:
        runs: the results, in the order of `workload_runs.ordered`.
        optimum: latency of the best config, by workload, in cycles, or in seconds if the target
            does not count cycles.
        trials: budget of a run.

    Returns:
        The arrays.
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
        invalid=grid([_invalid_shares(run, trials) for run in runs]),
        spent=np.array([len(run.statuses) for run in runs]).reshape(shape),
        lowered=each("lowered").astype(np.int64),
        failed=each("failed_compiles").astype(np.int64),
        seconds=each("wall_seconds"),
        measured=grid([_extend_curve(_batch_ends(run), trials) for run in runs]).astype(np.int64),
        compiled=grid([_extend_curve(run.compiled, trials) for run in runs]),
        elapsed=grid([_extend_curve(run.elapsed_seconds, trials) for run in runs]),
        stack=grid([_extend_curve(run.stack_seconds, trials) for run in runs]),
    )


def interval(figures: Floats) -> ConfidenceInterval:
    """Return the median of a quantity over seeds, with its 95 % bootstrap interval.

    Args:
        figures: one value per seed, float array of shape (seeds,).

    Returns:
        The median and the interval.
    """
    low, middle, high = band(figures[:, None], RESAMPLES)
    return ConfidenceInterval(float(middle[0]), float(low[0]), float(high[0]))


def band(figures: Floats, resamples: int = CURVE_RESAMPLES) -> tuple[Floats, Floats, Floats]:
    """Return the median over seeds and its 95 % bootstrap interval, for each element of an array.

    Infinite values are allowed. The random numbers have a fixed seed, so that equal runs give equal
    reports. With a single seed, both ends equal the median.

    Args:
        figures: values of any shape whose first axis is the seed.
        resamples: number of bootstrap resamples.

    Returns:
        Lower end, median and upper end, three arrays with the shape of `figures` without its first
        axis.
    """
    middle = np.median(figures, axis=0)
    if len(figures) == 1:
        return middle, middle, middle
    drawn = np.random.default_rng(0).integers(0, len(figures), (resamples, len(figures)))
    medians = np.median(figures[drawn], axis=1)
    # An order statistic, because interpolating between two infinite medians gives NaN.
    low, high = np.quantile(medians, COVERAGE, axis=0, method="inverted_cdf")
    return low, middle, high


# -- the leaderboard -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SeedFigures:
    """Results of one tuner with one seed, averaged over all workloads or for one network.

    Attributes:
        tuner: the tuner, as the user wrote it.
        seed: seed of the runs.
        cost: number by which tuners are ranked, lower is better; None if no schedule was valid.
        figures: results by the name of their field in `LeaderboardRow`; None if unknown.
        workload_regrets: final regret, by workload; empty for networks, whose optimum is unknown.
    """

    tuner: str
    seed: int
    cost: float | None
    figures: Mapping[str, float | None]
    workload_regrets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LeaderboardRow:
    """A tuner's row in a leaderboard.

    Numbers are medians over seeds unless stated otherwise. A number is None if it is unknown for
    some seed or if the median is infinite. Numbers "to the goal" are counted up to the end of the
    batch in which a run came within `GOAL` of the optimum. A run that did not reach the goal counts
    with its whole budget.

    Attributes:
        tuner: the tuner, as the user wrote it.
        seeds: number of seeds.
        gain: speed-up over the baseline.
        tuned_cycles: latency after tuning, in cycles.
        tuned_seconds: latency after tuning, in seconds.
        fastest_on: number of seeds for which no other tuner has a lower cost.
        regret: final regret.
        within_goal: fraction of all runs that reached the goal.
        trials_to_goal: trials to the goal.
        invalid_share: fraction of invalid trials.
        wall_seconds: duration of a run.
        first_within: number of the first trial within the goal.
        invalid_to_goal: invalid trials to the goal.
        compiles_to_goal: compilations to the goal.
        failed_compiles: number of configs that did not compile and were therefore not measured.
        seconds_to_goal: seconds to the goal.
        stack_seconds_to_goal: seconds to the goal with the recorded compiler and board, including
            the tuner's own time.
        worst_workload: workload with the highest median regret.
        worst_regret: median regret of that workload.
        intervals: lower and upper end of the 95 % interval of each median, by field; None for an
            infinite end.
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
    first_within: float | None = None
    invalid_to_goal: float | None = None
    compiles_to_goal: float | None = None
    failed_compiles: float | None = None
    seconds_to_goal: float | None = None
    stack_seconds_to_goal: float | None = None
    worst_workload: str | None = None
    worst_regret: float | None = None
    intervals: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)

    def interval(self, name: str) -> ConfidenceInterval | None:
        """Return the median and the 95 % interval of a field, or None if the field is unknown.

        If the leaderboard has no interval for the field, both ends equal the median.

        Args:
            name: name of the field.
        """
        middle: float | None = getattr(self, name)
        if name not in self.intervals:
            return None if middle is None else ConfidenceInterval(middle, middle, middle)
        low, high = self.intervals[name]
        return ConfidenceInterval(_number(middle), _number(low), _number(high))


@dataclass(frozen=True)
class RelativeTrials:
    """Number of trials to the goal of the best tuner, relative to another tuner.

    Attributes:
        yardstick: name of the other tuner.
        share: trials of the best tuner divided by trials of the other tuner.
        at_most: True if the ratio is only an upper bound, because some runs of the other tuner did
            not reach the goal.
    """

    yardstick: str
    share: float
    at_most: bool


@dataclass(frozen=True)
class Leaderboard:
    """Ranking of tuners for one subject on one target.

    A subject is a network, or a group of workloads that are tuned separately.

    Attributes:
        network: name of the subject.
        target: name of the target.
        baseline: name of the schedules that gains are relative to, such as the rule schedules;
            `OPTIMUM` if tuners are compared with the best config of each space.
        tuners: rows of the tuners, best first.
        winners: tuners that share the first place.
        relative: number of trials that the best tuner needs, relative to the tuner `YARDSTICK`;
            None if `YARDSTICK` did not take part or is the best tuner.
    """

    network: str
    target: str
    baseline: str
    tuners: tuple[LeaderboardRow, ...]
    winners: tuple[str, ...]
    relative: RelativeTrials | None = None


def leaderboard(
    subject: str, target: str, baseline: str, seeds: Sequence[SeedFigures]
) -> Leaderboard:
    """Rank tuners by their median cost over seeds.

    Ties are broken by the number of trials to the goal. A tuner without a cost for one of its
    seeds, because no schedule was valid, is ranked with an infinite cost.

    Args:
        subject: name of the network or of the group of workloads that were tuned.
        target: name of the target.
        baseline: name of the schedules that gains are relative to, such as the rule schedules.
        seeds: results of each tuner and seed; at least one.

    Returns:
        The leaderboard. Its winners are all tuners with the same cost and trials to the goal as the
        first one; there are none if the cost of the first one is infinite.
    """
    costs: dict[int, list[float]] = {}
    for item in seeds:
        costs.setdefault(item.seed, []).append(_number(item.cost))
    least = {seed: min(some) for seed, some in costs.items()}
    names = dict.fromkeys(seed.tuner for seed in seeds)
    ranked = sorted(
        (_ranked_row([seed for seed in seeds if seed.tuner == name], least) for name in names),
        key=lambda pair: pair[0],
    )
    first, _ = ranked[0]
    winners = tuple(row.tuner for rank, row in ranked if rank == first and rank[0] < math.inf)
    return Leaderboard(subject, target, baseline, tuple(row for _, row in ranked), winners)


def _ranked_row(
    seeds: Sequence[SeedFigures], least: Mapping[int, float]
) -> tuple[tuple[float, float], LeaderboardRow]:
    """Return the leaderboard row of a tuner, and the key by which rows are sorted.

    Args:
        seeds: results of the tuner, one entry per seed.
        least: lowest cost of any tuner, by seed.

    Returns:
        The key and the row. The key is the median cost and the trials to the goal. The median cost
        is infinite if a seed has no cost, and the trials are infinite if they are unknown.
    """
    medians = {}
    for name in seeds[0].figures:
        values = [seed.figures[name] for seed in seeds]
        if None not in values:
            medians[name] = interval(np.array(values, np.float64))

    def figure(name: str) -> float | None:
        return _finite(medians[name].middle) if name in medians else None

    within = [share for seed in seeds if (share := seed.figures.get("within_goal")) is not None]
    regrets = {
        name: float(median(seed.workload_regrets[name] for seed in seeds))
        for name in seeds[0].workload_regrets
    }
    worst = max(regrets, key=lambda name: regrets[name], default=None)
    row = LeaderboardRow(
        tuner=seeds[0].tuner,
        seeds=len(seeds),
        gain=figure("gain"),
        tuned_cycles=figure("tuned_cycles"),
        tuned_seconds=figure("tuned_seconds"),
        fastest_on=sum(_number(seed.cost) == least[seed.seed] < math.inf for seed in seeds),
        regret=figure("regret"),
        # A mean over all runs, because a median over seeds would hide the runs that failed.
        within_goal=sum(within) / len(within) if within else None,
        trials_to_goal=figure("trials_to_goal"),
        invalid_share=figure("invalid_share"),
        wall_seconds=figure("wall_seconds"),
        first_within=figure("first_within"),
        invalid_to_goal=figure("invalid_to_goal"),
        compiles_to_goal=figure("compiles_to_goal"),
        failed_compiles=figure("failed_compiles"),
        seconds_to_goal=figure("seconds_to_goal"),
        stack_seconds_to_goal=figure("stack_seconds_to_goal"),
        worst_workload=worst,
        worst_regret=None if worst is None else _finite(regrets[worst]),
        intervals={
            name: (_finite(median.low), _finite(median.high))
            for name, median in medians.items()
            if name != "within_goal"
        },
    )
    costs = [seed.cost for seed in seeds if seed.cost is not None]
    cost = float(median(costs)) if len(costs) == len(seeds) else math.inf
    return (cost, _number(row.trials_to_goal)), row


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- figures of a seed ---------------------------------------------------------------------------


def network_leaderboards(runs: Sequence[NetworkRun]) -> tuple[Leaderboard, ...]:
    """Return one leaderboard per network and target, in the order of the runs."""
    boards = []
    for network, target in dict.fromkeys((run.network, run.target) for run in runs):
        some = [run for run in runs if (run.network, run.target) == (network, target)]
        boards.append(leaderboard(network, target, RULE, network_figures(some)))
    return tuple(boards)


def network_figures(runs: Sequence[NetworkRun]) -> list[SeedFigures]:
    """Convert tuning runs to the entries from which a leaderboard is computed.

    The cost, by which tuners are ranked, is the tuned latency in cycles, or in seconds if the
    target does not count cycles.

    Args:
        runs: the runs of one network on one target.

    Returns:
        One entry per run.
    """
    return [
        SeedFigures(
            run.tuner,
            run.seed,
            run.tuned_cycles or run.tuned_seconds,
            {
                "gain": run.gain,
                "tuned_cycles": run.tuned_cycles,
                "tuned_seconds": run.tuned_seconds,
                "invalid_share": invalid_share(run.invalid_trials, run.trials),
                "wall_seconds": run.wall_seconds,
            },
        )
        for run in runs
    ]


def workload_leaderboard(results: Results, target: str) -> Leaderboard:
    """Return the leaderboard of a comparison on workloads, whose optimum is known.

    Args:
        results: results of the runs as arrays.
        target: name of the target.

    Returns:
        The leaderboard.
    """
    board = leaderboard(subject_of(results.workloads), target, OPTIMUM, workload_figures(results))
    best = board.tuners[0].tuner
    if YARDSTICK not in results.tuners or best == YARDSTICK:
        return board
    always = bool(results.reached[results.tuners.index(YARDSTICK)].all())
    share = relative_trials(results, best, YARDSTICK)
    return replace(board, relative=RelativeTrials(YARDSTICK, share, at_most=not always))


def subject_of(workloads: Sequence[str]) -> str:
    """Return a name for a group of workloads, which becomes the title of a leaderboard."""
    return workloads[0] if len(workloads) == 1 else f"{len(workloads)} workloads"


def workload_figures(results: Results) -> list[SeedFigures]:
    """Average the results of each tuner and seed over all workloads, for a leaderboard.

    Regrets are averaged as in `Results.overall`. `trials_to_goal` and `first_within` are geometric
    means, `invalid_share` is the share of all trials together, and all other results are arithmetic
    means.

    The cost, by which tuners are ranked, is the final regret, rounded to 0.01 %, so that tiny
    differences count as ties.

    Args:
        results: results of the runs as arrays.

    Returns:
        One entry per tuner and seed.
    """
    figures = {
        "regret": results.overall[:, :, -1],
        "within_goal": results.reached.mean(axis=1),
        "trials_to_goal": _geometric_mean(results.trials_to_goal),
        "first_within": _geometric_mean(results.first_within),
        "invalid_share": results.invalid[..., -1].sum(axis=1) / results.spent.sum(axis=1),
        "invalid_to_goal": results.at_goal(results.invalid).mean(axis=1),
        "compiles_to_goal": results.at_goal(results.compiled).mean(axis=1),
        "failed_compiles": results.failed.mean(axis=1),
        "wall_seconds": results.seconds.mean(axis=1),
        "seconds_to_goal": results.at_goal(results.elapsed).mean(axis=1),
    }
    if results.stack_seconds_to_goal.any():
        figures["stack_seconds_to_goal"] = results.stack_seconds_to_goal.mean(axis=1)
    return [
        SeedFigures(
            tuner,
            seed,
            round(float(results.overall[k, s, -1]), 4),
            {name: float(values[k, s]) for name, values in figures.items()},
            {name: float(results.regret[k, w, s, -1]) for w, name in enumerate(results.workloads)},
        )
        for k, tuner in enumerate(results.tuners)
        for s, seed in enumerate(results.seeds)
    ]


def relative_trials(results: Results, tuner: str, to: str) -> float:
    """Return how many trials a tuner needs to reach the goal, relative to another tuner.

    Args:
        results: results of the runs as arrays.
        tuner: the tuner in the numerator.
        to: the tuner in the denominator.

    Returns:
        The ratio; below 1 means that `tuner` needs fewer trials. For each workload, the medians
        over seeds are divided, and the geometric mean over the workloads is taken.
    """
    medians = np.median(results.trials_to_goal, axis=2)
    mine, other = (medians[results.tuners.index(name)] for name in (tuner, to))
    return float(np.exp(np.log(mine / other).mean()))


def _geometric_mean(counts: NDArray[np.int64]) -> Floats:
    """Return the geometric mean of counts over the workloads, the second axis.

    Args:
        counts: array of shape (tuners, workloads, …).
    """
    return np.asarray(np.exp(np.log(counts).mean(axis=1)))


# -- one run -------------------------------------------------------------------------------------


def _regret(run: TunerRun, optimum: float, trials: int) -> Floats:
    """Return the regret of a run after each trial, float array of shape (trials,).

    The regret is how much slower the best schedule so far is than the optimum. If measurements
    vary, a trial may be faster than the optimum in the table; the regret is then 0.

    Args:
        run: the run.
        optimum: latency of the best config in the workload's space.
        trials: length of the result. A run that ended early repeats its last regret.
    """
    best = [np.inf if item is None else max(item / optimum - 1.0, 0.0) for item in run.best]
    return _extend_curve(best, trials, np.inf)


def _invalid_shares(run: TunerRun, trials: int) -> Floats:
    """Return the number of invalid trials so far, after each trial, float array of shape (trials,).

    Args:
        run: the run.
        trials: length of the result. A run that ended early repeats its last number.
    """
    return _extend_curve(np.cumsum([status != "valid" for status in run.statuses]).tolist(), trials)


def _batch_ends(run: TunerRun) -> list[int]:
    """Return, for each trial of a run, the number of trials at the end of the trial's batch.

    Batches are recognised by the number of compilations. It is equal for all trials of a batch and
    larger in the next batch, because every batch compiles at least one config.
    """
    compiled = np.asarray(run.compiled)
    return [int(end) for end in np.searchsorted(compiled, compiled, side="right")]


def _extend_curve(curve: Sequence[float], trials: int, empty: float = 0.0) -> Floats:
    """Repeat the last value of a curve until it has `trials` entries, for a run that ended early.

    Args:
        curve: the values, one per trial of the run.
        trials: length of the result.
        empty: value to repeat if the run has no trials.
    """
    last = curve[-1] if len(curve) else empty
    return np.array([*curve, *[last] * (trials - len(curve))], dtype=np.float64)
