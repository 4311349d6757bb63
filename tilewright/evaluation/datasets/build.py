"""Steps of building a dataset, which `flows.dataset` runs, and the state of a dataset's folder.

A plan divides the dataset into parts. A part is a Parquet file with rows of one piece of hardware.
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
from tilewright.targets.cluster.connection import check_answer, connect
from tilewright.targets.cluster.remote_worker import check_version
from tilewright.targets.features import Feature
from tilewright.targets.registry import rebuild

PLAN = "plan.json"
_MOST_PLAN_BYTES = 256 << 20


@dataclass(frozen=True)
class PlannedFile(Event):
    """Event that is emitted when the plan of a dataset was made, or read from an earlier build.

    Attributes:
        rows: number of rows of the dataset.
        hardware: number of pieces of hardware.
        workloads: number of workloads.
        kept: number of rows that an earlier build has already measured.
    """

    rows: int
    hardware: int
    workloads: int
    kept: int


@dataclass(frozen=True)
class RowsDone(Event):
    """Event that is emitted when further rows were measured.

    Attributes:
        rows: number of rows since the last event.
    """

    rows: int


def rows_done(emit: Listener, rows: int) -> None:
    """Emit an event about further measured rows of a dataset.

    Args:
        emit: function that receives the event.
        rows: number of rows since the last event.
    """
    emit(RowsDone(rows))


def measure_part(plan: DatasetPlan, part: PlanPart, tell: Progress) -> bytes:
    """Measure a part of a dataset, the rows of one file, in this process.

    Args:
        plan: the plan of the dataset.
        part: the part to measure.
        tell: function that is called with the number of rows measured since the last call.

    Returns:
        The content of the part's Parquet file.

    Raises:
        DatasetError: the hardware differs from the hardware in the plan.
    """
    return _measure(part_order(plan, part), tell)


def measure_parts_on(
    cluster: str, plan: DatasetPlan, parts: Sequence[PlanPart]
) -> Iterator[tuple[PlanPart, bytes]]:
    """Measure parts of a dataset on the workers of a cluster.

    Args:
        cluster: `tls://HOST:PORT` of a Dask scheduler, or `local:N` for N local workers.
        plan: the plan of the dataset.
        parts: the parts to measure.

    Yields:
        Each part with the content of its Parquet file, in the order in which the parts finish.

    Raises:
        ClusterError: the cluster cannot be used, or a worker has other hardware than the plan.
    """
    if not parts:
        return
    calls = ((version("tilewright"), part_order(plan, part)) for part in parts)
    for place, result in connect(cluster).call_each(measure_part_remotely, calls):
        yield parts[place], check_answer(cluster, result)


def receive_part(plan: DatasetPlan, part: PlanPart, data: bytes, tell: Progress) -> bytes:
    """Report the rows of a part that a worker measured, and return the content of its file.

    On a cluster, this step takes the place of `measure_part`.

    Args:
        plan: the plan of the dataset.
        part: the part.
        data: content of the file, as the worker sent it.
        tell: function that is called with the number of rows of the part.

    Returns:
        `data`, unchanged.
    """
    tell(part.rows)
    return data


def measure_part_remotely(command: str, order: dict[str, Any]) -> bytes | str:
    """Measure a part of a dataset on a worker of a cluster.

    Args:
        command: version of Tilewright on the machine that sent the part.
        order: description of the part, from `part_order`.

    Returns:
        The content of the part's Parquet file as bytes, or a message why this worker cannot measure
        the part.
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
    """Rebuild a target from its specification.

    The target is cached, because consecutive parts of a dataset often use the same target, and
    binding workloads to a new target takes time.

    Args:
        kind: type of the target, for example "vta".
        specification: specification of the target as JSON.
        space: name of the schedule space.
        fingerprint: fingerprint that the target must have.

    Raises:
        DatasetError: the target has another fingerprint.
    """
    target = rebuild(kind, as_object(read_json(specification)), space)
    if target.fingerprint != fingerprint:
        raise DatasetError(
            f"{target.name} has changed since this build was started (its compiler, "
            "simulator or processor is different); build again into another folder"
        )
    return target


# -- what is there -----------------------------------------------------------------------------

HeldPart = tuple[FileRecord, tuple[Feature, ...]]
"""Entry of a stored file in `dataset.json`, and descriptions of the features in the file."""


def kept_plan(folder: Path, options: DatasetOptions) -> DatasetPlan | None:
    """Return the plan that an earlier build stored in a folder, or None if there is none.

    Args:
        folder: folder of the dataset.
        options: options of the dataset, which must equal the options in the stored plan.

    Returns:
        The stored plan.

    Raises:
        DatasetError: the plan cannot be read or has other options, the folder contains a dataset
            without a plan, or the hardware has changed.
    """
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
            f"{folder} contains a complete or incomplete dataset with other options "
            f"({asked}); use these options, or another folder"
        )
    check_unchanged(options.targets, plan.hardware)
    return plan


def store_plan(folder: Path, plan: DatasetPlan) -> DatasetPlan:
    """Store a new plan in the folder of a dataset.

    Args:
        folder: folder of the dataset.
        plan: the plan.

    Returns:
        The plan as a resumed build would read it from the file.

    Raises:
        OSError: the file cannot be written.
    """
    written = plan.to_json()
    write_atomically(folder / PLAN, written)
    return DatasetPlan.from_json(written)


def _refuse_foreign(folder: Path) -> None:
    """Check that a folder does not contain a finished dataset without the plan of its build.

    Such a dataset was built elsewhere and cannot be extended.

    Raises:
        DatasetError: the folder contains such a dataset.
    """
    if (folder / ABOUT).exists():
        raise DatasetError(
            f"{folder} contains a dataset that was built elsewhere; choose another folder"
        )


def finished_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digest of each file of a finished dataset, by path.

    The result is empty if the dataset is unfinished or cannot be read.
    """
    try:
        return {file.path: file.sha256 for file in read_about(folder).files}
    except DatasetError:
        return {}


def kept_part(
    folder: Path, plan: DatasetPlan, part: PlanPart, finished: dict[str, str]
) -> HeldPart | None:
    """Return the description of a stored part, or None if its file is missing or damaged.

    Args:
        folder: folder of the dataset.
        plan: the plan of the dataset.
        part: the part.
        finished: digests of the files, from `finished_files`. A file with another digest is
            damaged.

    Returns:
        The entry of the part's file in `dataset.json`, and descriptions of the file's features.
    """
    path = folder / plan.path(part)
    try:
        data = read_plain(path)
        record = part_record(plan, part, data)
    except (FileNotFoundError, ValueError):
        return None
    return record if finished.get(record[0].path, record[0].sha256) == record[0].sha256 else None


def part_record(plan: DatasetPlan, part: PlanPart, data: bytes) -> HeldPart:
    """Check the file of a part, and describe it for `dataset.json`.

    Args:
        plan: the plan of the dataset.
        part: the part.
        data: content of the file.

    Returns:
        The entry of the file in `dataset.json`, and descriptions of the file's features.

    Raises:
        ValueError: the file is damaged or does not belong to this part.
    """
    file = FileRecord(
        plan.path(part), plan.hardware[part.hardware].id, part.rows, len(data), digest(data)
    )
    return file, columns_in(data, plan.digest, part.rows)


def kept_rows(folder: Path) -> int:
    """Return the number of rows that an unfinished build has already measured.

    Args:
        folder: folder of the dataset.

    Raises:
        ValueError: the plan cannot be parsed.
        OSError: the plan cannot be read.
    """
    plan = DatasetPlan.from_json(read_plain(folder / PLAN, limit=_MOST_PLAN_BYTES))
    return sum(part.rows for part in plan.parts if (folder / plan.path(part)).exists())


def log_dataset(folder: Path, plan: DatasetPlan, parts: Sequence[HeldPart]) -> DatasetMetadata:
    """Write `dataset.json`, which marks a dataset as finished.

    Args:
        folder: folder of the dataset.
        plan: the plan of the dataset.
        parts: result of `part_record` for every part. The files of the parts are already stored.

    Returns:
        The metadata that were written.

    Raises:
        OSError: the file cannot be written.
    """
    columns = dict[str, Feature]()
    for _, result in parts:
        for column in result:
            columns.setdefault(column.name, column)
    names = in_order([tuple(column.name for column in features) for _, features in parts])
    about = _make_metadata(
        plan, [file for file, _ in parts], tuple(columns[name] for name in names)
    )
    write_atomically(folder / ABOUT, about.to_json())
    return about


def _make_metadata(
    plan: DatasetPlan, files: list[FileRecord], columns: tuple[Feature, ...]
) -> DatasetMetadata:
    return DatasetMetadata(
        hardware=tuple(
            HardwareRecord(
                device.id, device.name, device.kind, device.id,
                "cycles" if device.kind in SIMULATED else "seconds",
                device.features, device.specification,
            )
            for device in plan.hardware
        ),
        workloads=plan.workloads,
        columns=columns,
        files=tuple(files),
        rows=plan.rows,
        made={
            "tilewright": plan.tilewright, "plan": plan.digest, "options": plan.options.to_json(),
        },
    )  # fmt: skip
