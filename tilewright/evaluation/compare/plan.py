"""Describes what a comparison runs: which tuners, on which workloads, with which seeds and
budget."""

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

Setting = tuple[str, str]
SEED_LIMIT = 2**31 - 1
MOST_SEEDS = 10_000
GOAL = 0.01
"""The regret that counts as found."""


class PlanError(TilewrightError):
    """Arguments of a comparison that make no sense."""


@dataclass(frozen=True)
class TunerConfig:
    """A registered tuner with settings that differ from its defaults. `label` is what the user
    wrote, `autotvm` or `ml2tuner:alpha=2:first=32`."""

    label: str
    tuner: str
    settings: tuple[Setting, ...] = ()

    @property
    def explorer(self) -> Explorer:
        """The tuner itself. Raises `UnknownName` or `OptionError`."""
        return _explorer(self)


@dataclass(frozen=True)
class ComparisonPlan:
    """Every tuner meets every workload of the test bed once a seed, with the same budget: `trials`
    measurements in batches of `batch`. A run that has come within `GOAL` of the optimum ends after
    `enough` trials, if that is given."""

    test_bed: TestBed
    tuner_configs: tuple[TunerConfig, ...]
    seeds: tuple[int, ...]
    trials: int
    batch: int
    enough: int | None = None

    @property
    def jobs(self) -> list[ComparisonJob]:
        """Workload by workload, so that a process opens few tables at a time."""
        return [
            ComparisonJob(tuner_config, name, seed)
            for name, _ in self.test_bed.workloads
            for seed in self.seeds
            for tuner_config in self.tuner_configs
        ]


@dataclass(frozen=True)
class ComparisonJob:
    """One run of a comparison, still to be done; `workload` is its name in the test bed."""

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
    """All of these tuners, workloads and seeds. Raises `PlanError` if the budget or the batch is
    below 1."""
    check_budget(trials, batch)
    return ComparisonPlan(test_bed, tuple(tuner_configs), tuple(seeds), trials, batch, enough)


def plan_workloads(options: CompareOptions, test_bed: TestBed) -> ComparisonPlan:
    """Return the plan of a comparison on workloads. Raises as `plan`, `tuner_configs_of` and
    `parse_seeds`."""
    configs, seeds = tuner_configs_of(options.tuners), parse_seeds(options.seeds)
    return plan(test_bed, configs, seeds, options.trials, options.batch)


def check_budget(trials: int, batch: int) -> None:
    """Raises `PlanError` unless a run has at least 1 trial and a round at least 1 config."""
    if trials < 1:
        raise PlanError(f"--trials {trials}: give every run at least 1 measurement")
    if batch < 1:
        raise PlanError(f"--batch {batch}: measure at least 1 config a round")


def parse_tuner_configs(text: str) -> tuple[TunerConfig, ...]:
    """`default,autotvm,ml2tuner:alpha=2:first=32` as three tuners. Raises `NameListError` or
    `PlanError` if the text cannot be read, `UnknownName` for a tuner there is not, or `OptionError`
    for its options."""
    return tuner_configs_of(split_names(text, "--tuners"))


def tuner_configs_of(labels: Sequence[str]) -> tuple[TunerConfig, ...]:
    """The same of a list. Raises the same."""
    check_names(labels, "--tuners")
    tuner_configs = tuple(_tuner_config(label) for label in labels)
    for tuner_config in tuner_configs:
        _explorer(tuner_config)
    return tuner_configs


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0-19` or `0,3,7-9`: ascending, each once. Raises `PlanError`."""
    seeds: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (_digits(first) and _digits(last)):
            raise PlanError(f"--seeds {text}: cannot read '{part.strip()}'; write 0-19 or 0,3,7")
        begin, end = int(first), int(last)
        if begin > end:
            raise PlanError(f"--seeds {text}: {begin} is above {end}; write {end}-{begin}")
        if end > SEED_LIMIT:
            raise PlanError(f"--seeds {text}: a seed lies between 0 and {SEED_LIMIT}")
        if end - begin >= MOST_SEEDS or len(seeds) > MOST_SEEDS:
            raise PlanError(f"--seeds {text}: these are more than {MOST_SEEDS:,} seeds")
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
