"""Defines a test bed of tuners: named workloads, the target that answers for each, and its true
optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tilewright.core.errors import WorkloadError
from tilewright.targets import make_target
from tilewright.targets.base import Target
from tilewright.targets.ground_truth import (
    ground_truth_path,
    ground_truth_table,
    read_ground_truth,
    replayed,
)
from tilewright.targets.replay import MeasurementTable, ReplayTarget
from tilewright.targets.workload import Workload

Named = tuple[tuple[str, Workload], ...]
"""Workloads by the name that reports give them."""


class TestBed(Protocol):
    """Small enough to be sent to another process; what it opens is kept for the next run."""

    @property
    def target(self) -> str:
        """The name reports and records give the target."""

    @property
    def space(self) -> str:
        """The name of its space of schedules."""

    @property
    def workloads(self) -> Named:
        """What there is to tune."""

    def open(self, name: str) -> Target:
        """What tuners of this workload lower and measure on."""

    def table(self, name: str) -> MeasurementTable:
        """What every config of this workload's space does."""


@dataclass(frozen=True)
class RecordedTestBed:
    """Tables of the real stack; a workload is named by its file's stem."""

    files: tuple[Path, ...]
    workloads: Named
    target: str = "replay"
    space: str = "template"

    def open(self, name: str) -> Target:
        return _recorded(self.files)

    def table(self, name: str) -> MeasurementTable:
        return _recorded(self.files).tables[dict(self.workloads)[name].id]


@dataclass(frozen=True)
class EnumeratedTestBed:
    """Enumerated spaces of a target. With `live`, tuners run on the target itself, so that their
    seconds include lowering and simulating; the optimum comes from the enumeration either way."""

    target: str
    space: str
    workloads: Named
    folder: Path
    live: bool = False

    def open(self, name: str) -> Target:
        if self.live:
            return _target(self.target, self.space)
        return _replayed(self.target, self.space, dict(self.workloads)[name], self.folder)

    def table(self, name: str) -> MeasurementTable:
        return _known_table(self.target, self.space, dict(self.workloads)[name], self.folder)

    def missing(self) -> list[tuple[Workload, int]]:
        """The workloads that are not enumerated yet, and the size of their spaces."""
        target = _target(self.target, self.space)
        return [
            (workload, target.space(workload).size)
            for _, workload in self.workloads
            if read_ground_truth(ground_truth_path(target, workload, self.folder), target, workload)
            is None
        ]

    def enumerate(self, workload: Workload, progress: Callable[[int], None]) -> None:
        """Measure a workload's whole space into the folder."""
        ground_truth_table(_target(self.target, self.space), workload, self.folder, progress)


def recorded_test_bed(files: Sequence[Path]) -> RecordedTestBed:
    """Raises `TableError`."""
    return RecordedTestBed(tuple(files), tuple(_recorded(tuple(files)).workloads.items()))


def enumerated_test_bed(
    target: str, space: str, workloads: Sequence[Workload], folder: Path, live: bool = False
) -> tuple[EnumeratedTestBed, dict[str, str]]:
    """The test bed, and the workloads this space does not offer with the reason. Raises
    `WorkloadError` if it offers none."""
    hardware, offered, left_out = _target(target, space), [], {}
    for name, workload in named(workloads):
        try:
            hardware.space(workload)
            offered.append((name, workload))
        except WorkloadError as error:
            left_out[name] = str(error)
    if not offered:
        raise WorkloadError(
            f"{target} offers no {space} schedule for any of the workloads; the first: "
            f"{next(iter(left_out.values()))}"
        )
    return EnumeratedTestBed(target, space, tuple(offered), folder, live), left_out


def named(workloads: Sequence[Workload]) -> Named:
    """Each workload by its text; those that differ in nothing but the epilogue by both."""
    texts = [str(workload) for workload in workloads]
    return tuple(
        (text if texts.count(text) == 1 else f"{text} ({_epilogue(workload)})", workload)
        for text, workload in zip(texts, workloads, strict=True)
    )


def _epilogue(workload: Workload) -> str:
    return workload.epilogue_text


@lru_cache(maxsize=1)
def _recorded(files: tuple[Path, ...]) -> ReplayTarget:
    target = make_target(f"replay:{','.join(map(str, files))}")
    assert isinstance(target, ReplayTarget)
    return target


@lru_cache(maxsize=4)
def _target(name: str, space: str) -> Target:
    return make_target(name, space)


@lru_cache(maxsize=2)
def _known_table(target: str, space: str, workload: Workload, folder: Path) -> MeasurementTable:
    return ground_truth_table(_target(target, space), workload, folder)


@lru_cache(maxsize=2)
def _replayed(target: str, space: str, workload: Workload, folder: Path) -> Target:
    hardware = _target(target, space)
    return replayed(hardware, [_known_table(target, space, workload, folder)])
