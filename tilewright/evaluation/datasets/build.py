"""Building a dataset: a plan that is kept, then what is missing part by part, last what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tilewright.core.files import as_object, canonical, digest, read_json, write_atomically
from tilewright.core.safe_files import check_own, read_plain
from tilewright.evaluation.datasets.errors import DatasetError
from tilewright.evaluation.datasets.hardware import SIMULATED, check_unchanged
from tilewright.evaluation.datasets.metadata import (
    ABOUT,
    DatasetMetadata,
    FileRecord,
    HardwareRecord,
    read_about,
)
from tilewright.evaluation.datasets.parquet import columns_in, encode
from tilewright.evaluation.datasets.plan import DatasetOptions, DatasetPlan, PlanPart, make_plan
from tilewright.evaluation.datasets.rows import Progress, Sample, in_order, rows_of
from tilewright.search.file_lock import Lease, lease_of
from tilewright.targets.base import Target
from tilewright.targets.features import Feature
from tilewright.targets.registry import rebuild

PLAN = "plan.json"
LEASE_SECONDS = 60.0
_MOST_PLAN_BYTES = 256 << 20


@dataclass(frozen=True)
class PlannedFile:
    """What is to be made: `rows` in all, of `hardware` pieces and `workloads`; `kept` of them an
    earlier build has left."""

    rows: int
    hardware: int
    workloads: int
    kept: int


@dataclass(frozen=True)
class RowsDone:
    """So many rows more are measured."""

    rows: int


Listener = Callable[[PlannedFile | RowsDone], None]


class DatasetSteps(Protocol):
    """How the two steps of a build are done: in this process, or as tasks that somebody watches."""

    def plan(self, options: DatasetOptions) -> DatasetPlan:
        """`make_plan`. Raises as it does."""
        ...

    def part(self, plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
        """`made`. Raises as it does."""
        ...


class LocalDatasetSteps:
    """Keeps `DatasetSteps` in this process."""

    def plan(self, options: DatasetOptions) -> DatasetPlan:
        return make_plan(options)

    def part(self, plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
        return made(plan, part, tell)


def ignore(event: PlannedFile | RowsDone) -> None:
    """Hears nothing."""


def build(
    folder: Path,
    options: DatasetOptions,
    steps: DatasetSteps | None = None,
    listen: Listener = ignore,
) -> DatasetMetadata:
    """Make what the folder lacks of the dataset; what is there stays as it is, byte for byte.

    Raises `DatasetError` for a folder that holds another dataset, or a build begun with another
    version of this program, `LeaseHeld` if somebody else builds there, `UnsafeFile` and `OSError`.
    """
    steps = steps or LocalDatasetSteps()
    with _alone(folder):
        plan = _plan(folder, options, steps)
        finished = _finished(folder)
        held = {part: _kept(folder, plan, part, finished) for part in plan.parts}
        kept = sum(part.rows for part, found in held.items() if found is not None)
        listen(PlannedFile(plan.rows, len(plan.hardware), len(plan.workloads), kept))
        files, columns, orders = [], dict[str, Feature](), []
        for part, found in held.items():
            if found is None:
                data = steps.part(plan, part, lambda rows: listen(RowsDone(rows)))
                write_atomically(folder / plan.path(part), data, within=folder)
                found = _record(plan, part, data)
            files.append(found[0])
            orders.append(tuple(column.name for column in found[1]))
            for column in found[1]:
                columns.setdefault(column.name, column)
        about = _about(plan, files, tuple(columns[name] for name in in_order(orders)))
        write_atomically(folder / ABOUT, about.to_json())
        return about


def made(plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
    """The file of a part, whose cells are lowered and measured here. Raises `DatasetError` where
    the hardware is no longer what it was when the plan was made."""
    hardware = plan.hardware[part.hardware]
    specification = canonical(hardware.specification).decode()
    target = _target(hardware.kind, specification, hardware.space, hardware.id)
    rows = [rows_of(plan, hardware, target, cell, tell) for cell in part.cells]
    return encode(Sample.joined(rows), plan.digest)


@lru_cache(maxsize=2)
def _target(kind: str, specification: str, space: str, fingerprint: str) -> Target:
    """Kept while part after part is of the same hardware: binding workloads takes time."""
    target = rebuild(kind, as_object(read_json(specification)), space)
    if target.fingerprint != fingerprint:
        raise DatasetError(
            f"{target.name} no longer is what it was when this build began (its compiler, "
            "simulator or processor is another); build anew into another folder"
        )
    return target


# -- what is there -----------------------------------------------------------------------------

_Held = tuple[FileRecord, tuple[Feature, ...]]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lease = Lease(lease_of(folder / ".build"), LEASE_SECONDS)
    lease.acquire()
    try:
        yield
    finally:
        lease.release()


def _plan(folder: Path, options: DatasetOptions, steps: DatasetSteps) -> DatasetPlan:
    """The one that is kept in the folder, or a new one, which is kept there."""
    path = folder / PLAN
    if not check_own(path):
        _refuse_foreign(folder)
        written = steps.plan(options).to_json()
        write_atomically(path, written)
        return DatasetPlan.from_json(written)  # as it will be when a build goes on
    try:
        plan = DatasetPlan.from_json(read_plain(path, limit=_MOST_PLAN_BYTES))
    except ValueError as error:
        raise DatasetError(
            f"{path} cannot be read ({error!s:.200}); build into another folder"
        ) from None
    if plan.options != options:
        asked = ", ".join(f"{key}={value}" for key, value in plan.options.to_json().items())
        raise DatasetError(
            f"{folder} holds a dataset, or one half built, of other options ({asked}); name these, "
            "or another folder"
        )
    check_unchanged(options.targets, plan.hardware)
    return plan


def _refuse_foreign(folder: Path) -> None:
    """Raises `DatasetError` for a dataset that came from elsewhere: nobody writes over that."""
    if (folder / ABOUT).exists():
        raise DatasetError(f"{folder} holds a dataset that was not built here; name another folder")


def _finished(folder: Path) -> dict[str, str]:
    """Digests by path, if a build had come to its end."""
    try:
        return {file.path: file.sha256 for file in read_about(folder).files}
    except DatasetError:
        return {}


def _kept(
    folder: Path, plan: DatasetPlan, part: PlanPart, finished: dict[str, str]
) -> _Held | None:
    """A part that is there and whole; None for one that is to be made."""
    path = folder / plan.path(part)
    try:
        data = read_plain(path, within=folder)
        found = _record(plan, part, data)
    except (FileNotFoundError, ValueError):
        return None
    return found if finished.get(found[0].path, found[0].sha256) == found[0].sha256 else None


def _record(plan: DatasetPlan, part: PlanPart, data: bytes) -> _Held:
    """Raises `ValueError` for bytes that are no file of this part."""
    file = FileRecord(
        plan.path(part), plan.hardware[part.hardware].id, part.rows, len(data), digest(data)
    )
    return file, columns_in(data, plan.digest, part.rows)


def kept_rows(folder: Path) -> int:
    """How many rows of a build that was stopped are there. Raises `ValueError` and `OSError`."""
    plan = DatasetPlan.from_json(read_plain(folder / PLAN, limit=_MOST_PLAN_BYTES))
    return sum(part.rows for part in plan.parts if (folder / plan.path(part)).exists())


def _about(
    plan: DatasetPlan, files: list[FileRecord], columns: tuple[Feature, ...]
) -> DatasetMetadata:
    return DatasetMetadata(
        hardware=tuple(
            HardwareRecord(
                each.id, each.name, each.kind, each.id,
                "cycles" if each.kind == SIMULATED else "seconds",
                each.features, each.specification,
            )
            for each in plan.hardware
        ),
        workloads=plan.workloads,
        columns=columns,
        files=tuple(files),
        rows=plan.rows,
        made={
            "tilewright": plan.tilewright, "plan": plan.digest, "options": plan.options.to_json(),
        },
    )  # fmt: skip
