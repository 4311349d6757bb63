"""Plan of a comparison on workloads: tuners, workloads, seeds and budget."""

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
"""Regret up to which a schedule counts as optimal."""


class PlanError(TilewrightError):
    """An argument of a comparison is invalid."""


@dataclass(frozen=True)
class ComparisonBegan(Event):
    """Event: the runs of a comparison start.

    Attributes:
        kept: number of runs that an earlier call finished.
        runs: number of all runs.
    """

    kept: int
    runs: int


@dataclass(frozen=True)
class TunerConfig:
    """A registered tuner with settings that differ from its defaults.

    Attributes:
        label: text of the user, such as `autotvm` or `ml2tuner:alpha=2:first=32`.
        tuner: name of the tuner.
        settings: pairs of an option and its value.
    """

    label: str
    tuner: str
    settings: tuple[Setting, ...] = ()

    @property
    def explorer(self) -> Explorer:
        """The tuner as an object that proposes configs.

        Raises `UnknownName` or `OptionError` if the configuration is invalid.
        """
        return _explorer(self)


@dataclass(frozen=True)
class ComparisonPlan:
    """Plan of a comparison: every tuner tunes every workload once per seed, with the same budget.

    Attributes:
        test_bed: the workloads and their targets.
        tuner_configs: the tuners.
        seeds: the seeds.
        trials: number of measurements per run.
        batch: number of measurements per batch.
        enough: number of trials after which a run that is within `GOAL` of the optimum ends; None
            to always use the whole budget.
    """

    test_bed: TestBed
    tuner_configs: tuple[TunerConfig, ...]
    seeds: tuple[int, ...]
    trials: int
    batch: int
    enough: int | None = None

    @property
    def jobs(self) -> list[ComparisonJob]:
        """The runs, ordered by workload, so that a process has few tables open at a time."""
        return [
            ComparisonJob(tuner_config, name, seed)
            for name, _ in self.test_bed.workloads
            for seed in self.seeds
            for tuner_config in self.tuner_configs
        ]


@dataclass(frozen=True)
class ComparisonJob:
    """A run of a comparison: one tuner tunes one workload with one seed.

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
        trials: number of measurements per run.
        batch: number of measurements per batch.
        enough: number of trials after which a run that is within `GOAL` of the optimum ends; None
            to always use the whole budget.

    Raises:
        PlanError: `trials` or `batch` is below 1.
    """
    check_budget(trials, batch)
    return ComparisonPlan(test_bed, tuple(tuner_configs), tuple(seeds), trials, batch, enough)


def plan_workloads(options: CompareOptions, test_bed: TestBed) -> ComparisonPlan:
    """Return the plan of a comparison on workloads.

    Args:
        options: options of the comparison.
        test_bed: the workloads and their targets.

    Raises:
        PlanError: the budget, the batch or the seeds are invalid.
        TilewrightError: a tuner is invalid, see `tuner_configs_of`.
    """
    configs, seeds = tuner_configs_of(options.tuners), parse_seeds(options.seeds)
    return plan(test_bed, configs, seeds, options.trials, options.batch)


def check_budget(trials: int, batch: int) -> None:
    """Raise `PlanError` if a run has no trials or a batch has no configs."""
    if trials < 1:
        raise PlanError(f"--trials {trials} is too small; give every run at least 1 measurement")
    if batch < 1:
        raise PlanError(f"--batch {batch} is too small; measure at least 1 config per round")


def parse_tuner_configs(text: str) -> tuple[TunerConfig, ...]:
    """Parse a list of tuners such as `default,autotvm,ml2tuner:alpha=2:first=32`.

    Raises:
        NameListError: a name is empty or repeated.
        PlanError: an option cannot be parsed.
        UnknownName: a tuner does not exist.
        OptionError: an option of a tuner is invalid.
    """
    return tuner_configs_of(split_names(text, "--tuners"))


def tuner_configs_of(labels: Sequence[str]) -> tuple[TunerConfig, ...]:
    """Parse tuners such as `autotvm` or `ml2tuner:alpha=2:first=32`.

    The errors are those of `parse_tuner_configs`.
    """
    check_names(labels, "--tuners")
    tuner_configs = tuple(_tuner_config(label) for label in labels)
    for tuner_config in tuner_configs:
        _explorer(tuner_config)
    return tuner_configs


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds such as `0-19` or `0,3,7-9`, and return them sorted without duplicates.

    Raises:
        PlanError: the text cannot be parsed, or there are too many seeds.
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
