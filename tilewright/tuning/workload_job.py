"""Describes one workload of a run to the steps that tune it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.search import ExplorerState, StoredRun, TrialStore
from tilewright.tuning.events import Listener, Note
from tilewright.tuning.network import Subgraph
from tilewright.tuning.open_trials import record_of
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.run_metadata import trials_made
from tilewright.tuning.tuning_task import TuningTask


@dataclass(frozen=True)
class WorkloadJob:
    """One workload of a run, and what all of them share. `most_trials` are those it may make; where
    trials are `shared`, those of all workloads together."""

    options: TuningOptions
    subgraph: Subgraph
    study: TuningTask
    state: ExplorerState  # what the tuner starts from
    store: TrialStore
    most_trials: int
    shared: bool = False

    def record(self) -> StoredRun:
        """Return the trials of the workload. Raises `RunInUse` and `TrialStoreError`."""
        return record_of(self.store, self.study)

    def is_recorded(self, emit: Listener) -> bool:
        """Whether the record has all trials of the run whose results the folder holds. Raises
        `RunInUse`, `TrialStoreError` and `UnsafeFile`."""
        made = trials_made(self.options.folder).get(self.study.workload.id)
        if made is None:
            return False
        record = self.record()
        with record.turn():
            held = record.news(0, made)
        for problem in record.problems:
            emit(Note(problem))
        return sum(len(each.configs) for each in held) >= made
