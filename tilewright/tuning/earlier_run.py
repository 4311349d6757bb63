"""Reads the trials of an earlier run, so that another run can learn from them.

`--warm-start DIR` names the output directory of a finished run. The run may have tuned other
networks on the same hardware, or any network on other hardware of the same kind. If a tuner shares
trials among the workloads of a run (`Explorer.shares`), it receives the trials of the earlier run
as if their workloads had been tuned first. The store contains no programs, so the configs of the
earlier run are lowered again for the hardware on which they were measured. Nothing is measured
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import BaseModel, JsonValue

from tilewright.core.errors import TilewrightError
from tilewright.core.files import canonical, digest
from tilewright.search import (
    ExplorerState,
    FinishedRound,
    History,
    Session,
    StoredRun,
    Task,
    TrialStore,
    make_task,
    read_store,
    recorded_batch,
)
from tilewright.search.shared_trials import (
    SharedTrials,
    scale_to_hardware,
    trials_in,
    with_trials,
)
from tilewright.targets.base import Target
from tilewright.targets.registry import rebuild
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.output_dir import SCHEDULES, STORE, SUMMARY
from tilewright.tuning.read_run import read_written, unreadable_message

MOST_WORKLOADS = 6
"""Maximum number of workloads of an earlier run that are read. Those with the most trials are
preferred. The time to fit the models grows with the third power of the number of trials."""


class EarlierRunError(TilewrightError):
    """The trials of an earlier run cannot be used for a warm start."""


@dataclass(frozen=True)
class EarlierRun:
    """The trials of a finished run.

    Attributes:
        folder: output directory of the run.
        target: the target of the run, rebuilt from its specification.
        space: name of the schedule space of the run.
        rounds: pairs of a workload and its finished rounds, at most `MOST_WORKLOADS`, ordered by
            decreasing number of trials.
    """

    folder: Path
    target: Target
    space: str
    rounds: tuple[tuple[Workload, tuple[FinishedRound, ...]], ...]

    @property
    def identity(self) -> str:
        """Digest of the trials and of the hardware on which they were measured."""
        about = [
            [workload.id, done.configs.tolist(), list(done.measured.status),
             done.measured.cycles.tolist(), [repr(value) for value in done.measured.seconds]]
            for workload, rounds in self.rounds
            for done in rounds
        ]  # fmt: skip
        return digest(canonical([self.target.fingerprint, about]))[:16]


class _EarlierTarget(BaseModel):
    """Target entry of `schedules.json`."""

    kind: str
    fingerprint: str
    spec: dict[str, JsonValue]


class _EarlierSchedule(BaseModel):
    """Fields of a schedule in `schedules.json` that identify its workload."""

    workload: str
    epilogue: str


class _EarlierSchedules(BaseModel):
    """Fields of `schedules.json` that this module reads."""

    target: _EarlierTarget
    schedules: list[_EarlierSchedule]


class _EarlierSummary(BaseModel):
    """Fields of `summary.json` that this module reads."""

    space: str


def holds_run(folder: Path) -> bool:
    """Return whether a folder contains the trials of a run.

    The folder of a warm start contains either the trials of a run or a transfer model.

    Args:
        folder: the folder.
    """
    return (folder / STORE).exists()


def read_earlier_run(folder: Path) -> EarlierRun:
    """Read the trials of a finished run.

    Args:
        folder: output directory of the run.

    Raises:
        EarlierRunError: the folder contains no finished run, or the trials belong to another
            version of the target.
        TrialStoreError: the database cannot be read.
        UnsafeFile: a path is not a plain file.
    """
    try:
        changed = (folder / STORE).stat()
    except OSError:
        raise EarlierRunError(f"{folder} holds no trials: there is no {STORE}") from None
    return _read(folder, changed.st_mtime_ns, changed.st_size)


@lru_cache(maxsize=2)
def _read(folder: Path, changed_ns: int, size: int) -> EarlierRun:
    summary = read_written(_EarlierSummary, folder, SUMMARY, EarlierRunError)
    schedules = read_written(_EarlierSchedules, folder, SCHEDULES, EarlierRunError)
    written = schedules.target
    try:
        target = rebuild(written.kind, written.spec, summary.space)
        workloads = [parse_workload(s.workload, s.epilogue) for s in schedules.schedules]
    except (ValueError, TilewrightError) as error:
        raise EarlierRunError(unreadable_message(folder, error)) from None
    if target.fingerprint != written.fingerprint:
        raise EarlierRunError(
            f"the trials of {folder} belong to another version of {target.name}: its simulator, "
            "its compiler or its schedule space has changed since; tune again there first"
        )
    with read_store(folder) as store:
        rounds = [(workload, _rounds_of(store, target, workload)) for workload in workloads]
    rounds = sorted(rounds, key=lambda pair: -_count(pair[1]))[:MOST_WORKLOADS]
    made = tuple(pair for pair in rounds if _count(pair[1]))
    if not made:
        raise EarlierRunError(f"{folder} holds no trial; tune there first")
    return EarlierRun(folder, target, summary.space, made)


def _rounds_of(store: TrialStore, target: Target, workload: Workload) -> tuple[FinishedRound, ...]:
    """Return the rounds of a workload on a target, from the run with the most trials of it.

    Args:
        store: the trial store of the earlier run.
        target: the target.
        workload: the workload.
    """
    keys = [key for key in store.runs().values() if key[:2] == (workload.id, target.fingerprint)]
    runs = [StoredRun(store, key, target.space(workload)).finished_rounds() for key in sorted(keys)]
    longest: Sequence[FinishedRound] = max(runs, key=_count, default=[])
    return tuple(longest)


def _count(rounds: Sequence[FinishedRound]) -> int:
    return sum(len(done.configs) for done in rounds)


def first_data(run: EarlierRun, tasks: Sequence[Task]) -> ExplorerState:
    """Build a tuner's initial state from the trials of an earlier run.

    Args:
        run: the earlier run.
        tasks: the tasks of the new run, which all have the same tuner and target.

    Returns:
        The state with which every workload of the new run starts.

    Raises:
        EarlierRunError: the features of the earlier programs have other columns than those of this
            run, because they belong to another kind of target or another schedule space.
    """
    state, explorer, problem = ExplorerState(), tasks[0].explorer, tasks[0].problem
    same = run.target.fingerprint == tasks[0].target.fingerprint
    shared: list[SharedTrials] = []
    for workload, rounds in run.rounds:
        earlier = make_task(run.target, workload, explorer, problem.seed)
        session = Session.start(earlier)
        for done in rounds:
            session = session.extend(recorded_batch(earlier, done))
        shared += trials_in(explorer.share(earlier.problem, ExplorerState(), session.history))
    if not any(_fits(shared, task) for task in tasks):
        raise EarlierRunError(
            f"{run.folder} was tuned in space '{run.space}' of {run.target.name}, whose schedules "
            f"and programs have other columns than those of {tasks[0].target.name} here; start "
            "with a run in the same space of the same kind of target"
        )
    for trials in shared:
        if not same:
            trials = scale_to_hardware(trials, run.target.hardware_features(), problem.hardware)
        state = with_trials(state, trials)
    return state


def _fits(shared: Sequence[SharedTrials], task: Task) -> bool:
    """Return whether any of the trials has the feature columns of a task's configs and programs.

    Args:
        shared: trials of the earlier run, one entry per workload.
        task: a task of the new run.
    """
    space, explorer = task.problem.space, task.explorer
    empty = explorer.share(task.problem, ExplorerState(), History.empty(space))
    flat = np.zeros(1, np.int64) if space.listed is None else np.array(space.listed[:1])
    counters = task.target.lower(task.problem.workload, space.unravel(flat)).hidden.names
    (own,) = trials_in(empty)
    return any(
        trials.visible.names == own.visible.names and trials.hidden.names == counters
        for trials in shared
    )
