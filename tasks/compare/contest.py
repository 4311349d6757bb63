"""What a comparison runs: which tuners, on which workloads, with which seeds and budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from models import make_explorer
from search import Explorer, tuners
from targets.errors import TilewrightError
from tasks.compare.arena import Arena

Setting = tuple[str, str]
SEED_LIMIT = 2**31 - 1
MOST_SEEDS = 10_000
GOAL = 0.01
"""The regret that counts as found."""


class ContestError(TilewrightError):
    """Arguments of a comparison that make no sense."""


@dataclass(frozen=True)
class Entrant:
    """A registered tuner with settings that differ from its defaults. `label` is what the user
    wrote, `autotvm` or `ml2tuner:alpha=2:veto=0.3`."""

    label: str
    tuner: str
    settings: tuple[Setting, ...] = ()

    @property
    def explorer(self) -> Explorer:
        return _explorer(self)


@dataclass(frozen=True)
class Contest:
    """Every entrant meets every workload of the arena once a seed, with the same budget. A run that
    has come within `GOAL` of the optimum ends after `enough` trials, if that is given."""

    arena: Arena
    entrants: tuple[Entrant, ...]
    seeds: tuple[int, ...]
    trials: int
    batch: int
    enough: int | None = None

    @property
    def jobs(self) -> list[Job]:
        """Workload by workload, so that a process opens few tables at a time."""
        return [
            Job(entrant, name, seed)
            for name, _ in self.arena.workloads
            for seed in self.seeds
            for entrant in self.entrants
        ]


@dataclass(frozen=True)
class Job:
    """One run of a contest."""

    entrant: Entrant
    workload: str
    seed: int


def contest(
    arena: Arena,
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    trials: int,
    batch: int,
    enough: int | None = None,
) -> Contest:
    """Raises `ContestError` if the budget or the batch is below 1."""
    check_budget(trials, batch)
    return Contest(arena, tuple(entrants), tuple(seeds), trials, batch, enough)


def check_budget(trials: int, batch: int) -> None:
    """Raises `ContestError`."""
    if trials < 1:
        raise ContestError(f"--trials {trials}: give every run at least 1 measurement")
    if batch < 1:
        raise ContestError(f"--batch {batch}: measure at least 1 config a round")


def parse_entrants(text: str) -> tuple[Entrant, ...]:
    """`default,autotvm,ml2tuner:alpha=2:veto=0.3`. Raises `ContestError`, `UnknownName` or
    `OptionError`."""
    labels = [part.strip() for part in text.split(",") if part.strip()]
    if not labels:
        known = ", ".join(tuners())
        raise ContestError(f"--tuners '{text}' names no tuner; known: {known}")
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ContestError(f"--tuners names {twice[0]} twice; name each once")
    entrants = tuple(_entrant(label) for label in labels)
    for entrant in entrants:
        _explorer(entrant)
    return entrants


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0-19` or `0,3,7-9` → ascending, each once. Raises `ContestError`."""
    seeds: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (_digits(first) and _digits(last)):
            raise ContestError(f"--seeds {text}: cannot read '{part.strip()}'; write 0-19 or 0,3,7")
        begin, end = int(first), int(last)
        if begin > end:
            raise ContestError(f"--seeds {text}: {begin} is above {end}; write {end}-{begin}")
        if end > SEED_LIMIT:
            raise ContestError(f"--seeds {text}: a seed lies between 0 and {SEED_LIMIT}")
        if end - begin >= MOST_SEEDS or len(seeds) > MOST_SEEDS:
            raise ContestError(f"--seeds {text}: these are more than {MOST_SEEDS:,} seeds")
        seeds.update(range(begin, end + 1))
    return tuple(sorted(seeds))


def _entrant(label: str) -> Entrant:
    tuner, *settings = label.split(":")
    pairs = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals and value):
            raise ContestError(f"--tuners {label}: write an option as {tuner}:NAME=VALUE")
        pairs.append((name, value))
    return Entrant(label, tuner, tuple(pairs))


@lru_cache(maxsize=64)
def _explorer(entrant: Entrant) -> Explorer:
    return make_explorer(entrant.tuner, dict(entrant.settings))


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12
