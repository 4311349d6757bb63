"""Reads a finished run: its network, target, tuner and all its trials in order."""

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
    """Error for a folder that does not contain a finished run."""


@dataclass(frozen=True)
class TunedFolder:
    """A finished run, read from the output directory of `tilewright tune`.

    Attributes:
        path: the output directory.
        network: name of the network.
        target: the target, rebuilt from its specification.
        kind: type of the target, for example "vta".
        space: name of the schedule space.
        recorded_on: fingerprint of the target during the run.
        workloads: the workloads.
        tuner_config: the tuner and its options.
        seed: seed of the run.
        batch: number of trials per round.
        counts: calls of each workload per inference, by workload ID.
        titles: name of each workload in tables, by workload ID.
        problems: messages about stored trials that could not be read. `rounds` appends to it.
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
        """True if the target's lowering, simulator or compiler has changed since the run."""
        return self.target.fingerprint != self.recorded_on

    def rounds(self, workload: Workload) -> list[FinishedRound]:
        """Return the stored rounds of a workload, in order.

        If the store contains several runs of the workload, the rounds of the run with the tuner's
        seed and batch size are preferred to runs that started from other models. Problems with the
        stored trials are added to `problems`.

        Args:
            workload: the workload.

        Raises:
            FolderError: no trial of the workload is stored.
            WorkloadError: the target has no schedule for the workload.
            TrialStoreError: the trials cannot be read.
        """
        cold = run_id(self.tuner_config.explorer, self.seed, self.batch)
        space = self.target.space(workload)
        rounds: list[FinishedRound] = []
        with suppress(FileNotFoundError), read_store(self.path) as store:
            runs = [
                key for key in store.runs().values() if key[:2] == (workload.id, self.recorded_on)
            ]
            # Runs with --warm-start or shared trials have other IDs, so try these last.
            for key in sorted(runs, key=lambda key: (key[2] != cold, key[2])):
                rounds = rounds or StoredRun(store, key, space).finished_rounds()
            self.problems.extend(text for text in store.problems if text not in self.problems)
        if not rounds:
            raise FolderError(f"{self.path / STORE} has no trial of {workload}; tune again")
        return rounds


class _WrittenTarget(BaseModel):
    """The target's entry in `schedules.json`."""

    kind: str
    fingerprint: str
    spec: dict[str, JsonValue]


class _WrittenSchedule(BaseModel):
    """Fields of a schedule in `schedules.json` that identify its workload."""

    workload: str
    epilogue: str
    names: list[str] = Field(default_factory=list)

    @property
    def parsed(self) -> Workload:
        """Workload of the schedule. Reading it raises `WorkloadError` if the text is invalid."""
        return parse_workload(self.workload, self.epilogue)


class _ExplainedSchedules(BaseModel):
    """Fields of `schedules.json` that an explanation needs."""

    target: _WrittenTarget
    schedules: list[_WrittenSchedule]


class _WrittenWorkload(BaseModel):
    """A workload's entry in `summary.json`: its ID and its number of calls per inference."""

    id: str
    count: int


class _ExplainedSummary(BaseModel):
    """Fields of `summary.json` that an explanation needs."""

    network: str
    tuner: str
    tuner_options: dict[str, str | int | float | bool]
    space: str
    seed: int
    batch: int
    workloads: list[_WrittenWorkload]


def read_folder(path: Path) -> TunedFolder:
    """Read a finished run from its output directory.

    Args:
        path: the output directory.

    Returns:
        The run. Its trials are read only when `TunedFolder.rounds` is called.

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
"""Fraction of the trials, at the end of a run, that counts as late. A late improvement suggests
that more trials would improve the schedule further."""


@dataclass(frozen=True)
class Trajectory:
    """Progress of the search for one workload.

    Attributes:
        best: latency of the fastest valid trial so far, float array of shape (trials,), in cycles
            if the target counts them and otherwise in seconds; NaN before the first valid trial.
        limit: lower bound of the latency in the same unit; NaN if it is unknown.
        failures: number of invalid trials, by status.
        reasons: number of invalid trials, by reason.
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
        """Latency of the best trial times the calls per inference; NaN if no trial is valid."""
        return float(self.best[-1]) * self.calls if self.trials else float("nan")

    @property
    def above(self) -> float:
        """Latency of the best trial divided by the lower bound of the latency."""
        return float(self.best[-1]) / self.limit if self.trials else float("nan")

    @property
    def late_gain(self) -> float:
        """Relative speed-up that the last quarter (`LATE`) of the trials brought.

        It is 0 without an improvement, infinite if the first valid trial was in that quarter, and
        NaN if no trial is valid.
        """
        if not self.trials or np.isnan(self.best[-1]):
            return float("nan")
        before = self.best[int((1 - LATE) * self.trials) - 1] if self.trials > 1 else np.nan
        return float("inf") if np.isnan(before) else float(before / self.best[-1] - 1)

    @property
    def last_improvement(self) -> int:
        """Number of the trial that found the best schedule, from 1; 0 if no trial is valid."""
        result = (
            np.flatnonzero(self.best == self.best[-1]) if self.trials else np.empty(0, np.int64)
        )
        return int(result[0]) + 1 if len(result) else 0


def trajectory_of(folder: TunedFolder, workload: Workload) -> Trajectory:
    """Return the progress of the search for a workload.

    Args:
        folder: the run.
        workload: the workload.

    Returns:
        The progress, in the order of the trials.

    Raises:
        FolderError: no trial of the workload is stored.
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
