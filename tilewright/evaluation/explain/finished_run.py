"""Reads a finished run: network, target, tuner, every trial in order, and how its search went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, JsonValue

from tilewright.core.errors import TilewrightError
from tilewright.evaluation.compare.plan import TunerConfig
from tilewright.search import FinishedRound, StoredRun, read_store, run_id
from tilewright.targets import Target
from tilewright.targets.capabilities import Bounds, capability, limit_of
from tilewright.targets.display_names import layer
from tilewright.targets.registry import rebuild
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.output_dir import SCHEDULES, STORE, SUMMARY
from tilewright.tuning.read_run import foreign, read_written
from tilewright.tuning.run_figures import best_so_far


class FolderError(TilewrightError):
    """A folder that does not hold a finished run."""


@dataclass(frozen=True)
class TunedFolder:
    """What `tilewright tune` left. `kind` is the target's, `recorded_on` its fingerprint at that
    time."""

    path: Path
    network: str
    target: Target
    kind: str
    space: str
    recorded_on: str
    workloads: tuple[Workload, ...]
    tuner_config: TunerConfig
    seed: int
    batch: int
    counts: Mapping[str, int]
    """Calls of each workload an inference, by its id."""
    titles: Mapping[str, str]
    """What tables call each workload, by its id."""
    problems: list[str] = field(default_factory=list)
    """Trials that could not be used, as far as they were looked at."""

    @property
    def changed(self) -> bool:
        """Whether lowering or simulator are not those of the run any more."""
        return self.target.fingerprint != self.recorded_on

    def rounds(self, workload: Workload) -> list[FinishedRound]:
        """The run's rounds on a workload. Raises `FolderError` if there is none, and
        `WorkloadError` if the target has no schedule for it."""
        cold = run_id(self.tuner_config.explorer, self.seed, self.batch)
        space = self.target.space(workload)
        found: list[FinishedRound] = []
        with suppress(FileNotFoundError), read_store(self.path) as store:
            runs = [
                key for key in store.runs().values() if key[:2] == (workload.id, self.recorded_on)
            ]
            # A run that did not start cold has another name.
            for key in sorted(runs, key=lambda key: (key[2] != cold, key[2])):
                found = found or StoredRun(store, key, space).finished()
            self.problems.extend(text for text in store.problems if text not in self.problems)
        if not found:
            raise FolderError(f"{self.path / STORE} has no trial of {workload}; tune again")
        return found


class _WrittenTarget(BaseModel):
    """The target in `schedules.json`."""

    kind: str
    fingerprint: str
    spec: dict[str, JsonValue]


class _WrittenSchedule(BaseModel):
    """What of a schedule says which workload it is for."""

    workload: str
    epilogue: str
    names: list[str] = Field(default_factory=list)

    @property
    def parsed(self) -> Workload:
        """Raises `WorkloadError`."""
        return parse_workload(self.workload, self.epilogue)


class _ExplainedSchedules(BaseModel):
    """What is read of `schedules.json`."""

    target: _WrittenTarget
    schedules: list[_WrittenSchedule]


class _WrittenWorkload(BaseModel):
    """How often a workload is called."""

    id: str
    count: int


class _ExplainedSummary(BaseModel):
    """What is read of `summary.json`."""

    network: str
    tuner: str
    tuner_options: dict[str, str | int | float | bool]
    space: str
    seed: int
    batch: int
    workloads: list[_WrittenWorkload]


def read_folder(path: Path) -> TunedFolder:
    """The run in a folder. Raises `FolderError`, and `UnsafeFile` for anything but files."""
    summary = read_written(_ExplainedSummary, path, SUMMARY, FolderError)
    schedules = read_written(_ExplainedSchedules, path, SCHEDULES, FolderError)
    options = {name: str(value) for name, value in summary.tuner_options.items()}
    written = schedules.target
    try:
        return TunedFolder(
            path=path,
            network=summary.network,
            target=rebuild(written.kind, written.spec, summary.space),
            kind=written.kind,
            space=summary.space,
            recorded_on=written.fingerprint,
            workloads=tuple(entry.parsed for entry in schedules.schedules),
            titles={
                entry.parsed.id: layer(entry.names, entry.parsed) for entry in schedules.schedules
            },
            tuner_config=TunerConfig(summary.tuner, summary.tuner, tuple(sorted(options.items()))),
            seed=summary.seed,
            batch=summary.batch,
            counts={each.id: each.count for each in summary.workloads},
        )
    except (ValueError, TilewrightError) as error:
        raise FolderError(foreign(path, error)) from None


LATE = 0.25
"""The last part of the trials, in which an improvement says that more would find more."""


@dataclass(frozen=True)
class Trajectory:
    """`best` is the latency of the fastest valid trial up to each, NaN before the first, shape
    (trials,); `limit` what no schedule beats, in the same unit, NaN where that is not known.
    `failures` counts the trials that are not valid by status, `reasons` by reason. `calls` is how
    often an inference runs the workload."""

    best: NDArray[np.float64]
    limit: float
    failures: Counter[str]
    reasons: Counter[str]
    calls: int

    @property
    def trials(self) -> int:
        """How many there are."""
        return len(self.best)

    @property
    def cost(self) -> float:
        """Latency of the best, as often as an inference runs it; NaN without a valid trial."""
        return float(self.best[-1]) * self.calls if self.trials else float("nan")

    @property
    def above(self) -> float:
        """How many times its limit the best takes."""
        return float(self.best[-1]) / self.limit if self.trials else float("nan")

    @property
    def late_gain(self) -> float:
        """By which share the last part of the trials (`LATE`) improved the best; 0 if it did not,
        infinite if the first valid one came then, NaN if there is none."""
        if not self.trials or np.isnan(self.best[-1]):
            return float("nan")
        before = self.best[int((1 - LATE) * self.trials) - 1] if self.trials > 1 else np.nan
        return float("inf") if np.isnan(before) else float(before / self.best[-1] - 1)

    @property
    def last_improvement(self) -> int:
        """The trial, from 1, that is the best of all; 0 if none is valid."""
        found = np.flatnonzero(self.best == self.best[-1]) if self.trials else np.empty(0, np.int64)
        return int(found[0]) + 1 if len(found) else 0


def trajectory_of(folder: TunedFolder, workload: Workload) -> Trajectory:
    """Of a workload of a run. Raises `FolderError` if its trials are missing."""
    rounds = [done.measured for done in folder.rounds(workload)]
    valid = np.concatenate([each.valid for each in rounds])
    latency = np.concatenate([each.latency for each in rounds])
    status = np.concatenate([each.status for each in rounds])
    reason = np.concatenate([each.reason for each in rounds])
    return Trajectory(
        best=best_so_far(np.where(valid, latency, np.nan)),
        limit=_limit(folder, workload),
        failures=Counter(map(str, status[~valid])),
        reasons=Counter(map(str, reason[~valid])),
        calls=folder.counts.get(workload.id, 1),
    )


def _limit(folder: TunedFolder, workload: Workload) -> float:
    known = capability(folder.target, Bounds)
    if known is None:
        return float("nan")
    found = limit_of(known, workload)
    return float(found.cycles) if found.cycles > 0 else found.seconds
