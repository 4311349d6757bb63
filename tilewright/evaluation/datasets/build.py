"""Implements the steps of building a dataset, and the record of what a folder holds.

`flows.dataset` calls them in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    as_object,
    canonical,
    digest,
    read_json,
    read_plain,
    write_atomically,
)
from tilewright.evaluation.datasets.folder import (
    ABOUT,
    DatasetMetadata,
    FileRecord,
    HardwareRecord,
    read_about,
)
from tilewright.evaluation.datasets.options import DatasetOptions
from tilewright.evaluation.datasets.plan import (
    SIMULATED,
    DatasetError,
    DatasetPlan,
    PlanPart,
    check_unchanged,
)
from tilewright.evaluation.datasets.rows import (
    Progress,
    columns_in,
    encode,
    in_order,
    measure_rows,
    part_order,
)
from tilewright.search.events import Event, Listener
from tilewright.targets.base import Target
from tilewright.targets.cluster.connection import accepted, connect
from tilewright.targets.cluster.remote_worker import check_version
from tilewright.targets.features import Feature
from tilewright.targets.registry import rebuild

PLAN = "plan.json"
_MOST_PLAN_BYTES = 256 << 20


@dataclass(frozen=True)
class PlannedFile(Event):
    """What is to be made: `rows` in all, of `hardware` pieces and `workloads`; `kept` of them an
    earlier build has left."""

    rows: int
    hardware: int
    workloads: int
    kept: int


@dataclass(frozen=True)
class RowsDone(Event):
    """So many rows more are measured."""

    rows: int


def rows_done(emit: Listener, rows: int) -> None:
    """Tell that so many rows more are measured."""
    emit(RowsDone(rows))


def measure_part(plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
    """Return the file of a part, whose cells are lowered and measured here. Raises `DatasetError`
    where the hardware is no longer what it was when the plan was made."""
    return _measure(part_order(plan, part), tell)


def measure_parts_on(
    cluster: str, plan: DatasetPlan, parts: Sequence[PlanPart]
) -> Iterator[tuple[PlanPart, bytes]]:
    """Yield parts and their files as the workers of a cluster finish them.

    Args:
        cluster: `tls://HOST:PORT` of a Dask scheduler, or `local:N`.
        plan: the plan of the dataset.
        parts: the parts to measure.

    Raises:
        ClusterError: the cluster cannot be used, or a worker has other hardware than the plan.
    """
    if not parts:
        return
    calls = ((version("tilewright"), part_order(plan, part)) for part in parts)
    for place, found in connect(cluster).each(measure_part_remotely, calls):
        yield parts[place], accepted(cluster, found)


def receive_part(plan: DatasetPlan, part: PlanPart, data: bytes, tell: Progress) -> bytes:
    """Return the file of a part that a worker measured, and count its rows."""
    tell(part.rows)
    return data


def measure_part_remotely(command: str, order: dict[str, Any]) -> bytes | str:
    """Measure a part on a worker of a cluster.

    Args:
        command: the version of Tilewright that the command runs.
        order: the part, as `part_order` describes it.

    Returns:
        The Parquet file of the part; text if this worker cannot do the work of that command.
    """
    try:
        check_version(command)
        return _measure(order, lambda rows: None)
    except TilewrightError as error:
        return " ".join(str(error).split())


def _measure(order: dict[str, Any], tell: Progress) -> bytes:
    hardware = order["hardware"]
    specification = canonical(hardware["specification"]).decode()
    target = _target(hardware["kind"], specification, hardware["space"], hardware["id"])
    return encode(measure_rows(order, target, tell), order["plan"])


@lru_cache(maxsize=2)
def _target(kind: str, specification: str, space: str, fingerprint: str) -> Target:
    """Kept while part after part is of the same hardware: binding workloads takes time."""
    target = rebuild(kind, as_object(read_json(specification)), space)
    if target.fingerprint != fingerprint:
        raise DatasetError(
            f"{target.name} no longer is what it was when this build began (its compiler, "
            "simulator or processor is another); build again into another folder"
        )
    return target


# -- what is there -----------------------------------------------------------------------------

HeldPart = tuple[FileRecord, tuple[Feature, ...]]
"""A file that is there, and its columns."""


def kept_plan(folder: Path, options: DatasetOptions) -> DatasetPlan | None:
    """The plan that the folder holds; None if it is to be made. Raises `DatasetError` for that of
    another dataset."""
    path = folder / PLAN
    if not path.exists():
        _refuse_foreign(folder)
        return None
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


def store_plan(folder: Path, plan: DatasetPlan) -> DatasetPlan:
    """Keep a new plan; returns it as it will be when a build resumes. Raises `OSError`."""
    written = plan.to_json()
    write_atomically(folder / PLAN, written)
    return DatasetPlan.from_json(written)


def _refuse_foreign(folder: Path) -> None:
    """Raises `DatasetError` for a dataset that came from elsewhere: nobody writes over that."""
    if (folder / ABOUT).exists():
        raise DatasetError(f"{folder} holds a dataset that was not built here; name another folder")


def finished_files(folder: Path) -> dict[str, str]:
    """Digests by path, if a build had come to its end."""
    try:
        return {file.path: file.sha256 for file in read_about(folder).files}
    except DatasetError:
        return {}


def kept_part(
    folder: Path, plan: DatasetPlan, part: PlanPart, finished: dict[str, str]
) -> HeldPart | None:
    """A part that is there and whole; None for one that is to be made."""
    path = folder / plan.path(part)
    try:
        data = read_plain(path)
        found = part_record(plan, part, data)
    except (FileNotFoundError, ValueError):
        return None
    return found if finished.get(found[0].path, found[0].sha256) == found[0].sha256 else None


def part_record(plan: DatasetPlan, part: PlanPart, data: bytes) -> HeldPart:
    """The record of a file with these bytes. Raises `ValueError` if they are none of this part."""
    file = FileRecord(
        plan.path(part), plan.hardware[part.hardware].id, part.rows, len(data), digest(data)
    )
    return file, columns_in(data, plan.digest, part.rows)


def kept_rows(folder: Path) -> int:
    """How many rows of a build that was stopped are there. Raises `ValueError` and `OSError`."""
    plan = DatasetPlan.from_json(read_plain(folder / PLAN, limit=_MOST_PLAN_BYTES))
    return sum(part.rows for part in plan.parts if (folder / plan.path(part)).exists())


def log_dataset(folder: Path, plan: DatasetPlan, parts: Sequence[HeldPart]) -> DatasetMetadata:
    """Write what the dataset is, once all its parts are there. Raises `OSError`."""
    columns = dict[str, Feature]()
    for _, found in parts:
        for column in found:
            columns.setdefault(column.name, column)
    names = in_order([tuple(column.name for column in found) for _, found in parts])
    about = _about(plan, [file for file, _ in parts], tuple(columns[name] for name in names))
    write_atomically(folder / ABOUT, about.to_json())
    return about


def _about(
    plan: DatasetPlan, files: list[FileRecord], columns: tuple[Feature, ...]
) -> DatasetMetadata:
    return DatasetMetadata(
        hardware=tuple(
            HardwareRecord(
                each.id, each.name, each.kind, each.id,
                "cycles" if each.kind in SIMULATED else "seconds",
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
