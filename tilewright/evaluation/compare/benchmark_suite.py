"""Test beds for tuners: workloads whose best schedule is known from complete measurements."""

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
    make_replay_target,
    read_ground_truth,
)
from tilewright.targets.replay import MeasurementTable, ReplayTarget
from tilewright.targets.workload import Workload

Named = tuple[tuple[str, Workload], ...]
"""Pairs of a workload's name in reports and the workload."""


class TestBed(Protocol):
    """Interface of a test bed: workloads whose search spaces were measured completely.

    Tuners are compared on a test bed because the best schedule of each workload is known. A test
    bed holds only names and paths, so it can be sent to another process. Targets and tables are
    loaded when they are needed, and are cached for later runs.
    """

    @property
    def target(self) -> str:
        """Name of the target in reports and records."""

    @property
    def space(self) -> str:
        """Name of the schedule space."""

    @property
    def workloads(self) -> Named:
        """The workloads of the test bed with their names."""

    def open(self, name: str) -> Target:
        """Return the target on which tuners lower and measure a workload.

        The target may be the real one, or a replay that looks up the measurements in a table.

        Args:
            name: name of the workload.
        """

    def table(self, name: str) -> MeasurementTable:
        """Return the measurements of every config in a workload's search space.

        Args:
            name: name of the workload.
        """


@dataclass(frozen=True)
class RecordedTestBed:
    """Test bed from tables of measurements that were recorded on real hardware.

    A test bed is a set of workloads whose best schedule is known, because every config was
    measured.

    Attributes:
        files: the tables, one per workload.
        workloads: the workloads with their names.
        target: name of the target in reports.
        space: name of the schedule space.
    """

    files: tuple[Path, ...]
    workloads: Named
    target: str = "replay"
    space: str = "template"

    def open(self, name: str) -> Target:
        """Return a target that replays the recorded measurements of all workloads.

        Args:
            name: name of a workload. It is ignored, because one target replays all tables.
        """
        return _recorded_target(self.files)

    def table(self, name: str) -> MeasurementTable:
        """Return the recorded measurements of a workload.

        Args:
            name: name of the workload.
        """
        return _recorded_target(self.files).tables[dict(self.workloads)[name].id]


@dataclass(frozen=True)
class EnumeratedTestBed:
    """Test bed of workloads whose configs are all measured on a simulated target.

    A test bed is a set of workloads whose best schedule is known, because every config was
    measured.

    Attributes:
        target: name of the target.
        space: name of the schedule space.
        workloads: the workloads with their names.
        folder: folder of the tables with the measurements.
        live: run tuners on the target itself, so that their durations include lowering and
            simulation. Otherwise, tuners read the measurements from the table. The optimum always
            comes from the table.
    """

    target: str
    space: str
    workloads: Named
    folder: Path
    live: bool = False

    def open(self, name: str) -> Target:
        """Return the real target if the test bed is `live`, else a target that replays the table.

        Args:
            name: name of the workload.
        """
        if self.live:
            return _target(self.target, self.space)
        return _replayed_target(self.target, self.space, dict(self.workloads)[name], self.folder)

    def table(self, name: str) -> MeasurementTable:
        """Return the measurements of every config of a workload.

        If they are not stored yet, all configs are measured first.

        Args:
            name: name of the workload.
        """
        return _known_table(self.target, self.space, dict(self.workloads)[name], self.folder)

    def unmeasured_workloads(self) -> list[tuple[Workload, int]]:
        """Return the workloads without a stored table, each with its number of configs."""
        target = _target(self.target, self.space)
        return [
            (workload, target.space(workload).size)
            for _, workload in self.workloads
            if read_ground_truth(ground_truth_path(target, workload, self.folder), target, workload)
            is None
        ]

    def enumerate(self, workload: Workload, progress: Callable[[int], None]) -> None:
        """Measure all configs of a workload's search space, and store the table in the folder.

        Args:
            workload: the workload.
            progress: function that is called with the number of configs that were finished since
                the last call.
        """
        ground_truth_table(_target(self.target, self.space), workload, self.folder, progress)


def recorded_test_bed(files: Sequence[Path]) -> RecordedTestBed:
    """Return a test bed from tables that were recorded on real hardware.

    Args:
        files: the tables, one per workload.

    Returns:
        The test bed.

    Raises:
        TableError: a file is not a table.
    """
    return RecordedTestBed(tuple(files), tuple(_recorded_target(tuple(files)).workloads.items()))


def enumerated_test_bed(
    target: str, space: str, workloads: Sequence[Workload], folder: Path, live: bool = False
) -> tuple[EnumeratedTestBed, dict[str, str]]:
    """Return a test bed of workloads whose search spaces can be measured completely.

    Workloads without a schedule in the space are omitted.

    Args:
        target: name of the target.
        space: name of the schedule space.
        workloads: the workloads.
        folder: folder of the tables with the measurements.
        live: run tuners on the target itself, so that their durations include lowering and
            simulation.

    Returns:
        The test bed, and the reason for each omitted workload, by name.

    Raises:
        WorkloadError: none of the workloads has a schedule in the space.
    """
    hardware, offered, left_out = _target(target, space), [], {}
    for name, workload in name_workloads(workloads):
        try:
            hardware.space(workload)
            offered.append((name, workload))
        except WorkloadError as error:
            left_out[name] = str(error)
    if not offered:
        raise WorkloadError(
            f"{target} has no {space} schedule for any of the workloads; the reason for the "
            f"first one: {next(iter(left_out.values()))}"
        )
    return EnumeratedTestBed(target, space, tuple(offered), folder, live), left_out


def name_workloads(workloads: Sequence[Workload]) -> Named:
    """Return the workloads as pairs of a name and the workload. The name is the workload's text.

    If workloads differ only in their epilogues, the epilogue is added to the name.

    Args:
        workloads: the workloads.

    Returns:
        The pairs, in the given order.
    """
    texts = [str(workload) for workload in workloads]
    return tuple(
        (text if texts.count(text) == 1 else f"{text} ({_epilogue(workload)})", workload)
        for text, workload in zip(texts, workloads, strict=True)
    )


def _epilogue(workload: Workload) -> str:
    return workload.epilogue_text


@lru_cache(maxsize=1)
def _recorded_target(files: tuple[Path, ...]) -> ReplayTarget:
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
def _replayed_target(target: str, space: str, workload: Workload, folder: Path) -> Target:
    hardware = _target(target, space)
    return make_replay_target(hardware, [_known_table(target, space, workload, folder)])
