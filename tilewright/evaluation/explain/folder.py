"""Reads a finished run's folder: network, target, tuner, and every trial in order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, Field, JsonValue

from tilewright.core.errors import TilewrightError
from tilewright.evaluation.compare.plan import TunerConfig
from tilewright.search import FinishedRound, StoredRun, read_store, run_id
from tilewright.targets import Target
from tilewright.targets.display_names import layer
from tilewright.targets.registry import rebuild
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.output_dir import SCHEDULES, STORE, SUMMARY
from tilewright.tuning.read_run import foreign, read_written


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
