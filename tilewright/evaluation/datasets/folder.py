"""Reads a dataset, or a selection of its rows, as a table, and verifies every file that it reads.

A dataset is a folder with these files:

    dataset.json                          description of the rows, and the digest of every file
    rows/hardware=ID/part-NNNN.parquet    rows of one piece of hardware
    plan.json                             plan of the build
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from tilewright.core.errors import UnknownName, WorkloadError
from tilewright.core.files import LARGEST, as_object, canonical, digest, read_json, read_plain
from tilewright.core.formats import DATASET
from tilewright.evaluation.datasets.plan import DatasetError, shape_of
from tilewright.evaluation.datasets.rows import Reader
from tilewright.models.transfer.training_data import TrainingTable
from tilewright.targets.base import STATUSES
from tilewright.targets.features import Feature, Features
from tilewright.targets.workload import Workload

ABOUT = "dataset.json"
FORMAT = "tilewright dataset"
MOST_BYTES = 64 << 20
"""Maximum size of `dataset.json` in bytes."""
MOST_COLUMNS, MOST_FILES = 4096, 1 << 17
FREE_ROWS = 1 << 24
"""Number of rows that a dataset may state regardless of the size of its files. Each further row
must take at least one byte of a file."""
_PATH = re.compile(r"rows/hardware=\w[\w.-]{0,63}/\w[\w-]{0,63}\.parquet", re.ASCII)


@dataclass(frozen=True)
class HardwareRecord:
    """A piece of hardware in `dataset.json`.

    Attributes:
        id: ID of the hardware.
        name: name of the target.
        kind: type of the target, for example "vta".
        fingerprint: fingerprint of the target on which the rows were measured.
        unit: unit of the latencies.
        features: hardware features of the target.
        specification: specification of the target.
    """

    id: str
    name: str
    kind: str
    fingerprint: str
    unit: Literal["cycles", "seconds"]
    features: dict[str, float] = field(default_factory=dict)
    specification: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FileRecord:
    """Entry of a file in `dataset.json`.

    Attributes:
        path: path of the file, relative to the folder of the dataset.
        hardware: ID of the hardware on which the rows were measured.
        rows: number of rows.
        bytes: size in bytes.
        sha256: SHA-256 digest of the content.
    """

    path: str
    hardware: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class DatasetMetadata:
    """Content of `dataset.json`.

    Attributes:
        hardware: the hardware.
        workloads: the workloads as JSON. The column `workload` of the files is an index into them.
        columns: features of all files. A single file may lack some of them.
        files: the files.
        rows: number of rows.
        statuses: names of the statuses. The column `status` of the files is an index into them.
        made: origin of the rows, as information for users.
        format: name of the file format.
        version: version of the file format.
    """

    hardware: tuple[HardwareRecord, ...]
    workloads: tuple[dict[str, Any], ...]
    columns: tuple[Feature, ...]
    files: tuple[FileRecord, ...]
    rows: int
    statuses: tuple[str, ...] = STATUSES
    made: dict[str, Any] = field(default_factory=dict)
    format: str = FORMAT
    version: int = DATASET.written

    @property
    def digest(self) -> str:
        """Digest of the whole dataset. It covers the metadata, which hold the files' digests."""
        return digest(self.to_json())

    @cached_property
    def parsed(self) -> tuple[Workload, ...]:
        """The workloads as objects. Reading it raises the errors of `Workload.from_json`."""
        return tuple(Workload.from_json(workload) for workload in self.workloads)

    @cached_property
    def families(self) -> tuple[int, ...]:
        """Index of the first workload with the same shape, for each workload.

        Workloads that differ only in their epilogue or number type count as one workload when a
        table is split into training and test rows.
        """
        first: dict[Workload, int] = {}
        return tuple(
            first.setdefault(shape_of(item), place) for place, item in enumerate(self.parsed)
        )

    def to_json(self) -> bytes:
        """Serialise the metadata for `read_about`."""
        return canonical(asdict(self)) + b"\n"


def read_about(folder: Path) -> DatasetMetadata:
    """Read the metadata of a dataset.

    Args:
        folder: folder of the dataset.

    Returns:
        The metadata.

    Raises:
        DatasetError: the folder contains no finished dataset, or the metadata are damaged.
        UnsafeFile: a path is not a regular file.
        OSError: the file cannot be read.
    """
    path = folder / ABOUT
    try:
        data = read_plain(path, limit=MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{folder} contains no finished dataset ({ABOUT} is missing); give another "
            f"folder, or finish it with 'tilewright dataset build --out {folder}'"
        ) from None
    try:
        values = as_object(read_json(data))
        _check_version(path, values)
        about = TypeAdapter(DatasetMetadata).validate_python(values)
        _check(about)
    except (ValueError, LookupError, TypeError, WorkloadError, RecursionError) as error:
        raise DatasetError(
            f"{path} does not describe a dataset: {_first_line(error)}; {_GET_FOLDER_AGAIN}"
        ) from None
    return about


_GET_FOLDER_AGAIN = "copy the folder again from its source, or build it again"


def _check_version(path: Path, values: Mapping[str, Any]) -> None:
    """Raise `DatasetError` if the format or its version is not supported."""
    if values.get("format") != FORMAT:
        raise DatasetError(
            f"{path} does not describe a dataset (its format is not '{FORMAT}'); "
            f"{_GET_FOLDER_AGAIN}"
        )
    if refusal := DATASET.refusal(path, DATASET.version_in(values)):
        raise DatasetError(refusal)


def _check(about: DatasetMetadata) -> None:
    """Check that the metadata of a dataset are consistent.

    IDs and names must be unique, files must have valid paths, sizes and listed hardware, the number
    of rows must match the files and be possible for their sizes, the statuses must be known, and
    the workloads must be valid.

    Raises:
        ValueError: the metadata contradict each other, contain an invalid value, or list too many
            columns or files.
        WorkloadError: a workload is invalid.
    """
    known = _check_distinct("hardware", [device.id for device in about.hardware])
    _check_distinct("column", [column.name for column in about.columns])
    _check_distinct("file", [item.path for item in about.files])
    if len(about.columns) > MOST_COLUMNS or len(about.files) > MOST_FILES:
        raise ValueError(f"it lists more than {MOST_COLUMNS} columns or {MOST_FILES} files")
    for file in about.files:
        if not _PATH.fullmatch(file.path):
            raise ValueError(
                f"files must be called rows/hardware=ID/NAME.parquet, not {file.path!r:.80}"
            )
        if file.hardware not in known:
            raise ValueError(
                f"{file.path} belongs to the hardware {file.hardware!r:.40}, which is not listed"
            )
        if file.rows < 0 or file.bytes < 0:
            raise ValueError(f"{file.path} has a negative size")
    if about.rows > FREE_ROWS + sum(item.bytes for item in about.files):
        raise ValueError("it states more rows than its files can hold")
    if sum(item.rows for item in about.files) != about.rows:
        raise ValueError("its number of rows does not match its files")
    if not set(about.statuses) <= set(STATUSES):
        raise ValueError(f"it has statuses other than {', '.join(STATUSES)}")
    _ = about.families


def _check_distinct(what: str, names: Sequence[str]) -> set[str]:
    if len(result := set(names)) != len(names):
        raise ValueError(f"the same {what} is listed twice")
    return result


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}"[:200]
    return f"{type(error).__name__}: {error}"[:200]


FREE_BYTES, MOST_RATIO = 1 << 30, 64
"""Limits on the size of a table in memory: `FREE_BYTES` plus `MOST_RATIO` times the bytes of its
files. Tables of our datasets have 2.3 times the bytes of their files."""
_STEP = "copy it again from its source, or build the dataset again"


@dataclass(frozen=True)
class _RowsOfFile:
    """The rows of one file of a dataset that were selected for reading.

    Attributes:
        file: entry of the file in `dataset.json`.
        which: indices of the selected rows in the file, int array of shape (n,).
        workload: workload index of each selected row, int array of shape (n,).
    """

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
    """Read all rows of a dataset, or a selection of them.

    Hardware and workloads keep their index in `dataset.json` as their ID, regardless of the
    selection. In the table's column `workload`, workloads that differ only in epilogue or number
    type share the ID of the first of them. The table contains all features of the dataset, in
    float32.

    Args:
        folder: folder of the dataset.
        hardware: IDs or names of the hardware to read; None for all.
        workloads: IDs of the workloads to read; None for all.
        rows: maximum number of rows, which are drawn at random; None for all.
        seed: seed for drawing rows.

    Returns:
        The rows.

    Raises:
        DatasetError: the dataset is damaged, or no rows were selected.
        UnknownName: the dataset does not contain a piece of hardware or a workload.
        UnsafeFile: a path is not a regular file.
        OSError: a file cannot be read.
    """
    about = read_about(folder)
    of = _hardware_indices(about, hardware)
    only = None if workloads is None else _workloads(about, workloads)
    results = [
        _rows_of(folder, about, file, only) for file in about.files if of[file.hardware] is not None
    ]
    results = _draw_rows(results, rows, seed)
    if not results:
        raise DatasetError(f"{folder} contains no rows for this selection; select more")
    return _table(folder, about, results)


def digest_of(folder: Path) -> str:
    """Return the digest that identifies a whole dataset, 64 hexadecimal digits.

    Args:
        folder: folder of the dataset.

    Raises:
        DatasetError: the folder contains no finished dataset.
        UnsafeFile: a path is not a regular file.
        OSError: the file cannot be read.
    """
    return read_about(folder).digest


def _hardware_indices(
    about: DatasetMetadata, wanted: Sequence[str] | None
) -> dict[str, int | None]:
    """Return the index of each selected piece of hardware, by its ID.

    Args:
        about: metadata of the dataset.
        wanted: IDs or names of the hardware to select; None for all.

    Returns:
        The index in `about.hardware`, or None if the piece of hardware is not selected.

    Raises:
        UnknownName: the dataset does not contain a piece of hardware.
    """
    known = {device.id for device in about.hardware} | {device.name for device in about.hardware}
    for name in wanted or ():
        if name not in known:
            raise UnknownName("hardware", name, sorted(known))
    return {
        device.id: place if wanted is None or {device.id, device.name} & set(wanted) else None
        for place, device in enumerate(about.hardware)
    }


def _workloads(about: DatasetMetadata, wanted: Sequence[str]) -> NDArray[np.bool_]:
    """Return the mask of the selected workloads, bool array of shape (workloads,).

    Args:
        about: metadata of the dataset.
        wanted: IDs of the workloads to select.

    Raises:
        UnknownName: the dataset does not contain a workload.
    """
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
        raise _damaged_error(folder, file, error) from None
    which = np.arange(file.rows) if only is None else np.flatnonzero(only[workload])
    return _RowsOfFile(file, which, workload[which])


def _draw_rows(files: list[_RowsOfFile], rows: int | None, seed: int) -> list[_RowsOfFile]:
    """Draw rows at random without replacement, and keep their order within each file.

    Args:
        files: the rows to draw from, one entry per file.
        rows: maximum number of rows; None to keep all.
        seed: seed of the draw.

    Returns:
        The drawn rows, without files from which no row was drawn.
    """
    total = sum(len(item.which) for item in files)
    if rows is not None and rows < total:
        kept = np.zeros(total, np.bool_)
        kept[np.random.default_rng(seed).choice(total, max(rows, 0), replace=False)] = True
        ends = np.cumsum([len(item.which) for item in files])[:-1]
        files = [
            _RowsOfFile(item.file, item.which[mask], item.workload[mask])
            for item, mask in zip(files, np.split(kept, ends), strict=True)
        ]
    return [item for item in files if len(item.which)]


def _table(folder: Path, about: DatasetMetadata, result: list[_RowsOfFile]) -> TrainingTable:
    ends = np.cumsum([0, *(len(element.which) for element in result)])
    size = int(ends[-1]) * len(about.columns) * np.dtype(np.float32).itemsize
    if size > FREE_BYTES + MOST_RATIO * sum(element.file.bytes for element in result):
        raise DatasetError(
            f"{folder} needs a table of {size / (1 << 30):.1f} GiB ({ends[-1]:,} rows of "
            f"{len(about.columns)} columns), which is more than its files can hold; read "
            f"fewer rows, or {_STEP}"
        )
    matrix = np.full((int(ends[-1]), len(about.columns)), np.nan, np.float32)
    latency = np.empty(len(matrix))
    valid = about.statuses.index("valid") if "valid" in about.statuses else None
    for item, first, end in zip(result, ends[:-1], ends[1:], strict=True):
        reader = _reader(folder, about, item.file)
        try:
            latency[first:end] = reader.log_latency(valid)[item.which]
            reader.features(item.which, matrix[first:end])
        except ValueError as error:
            raise _damaged_error(folder, item.file, error) from None
    places = {device.id: place for place, device in enumerate(about.hardware)}
    hardware = np.repeat([places[element.file.hardware] for element in result], np.diff(ends))
    workload = np.concatenate([element.workload for element in result]).astype(np.int64)
    return TrainingTable(
        features=Features(cast("NDArray[np.float64]", matrix), about.columns),
        log_latency=latency,
        task=hardware * len(about.workloads) + workload,
        workload=np.array(about.families, np.int64)[workload],
        hardware=hardware.astype(np.int64),
    )


def _reader(folder: Path, about: DatasetMetadata, file: FileRecord) -> Reader:
    """Open a file of a dataset, after comparing it with its size and digest.

    Args:
        folder: folder of the dataset.
        about: metadata of the dataset.
        file: entry of the file in `dataset.json`.

    Raises:
        DatasetError: the file is missing, damaged, or differs from its entry.
        UnsafeFile: the path is not a regular file, or the file is larger than its entry says.
        OSError: the file cannot be read.
    """
    path = folder / file.path
    try:
        data = read_plain(path, limit=min(file.bytes, LARGEST))
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; {_STEP}") from None
    if len(data) != file.bytes or digest(data) != file.sha256:
        raise DatasetError(
            f"{path} is damaged: its digest differs from that in dataset.json; {_STEP}"
        )
    try:
        return Reader(data, file.rows, about.columns)
    except ValueError as error:
        raise _damaged_error(folder, file, error) from None


def _damaged_error(folder: Path, file: FileRecord, error: ValueError) -> DatasetError:
    return DatasetError(f"{folder / file.path} cannot be used: {error}; {_STEP}")
