"""Defines `dataset.json`: what the rows of a dataset are, and what its files must be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from tilewright.core.errors import WorkloadError
from tilewright.core.files import as_object, canonical, digest, read_json, read_plain
from tilewright.core.formats import DATASET
from tilewright.evaluation.datasets.errors import DatasetError
from tilewright.evaluation.datasets.plan import shape_of
from tilewright.targets.base import STATUSES
from tilewright.targets.features import Feature
from tilewright.targets.workload import Workload

ABOUT = "dataset.json"
FORMAT = "tilewright dataset"
MOST_BYTES = 64 << 20
"""Of `dataset.json`."""
MOST_COLUMNS, MOST_FILES = 4096, 1 << 17
FREE_ROWS = 1 << 24
"""Beyond these, a row takes a byte of a file at least: that many are not written in fewer."""
_PATH = re.compile(r"rows/hardware=\w[\w.-]{0,63}/\w[\w-]{0,63}\.parquet", re.ASCII)


@dataclass(frozen=True)
class HardwareRecord:
    """A piece of hardware: `fingerprint` is that of the target that measured, `unit` that of its
    latencies, `features` and `specification` as the target gave them."""

    id: str
    name: str
    kind: str
    fingerprint: str
    unit: Literal["cycles", "seconds"]
    features: dict[str, float] = field(default_factory=dict)
    specification: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FileRecord:
    """A file of rows: its path from the folder, its hardware by id, its size and SHA-256."""

    path: str
    hardware: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class DatasetMetadata:
    """All of `dataset.json`. `columns` are those of every file, a file may lack some; `status` of a
    row is a place in `statuses`, `workload` one in `workloads`. `made` says how the rows came to
    be, for people."""

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
        """Changes when anything of the dataset does, for it covers the files' digests."""
        return digest(self.to_json())

    @cached_property
    def parsed(self) -> tuple[Workload, ...]:
        """The workloads. Raises as `Workload.from_json`."""
        return tuple(Workload.from_json(each) for each in self.workloads)

    @cached_property
    def families(self) -> tuple[int, ...]:
        """For each workload the first one of its shape: what is done to the sums, and the numbers
        it computes with, make no other task to learn."""
        first: dict[Workload, int] = {}
        return tuple(
            first.setdefault(shape_of(each), place) for place, each in enumerate(self.parsed)
        )

    def to_json(self) -> bytes:
        """What `read_about` reads."""
        return canonical(asdict(self)) + b"\n"


def read_about(folder: Path) -> DatasetMetadata:
    """What a folder says of its dataset. Raises `DatasetError`, `UnsafeFile` or `OSError`."""
    path = folder / ABOUT
    try:
        data = read_plain(path, limit=MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(
            f"{folder} holds no finished dataset ({ABOUT} is missing): name another folder, or "
            f"finish it by 'tilewright dataset build --out {folder}'"
        ) from None
    try:
        values = as_object(read_json(data))
        _check_version(path, values)
        about = TypeAdapter(DatasetMetadata).validate_python(values)
        _check(about)
    except (ValueError, LookupError, TypeError, WorkloadError, RecursionError) as error:
        raise DatasetError(f"{path} describes no dataset: {_first_line(error)}; {_STEP}") from None
    return about


_STEP = "get the folder again from where it came from, or build it again"


def _check_version(path: Path, values: Mapping[str, Any]) -> None:
    """Raises `DatasetError` for a format of another time."""
    if values.get("format") != FORMAT:
        raise DatasetError(f"{path} is not about a dataset (its format is no '{FORMAT}'); {_STEP}")
    if refusal := DATASET.refusal(path, DATASET.version_in(values)):
        raise DatasetError(refusal)


def _check(about: DatasetMetadata) -> None:
    """Raises `ValueError` for what does not fit together."""
    known = _distinct("hardware", [each.id for each in about.hardware])
    _distinct("column", [each.name for each in about.columns])
    _distinct("file", [each.path for each in about.files])
    if len(about.columns) > MOST_COLUMNS or len(about.files) > MOST_FILES:
        raise ValueError(f"more than {MOST_COLUMNS} columns or {MOST_FILES} files")
    for each in about.files:
        if not _PATH.fullmatch(each.path):
            raise ValueError(
                f"a file is called rows/hardware=ID/NAME.parquet, not {each.path!r:.80}"
            )
        if each.hardware not in known:
            raise ValueError(
                f"{each.path} is of hardware {each.hardware!r:.40}, which is not listed"
            )
        if each.rows < 0 or each.bytes < 0:
            raise ValueError(f"{each.path} has a negative size")
    if about.rows > FREE_ROWS + sum(each.bytes for each in about.files):
        raise ValueError("it says to have more rows than its files can hold")
    if sum(each.rows for each in about.files) != about.rows:
        raise ValueError("its rows are not those of its files")
    if not set(about.statuses) <= set(STATUSES):
        raise ValueError(f"statuses other than {', '.join(STATUSES)}")
    _ = about.families


def _distinct(what: str, names: Sequence[str]) -> set[str]:
    if len(found := set(names)) != len(names):
        raise ValueError(f"the same {what} is listed twice")
    return found


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}"[:200]
    return f"{type(error).__name__}: {error}"[:200]
