"""Reads a finished run: network, target, tuner, all trials in order, and the search's progress."""

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
from tilewright.tuning.read_run import read_written, unreadable_message
from tilewright.tuning.run_figures import best_so_far


class FolderError(TilewrightError):
    """A folder does not contain a finished run."""


@dataclass(frozen=True)
class TunedFolder:
    """A finished run in the folder that `tilewright tune` wrote.

    Attributes:
        path: the folder.
        network: name of the network.
        target: the target, rebuilt.
        kind: kind of the target.
        space: name of the schedule space.
        recorded_on: fingerprint of the target during the run.
        workloads: the workloads.
        tuner_config: the tuner.
        seed: seed of the run.
        batch: number of trials per round.
        counts: calls of each workload per inference, by its ID.
        titles: name of each workload in tables, by its ID.
        problems: trials that could not be used, of those that were read so far.
    """

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
    titles: Mapping[str, str]
    problems: list[str] = field(default_factory=list)

    @property
    def target_changed(self) -> bool:
        """Whether the lowering or the simulator has changed since the run."""
        return self.target.fingerprint != self.recorded_on

    def rounds(self, workload: Workload) -> list[FinishedRound]:
        """Return the rounds in which a workload was tuned.

        Raises:
            FolderError: there are no trials of the workload.
            WorkloadError: the target has no schedule for the workload.
        """
        cold = run_id(self.tuner_config.explorer, self.seed, self.batch)
        space = self.target.space(workload)
        rounds: list[FinishedRound] = []
        with suppress(FileNotFoundError), read_store(self.path) as store:
            runs = [
                key for key in store.runs().values() if key[:2] == (workload.id, self.recorded_on)
            ]
            # A run that did not start cold has another name.
            for key in sorted(runs, key=lambda key: (key[2] != cold, key[2])):
                rounds = rounds or StoredRun(store, key, space).finished_rounds()
            self.problems.extend(text for text in store.problems if text not in self.problems)
        if not rounds:
            raise FolderError(f"{self.path / STORE} has no trial of {workload}; tune again")
        return rounds


class _WrittenTarget(BaseModel):
    """The target in `schedules.json`."""

    kind: str
    fingerprint: str
    spec: dict[str, JsonValue]


class _WrittenSchedule(BaseModel):
    """Fields of a schedule that identify its workload."""

    workload: str
    epilogue: str
    names: list[str] = Field(default_factory=list)

    @property
    def parsed(self) -> Workload:
        """The workload. Raises `WorkloadError` if its text is invalid."""
        return parse_workload(self.workload, self.epilogue)


class _ExplainedSchedules(BaseModel):
    """Fields of `schedules.json` that are used."""

    target: _WrittenTarget
    schedules: list[_WrittenSchedule]


class _WrittenWorkload(BaseModel):
    """Number of calls of a workload."""

    id: str
    count: int


class _ExplainedSummary(BaseModel):
    """Fields of `summary.json` that are used."""

    network: str
    tuner: str
    tuner_options: dict[str, str | int | float | bool]
    space: str
    seed: int
    batch: int
    workloads: list[_WrittenWorkload]


def read_folder(path: Path) -> TunedFolder:
    """Read the run in a folder.

    Raises:
        FolderError: the folder does not contain a readable finished run.
        UnsafeFile: a path is not a regular file.
    """
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
            counts={workload.id: workload.count for workload in summary.workloads},
        )
    except (ValueError, TilewrightError) as error:
        raise FolderError(unreadable_message(path, error)) from None


LATE = 0.25
"""Last fraction of the trials. An improvement in it suggests that more trials would improve
further."""


@dataclass(frozen=True)
class Trajectory:
    """Progress of the search for one workload.

    Attributes:
        best: latency of the fastest valid trial so far, float array of shape (trials,); NaN before
            the first valid trial.
        limit: lower bound of the latency in the same unit; NaN if it is unknown.
        failures: number of invalid trials by status.
        reasons: number of invalid trials by reason.
        calls: calls of the workload per inference.
    """

    best: NDArray[np.float64]
    limit: float
    failures: Counter[str]
    reasons: Counter[str]
    calls: int

    @property
    def trials(self) -> int:
        """Number of trials."""
        return len(self.best)

    @property
    def cost(self) -> float:
        """Latency of the best trial times the calls per inference; NaN without a valid trial."""
        return float(self.best[-1]) * self.calls if self.trials else float("nan")

    @property
    def above(self) -> float:
        """Latency of the best trial divided by its lower bound."""
        return float(self.best[-1]) / self.limit if self.trials else float("nan")

    @property
    def late_gain(self) -> float:
        """Relative improvement in the last fraction of the trials (`LATE`).

        It is 0 if there was none, infinite if the first valid trial was among them, and NaN if
        there is no valid trial.
        """
        if not self.trials or np.isnan(self.best[-1]):
            return float("nan")
        before = self.best[int((1 - LATE) * self.trials) - 1] if self.trials > 1 else np.nan
        return float("inf") if np.isnan(before) else float(before / self.best[-1] - 1)

    @property
    def last_improvement(self) -> int:
        """Number of the best trial, from 1; 0 if no trial is valid."""
        result = (
            np.flatnonzero(self.best == self.best[-1]) if self.trials else np.empty(0, np.int64)
        )
        return int(result[0]) + 1 if len(result) else 0


def trajectory_of(folder: TunedFolder, workload: Workload) -> Trajectory:
    """Return the progress of the search for a workload.

    Args:
        folder: the run.
        workload: the workload.

    Raises:
        FolderError: there are no trials of the workload.
    """
    rounds = [done.measured for done in folder.rounds(workload)]
    valid = np.concatenate([round_.valid for round_ in rounds])
    latency = np.concatenate([round_.latency for round_ in rounds])
    status = np.concatenate([round_.status for round_ in rounds])
    reason = np.concatenate([round_.reason for round_ in rounds])
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
    limit = limit_of(known, workload)
    return float(limit.cycles) if limit.cycles > 0 else limit.seconds
