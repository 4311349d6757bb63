"""Reads a dataset's folder as a table: any part of it, every file checked.

dataset.json                          what the rows are, and the digest of every file
rows/hardware=ID/part-NNNN.parquet    rows of one piece of hardware
plan.json                             of a build: what there was to make
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import UnknownName
from tilewright.core.files import LARGEST, digest, read_plain
from tilewright.evaluation.datasets.errors import DatasetError
from tilewright.evaluation.datasets.metadata import DatasetMetadata, FileRecord, read_about
from tilewright.evaluation.datasets.parquet import Reader
from tilewright.models.transfer.training_table import TrainingTable
from tilewright.targets.features import Features

FREE_BYTES, MOST_RATIO = 1 << 30, 64
"""Of the table that is read: what any dataset may ask for, and how often its files' bytes more.
Tables of ours have 2.3 times as many."""
_STEP = "get it again from where it came from, or build the dataset again"


@dataclass(frozen=True)
class _RowsOfFile:
    """Which rows (n,) of a file are asked for, and the workload (n,) of each."""

    file: FileRecord
    which: NDArray[np.int64]
    workload: NDArray[np.int32]


def read_table(
    folder: Path,
    *,
    hardware: Sequence[str] | None = None,
    workloads: Sequence[str] | None = None,
    rows: int | None = None,
    seed: int = 0,
) -> TrainingTable:
    """Rows of the dataset in a folder: those of some hardware (by id or name) and some workloads
    (by id) if they are named, at most `rows` of them, drawn by `seed`.

    Hardware and workloads are numbered as `dataset.json` lists them, whatever is read; workloads
    that differ in nothing but epilogue and type of number have the number of the first. All columns
    of the dataset are there, in float32. Raises `DatasetError`, `UnknownName` for hardware or
    workloads that the dataset does not have, `UnsafeFile` and `OSError`.
    """
    about = read_about(folder)
    of = _places(about, hardware)
    only = None if workloads is None else _workloads(about, workloads)
    found = [
        _rows_of(folder, about, file, only) for file in about.files if of[file.hardware] is not None
    ]
    found = _drawn(found, rows, seed)
    if not found:
        raise DatasetError(f"{folder} has no rows of what was asked for; ask for more")
    return _table(folder, about, found)


def digest_of(folder: Path) -> str:
    """What changes when anything of the dataset does, 64 hex digits. Raises `DatasetError`,
    `UnsafeFile` and `OSError`."""
    return read_about(folder).digest


def _places(about: DatasetMetadata, wanted: Sequence[str] | None) -> dict[str, int | None]:
    """By id the place of hardware that is asked for, None for other. Raises `UnknownName`."""
    known = {each.id for each in about.hardware} | {each.name for each in about.hardware}
    for name in wanted or ():
        if name not in known:
            raise UnknownName("hardware", name, sorted(known))
    return {
        each.id: place if wanted is None or {each.id, each.name} & set(wanted) else None
        for place, each in enumerate(about.hardware)
    }


def _workloads(about: DatasetMetadata, wanted: Sequence[str]) -> NDArray[np.bool_]:
    """Which are asked for, shape (workloads,). Raises `UnknownName`."""
    known = [workload.id for workload in about.parsed]
    for name in wanted:
        if name not in known:
            raise UnknownName("workload", name, known)
    return np.isin(known, list(wanted))


def _rows_of(
    folder: Path, about: DatasetMetadata, file: FileRecord, only: NDArray[np.bool_] | None
) -> _RowsOfFile:
    reader = _reader(folder, about, file)
    try:
        workload = reader.workloads(len(about.workloads))
    except ValueError as error:
        raise _damaged(folder, file, error) from None
    which = np.arange(file.rows) if only is None else np.flatnonzero(only[workload])
    return _RowsOfFile(file, which, workload[which])


def _drawn(found: list[_RowsOfFile], rows: int | None, seed: int) -> list[_RowsOfFile]:
    """At most so many rows of all, those in a file in its order."""
    total = sum(len(each.which) for each in found)
    if rows is not None and rows < total:
        kept = np.zeros(total, np.bool_)
        kept[np.random.default_rng(seed).choice(total, max(rows, 0), replace=False)] = True
        ends = np.cumsum([len(each.which) for each in found])[:-1]
        found = [
            _RowsOfFile(each.file, each.which[mask], each.workload[mask])
            for each, mask in zip(found, np.split(kept, ends), strict=True)
        ]
    return [each for each in found if len(each.which)]


def _table(folder: Path, about: DatasetMetadata, found: list[_RowsOfFile]) -> TrainingTable:
    ends = np.cumsum([0, *(len(each.which) for each in found)])
    size = int(ends[-1]) * len(about.columns) * np.dtype(np.float32).itemsize
    if size > FREE_BYTES + MOST_RATIO * sum(each.file.bytes for each in found):
        raise DatasetError(
            f"{folder} asks for a table of {size / (1 << 30):.1f} GiB ({ends[-1]:,} rows of "
            f"{len(about.columns)} columns), more than its files can hold; read fewer rows, "
            f"or {_STEP}"
        )
    matrix = np.full((int(ends[-1]), len(about.columns)), np.nan, np.float32)
    latency = np.empty(len(matrix))
    valid = about.statuses.index("valid") if "valid" in about.statuses else None
    for each, first, end in zip(found, ends[:-1], ends[1:], strict=True):
        reader = _reader(folder, about, each.file)
        try:
            latency[first:end] = reader.log_latency(valid)[each.which]
            reader.features(each.which, matrix[first:end])
        except ValueError as error:
            raise _damaged(folder, each.file, error) from None
    places = {each.id: place for place, each in enumerate(about.hardware)}
    hardware = np.repeat([places[each.file.hardware] for each in found], np.diff(ends))
    workload = np.concatenate([each.workload for each in found]).astype(np.int64)
    return TrainingTable(
        features=Features(cast("NDArray[np.float64]", matrix), about.columns),
        log_latency=latency,
        task=hardware * len(about.workloads) + workload,
        workload=np.array(about.families, np.int64)[workload],
        hardware=hardware.astype(np.int64),
    )


def _reader(folder: Path, about: DatasetMetadata, file: FileRecord) -> Reader:
    """Raises `DatasetError` for a file that is not what `dataset.json` says."""
    path = folder / file.path
    try:
        data = read_plain(path, limit=min(file.bytes, LARGEST))
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; {_STEP}") from None
    if len(data) != file.bytes or digest(data) != file.sha256:
        raise DatasetError(f"{path} is damaged: its digest is not the one in dataset.json; {_STEP}")
    try:
        return Reader(data, file.rows, about.columns)
    except ValueError as error:
        raise _damaged(folder, file, error) from None


def _damaged(folder: Path, file: FileRecord, error: ValueError) -> DatasetError:
    return DatasetError(f"{folder / file.path} cannot be used: {error}; {_STEP}")
