"""Plans a comparison on workloads: which tuners, workloads and seeds, and how many trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.core.errors import TilewrightError
from tilewright.core.user_text import check_names, split_names
from tilewright.evaluation.compare.benchmark_suite import TestBed
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.models import make_explorer
from tilewright.search import Explorer
from tilewright.search.events import Event

Setting = tuple[str, str]
SEED_LIMIT = 2**31 - 1
MOST_SEEDS = 10_000
GOAL = 0.01
"""Regret up to which a schedule counts as optimal: at most 1 % slower than the optimum."""


class PlanError(TilewrightError):
    """Error for an invalid argument of a comparison."""


@dataclass(frozen=True)
class ComparisonBegan(Event):
    """Event that is emitted before the first run of a comparison.

    Attributes:
        kept: number of runs that an earlier call has already finished.
        runs: number of all runs, including the finished ones.
    """

    kept: int
    runs: int


@dataclass(frozen=True)
class TunerConfig:
    """A registered tuner and the options that the user set for it.

    Attributes:
        label: text of the user, such as `autotvm` or `ml2tuner:alpha=2:first=32`.
        tuner: name of the tuner.
        settings: pairs of an option's name and its value, both as text.
    """

    label: str
    tuner: str
    settings: tuple[Setting, ...] = ()

    @property
    def explorer(self) -> Explorer:
        """The tuner as an object that proposes configs.

        Reading it raises `UnknownName` for an unknown tuner and `OptionError` for an invalid
        option.
        """
        return _explorer(self)


@dataclass(frozen=True)
class ComparisonPlan:
    """Plan of a comparison in which every tuner tunes every workload once per seed.

    All runs have the same budget.

    Attributes:
        test_bed: the workloads and their targets.
        tuner_configs: the tuners.
        seeds: the seeds.
        trials: number of trials per run.
        batch: number of trials per batch.
        enough: early stop. After this number of trials, a run ends as soon as it is within `GOAL`
            of the optimum. None means that every run uses its whole budget.
    """

    test_bed: TestBed
    tuner_configs: tuple[TunerConfig, ...]
    seeds: tuple[int, ...]
    trials: int
    batch: int
    enough: int | None = None

    @property
    def jobs(self) -> list[ComparisonJob]:
        """The runs, ordered by workload, so that a process needs few tables at a time."""
        return [
            ComparisonJob(tuner_config, name, seed)
            for name, _ in self.test_bed.workloads
            for seed in self.seeds
            for tuner_config in self.tuner_configs
        ]


@dataclass(frozen=True)
class ComparisonJob:
    """A planned run of a comparison: one tuner tunes one workload with one seed.

    Attributes:
        tuner_config: the tuner.
        workload: name of the workload in the test bed.
        seed: seed of the run.
    """

    tuner_config: TunerConfig
    workload: str
    seed: int


def plan(
    test_bed: TestBed,
    tuner_configs: Sequence[TunerConfig],
    seeds: Sequence[int],
    trials: int,
    batch: int,
    enough: int | None = None,
) -> ComparisonPlan:
    """Return the plan for all combinations of tuners, workloads and seeds.

    Args:
        test_bed: the workloads and their targets.
        tuner_configs: the tuners.
        seeds: the seeds.
        trials: number of trials per run.
        batch: number of trials per batch.
        enough: number of trials after which a run ends as soon as it is within `GOAL` of the
            optimum; None to always use the whole budget.

    Returns:
        The plan.

    Raises:
        PlanError: `trials` or `batch` is below 1.
    """
    check_budget(trials, batch)
    return ComparisonPlan(test_bed, tuple(tuner_configs), tuple(seeds), trials, batch, enough)


def plan_workloads(options: CompareOptions, test_bed: TestBed) -> ComparisonPlan:
    """Return the plan of a comparison on workloads, with the tuners and seeds in the options.

    Args:
        options: options of the comparison.
        test_bed: the workloads and their targets.

    Returns:
        The plan.

    Raises:
        PlanError: the number of trials, the batch or the seeds are invalid.
        TilewrightError: a tuner is invalid; see `tuner_configs_of`.
    """
    configs, seeds = tuner_configs_of(options.tuners), parse_seeds(options.seeds)
    return plan(test_bed, configs, seeds, options.trials, options.batch)


def check_budget(trials: int, batch: int) -> None:
    """Check that every run has at least one trial and every batch at least one config.

    Args:
        trials: number of trials per run.
        batch: number of trials per batch.

    Raises:
        PlanError: a number is below 1.
    """
    if trials < 1:
        raise PlanError(f"--trials {trials} is too small; give every run at least 1 measurement")
    if batch < 1:
        raise PlanError(f"--batch {batch} is too small; measure at least 1 config per round")


def parse_tuner_configs(text: str) -> tuple[TunerConfig, ...]:
    """Parse a comma-separated list of tuners, such as `default,ml2tuner:alpha=2:first=32`.

    Args:
        text: the list. Each entry is the name of a tuner, followed by `:NAME=VALUE` per option.

    Returns:
        The tuners in the given order.

    Raises:
        NameListError: a name is empty or repeated.
        PlanError: an option cannot be parsed.
        UnknownName: a tuner does not exist.
        OptionError: an option of a tuner is invalid.
    """
    return tuner_configs_of(split_names(text, "--tuners"))


def tuner_configs_of(labels: Sequence[str]) -> tuple[TunerConfig, ...]:
    """Parse tuners such as `autotvm` or `ml2tuner:alpha=2:first=32`.

    Args:
        labels: one text per tuner.

    Returns:
        The tuners in the given order.

    Raises:
        NameListError: a name is empty or repeated.
        PlanError: an option cannot be parsed.
        UnknownName: a tuner does not exist.
        OptionError: an option of a tuner is invalid.
    """
    check_names(labels, "--tuners")
    tuner_configs = tuple(_tuner_config(label) for label in labels)
    for tuner_config in tuner_configs:
        _explorer(tuner_config)
    return tuner_configs


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds such as `0-19` or `0,3,7-9`.

    Args:
        text: numbers and ranges, separated by commas.

    Returns:
        The seeds, sorted and without duplicates.

    Raises:
        PlanError: the text cannot be parsed, a seed is too large, or there are too many seeds.
    """
    seeds: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (_digits(first) and _digits(last)):
            raise PlanError(f"--seeds {text}: cannot read '{part.strip()}'; write 0-19 or 0,3,7")
        begin, end = int(first), int(last)
        if begin > end:
            raise PlanError(f"--seeds {text}: {begin} is larger than {end}; write {end}-{begin}")
        if end > SEED_LIMIT:
            raise PlanError(f"--seeds {text}: a seed must be between 0 and {SEED_LIMIT}")
        if end - begin >= MOST_SEEDS or len(seeds) > MOST_SEEDS:
            raise PlanError(f"--seeds {text}: at most {MOST_SEEDS:,} seeds are possible")
        seeds.update(range(begin, end + 1))
    return tuple(sorted(seeds))


def _tuner_config(label: str) -> TunerConfig:
    tuner, *settings = label.split(":")
    pairs = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals and value):
            raise PlanError(f"--tuners {label}: write an option as {tuner}:NAME=VALUE")
        pairs.append((name, value))
    return TunerConfig(label, tuner, tuple(pairs))


@lru_cache(maxsize=64)
def _explorer(tuner_config: TunerConfig) -> Explorer:
    return make_explorer(tuner_config.tuner, dict(tuner_config.settings))


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12
