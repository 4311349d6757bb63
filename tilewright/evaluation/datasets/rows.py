"""Measures the rows of a dataset, and writes and reads them as Parquet files.

To measure rows, schedules are drawn from a space, compiled, measured and described by features. A
file contains only numbers. Features are float32, and null where a feature does not apply to a row.

Files may come from an untrusted source. The reader therefore checks sizes before it decompresses
anything, reads only columns of plain numbers, and checks their values. Errors of Arrow about
damaged files become typed errors.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tilewright.core.files import as_text, read_json
from tilewright.evaluation.datasets.plan import DatasetPlan, PlanPart, fit_workload
from tilewright.models.transfer.columns import columns_of
from tilewright.targets.base import STATUSES, Configs, Lowered, Measurements, Target
from tilewright.targets.capabilities import MeasuresInOnePass, capability
from tilewright.targets.features import Feature, read_columns, write_columns
from tilewright.targets.workload import Workload

Progress = Callable[[int], None]
"""Callback that gets the number of rows that were finished since its last call."""

_AT_ONCE = 4096  # number of configs whose programs are kept in memory at a time
_CODES = {status: code for code, status in enumerate(STATUSES)}


@dataclass(frozen=True)
class Sample:
    """Measured rows of one piece of hardware, one row per config. Arrays have the shape (rows,).

    Attributes:
        workload: index of the workload in the plan.
        config: flat index of the config in its search space.
        status: index in `targets.base.STATUSES`.
        log_latency: log2 of the latency; NaN if it is unknown.
        columns: float32 features by name; NaN where a feature does not apply to a row.
        about: description of each feature.
    """

    workload: NDArray[np.int32]
    config: NDArray[np.int64]
    status: NDArray[np.int8]
    log_latency: NDArray[np.float64]
    columns: dict[str, NDArray[np.float32]]
    about: dict[str, Feature]

    def __len__(self) -> int:
        return len(self.workload)

    @staticmethod
    def concatenate(parts: Sequence[Sample]) -> Sample:
        """Concatenate the rows of several samples.

        A feature that is missing from a sample is NaN in the rows of that sample.
        """
        about = {name: column for part in parts for name, column in part.about.items()}
        names = in_order([tuple(part.about) for part in parts])
        return Sample(
            np.concatenate([part.workload for part in parts]),
            np.concatenate([part.config for part in parts]),
            np.concatenate([part.status for part in parts]),
            np.concatenate([part.log_latency for part in parts]),
            {name: np.concatenate([part._column(name) for part in parts]) for name in names},
            {name: about[name] for name in names},
        )

    def _column(self, name: str) -> NDArray[np.float32]:
        if name in self.columns:
            return self.columns[name]
        return np.full(len(self), np.nan, np.float32)


def in_order(every: Sequence[tuple[str, ...]]) -> list[str]:
    """Merge several lists of column names into one list without duplicates.

    A new name is inserted after its predecessor in its own list. The order of each list is thus
    kept as far as the lists agree, and the columns that describe a schedule stay in the order of
    the space's knobs.

    Args:
        every: the lists of column names, one per file or sample.

    Returns:
        The merged list.
    """
    results: list[str] = []
    for names in dict.fromkeys(every):
        place = 0
        for name in names:
            if name in results:
                place = results.index(name) + 1
            else:
                results.insert(place, name)
                place += 1
    return results


def part_order(plan: DatasetPlan, part: PlanPart) -> dict[str, Any]:
    """Describe a part of a plan as JSON, so that any process can measure it.

    Args:
        plan: the plan of the dataset.
        part: a part of the plan.

    Returns:
        The seed, the digest of the plan, the hardware with its specification, and the `cells`: one
        list per workload of the part, with the index of the workload, the workload, and its number
        of rows.
    """
    hardware = plan.hardware[part.hardware]
    return {
        "seed": plan.options.seed,
        "plan": plan.digest,
        "hardware": asdict(hardware),
        "cells": [[c.workload, plan.workloads[c.workload], c.rows] for c in part.cells],
    }


def measure_rows(order: Mapping[str, Any], target: Target, tell: Progress) -> Sample:
    """Draw distinct random configs, compile and measure them, and describe them by features.

    Equal descriptions of a part draw equal configs.

    Args:
        order: description of the part, from `part_order`.
        target: the target that represents the part's hardware.
        tell: function that is called with the number of rows measured since the last call.

    Returns:
        The measured rows.

    Raises:
        WorkloadError: the target has no schedule for a workload.
    """
    hardware = order["hardware"]
    rows = []
    for place, written, count in order["cells"]:
        described = Workload.from_json(written)
        workload = fit_workload(described, target)
        space = target.space(workload)
        text = f"{hardware['id']} {described.id}".encode()  # the seed depends on the cell alone
        rng = np.random.default_rng([order["seed"], int.from_bytes(text, "little")])
        places = rng.choice(space.size, count, replace=False)
        flat = places if space.listed is None else np.asarray(space.listed)[places]
        for first in range(0, count, _AT_ONCE):
            configs = space.unravel(flat[first : first + _AT_ONCE])
            lowered, measured = _measure_configs(target, workload, configs, tell)
            rows.append(
                _describe_sample(hardware["features"], target, place, workload, lowered, measured)
            )
    return Sample.concatenate(rows)


def _measure_configs(
    target: Target, workload: Workload, configs: Configs, tell: Progress
) -> tuple[Lowered, Measurements]:
    at_once = capability(target, MeasuresInOnePass)
    if at_once is not None:
        lowered, measured = at_once.lower_and_measure(workload, configs)
    else:
        lowered = target.lower(workload, configs)
        measured = target.measure(lowered)
    tell(len(configs))
    return lowered, measured


def _describe_sample(
    features: dict[str, float], target: Target, place: int, workload: Workload,
    lowered: Lowered, measured: Measurements,
) -> Sample:  # fmt: skip
    space = target.space(workload)
    known = columns_of(workload, space, lowered.configs, features, lowered.hidden)
    valid = measured.valid
    latency = np.full(len(lowered), np.nan)
    latency[valid] = np.log2(measured.latency[valid])
    matrix = known.matrix.astype(np.float32)
    return Sample(
        np.full(len(lowered), place, np.int32),
        space.ravel(lowered.configs),
        np.array([_CODES[status] for status in measured.status], np.int8),
        latency,
        {name: matrix[:, k] for k, name in enumerate(known.names)},
        dict(zip(known.names, known.columns, strict=True)),
    )


N = TypeVar("N", np.int8, np.int32, np.float32, np.float64)

WORKLOAD, CONFIG, STATUS, LATENCY = "workload", "config", "status", "log_latency"
_TYPES = {WORKLOAD: pa.int32(), STATUS: pa.int8(), LATENCY: pa.float64()}
"""Types of the columns that every file must have besides the float32 features. Columns of another
width or precision are converted if their numbers fit."""
MOST_ROWS = 1 << 22
"""Maximum number of rows of a file."""
MOST_UNPACKED = 4 << 30
_PLAN, _COLUMNS = b"tilewright.plan", b"tilewright.columns"
_LIMITS = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}


def encode(rows: Sample, plan: str) -> bytes:
    """Serialise rows as a Parquet file. Equal rows give equal bytes.

    Args:
        rows: the rows.
        plan: digest of the plan to which the rows belong.

    Returns:
        The content of the file.
    """
    fixed = {
        WORKLOAD: pa.array(rows.workload),
        CONFIG: pa.array(rows.config),
        STATUS: pa.array(rows.status),
        LATENCY: pa.array(rows.log_latency, from_pandas=True),  # NaN becomes null
    }
    features = {name: pa.array(values, from_pandas=True) for name, values in rows.columns.items()}
    notes = {_PLAN: plan, _COLUMNS: json.dumps(write_columns([*rows.about.values()]))}
    buffer = io.BytesIO()
    table = pa.table(fixed | features).replace_schema_metadata(notes)
    # Without statistics: for a hundred columns they would be half as large as a thousand rows.
    pq.write_table(
        table, buffer, compression="zstd", write_page_checksum=True, write_statistics=False
    )
    return buffer.getvalue()


def columns_in(data: bytes, plan: str, rows: int) -> tuple[Feature, ...]:
    """Return the features in a file that `encode` wrote, without reading its rows.

    Args:
        data: content of the file.
        plan: expected digest of the plan.
        rows: expected number of rows.

    Returns:
        Descriptions of the features.

    Raises:
        ValueError: the file is damaged or belongs to another plan.
    """
    file = _open_file(data)
    result = file.schema_arrow.metadata or {}
    if result.get(_PLAN, b"").decode(errors="replace") != plan or file.metadata.num_rows != rows:
        raise ValueError("it belongs to another plan")
    return read_columns(read_json(as_text(result[_COLUMNS].decode())))


class Reader:
    """Reader for a file of rows that is in memory and may come from an untrusted source.

    The constructor and all methods raise `ValueError` if the file is damaged or its content is
    invalid.

    Args:
        data: content of the file.
        rows: expected number of rows.
        known: features of the dataset. A file may lack some of them, but has no others.
    """

    def __init__(self, data: bytes, rows: int, known: tuple[Feature, ...]) -> None:
        self._file, self.rows = _open_file(data), rows
        schema, about = self._file.schema_arrow, self._file.metadata
        if about.num_rows != rows or rows > MOST_ROWS:
            raise ValueError(
                f"it has {about.num_rows} rows instead of {rows} (at most {MOST_ROWS})"
            )
        if len(set(schema.names)) != len(schema.names):
            raise ValueError("it has a column with the same name twice")
        for name, kind in _TYPES.items():
            if name not in schema.names or not _reads_as(schema.field(name).type, kind):
                raise ValueError(f"it lacks the column {name} of type {kind}")
        places = {column.name: place for place, column in enumerate(known)}
        self._features = {
            name: places[name] for name in schema.names if name in places and name not in _TYPES
        }
        for name in schema.names:
            if name in self._features and not _reads_as(schema.field(name).type, pa.float32()):
                raise ValueError(
                    f"its column {name!r:.60} has type {schema.field(name).type} instead of float32"
                )
            if name not in self._features and name not in (*_TYPES, CONFIG):
                raise ValueError(f"its column {name!r:.60} is not listed")

    def workloads(self, count: int) -> NDArray[np.int32]:
        """Return the index of each row's workload, int32 array of shape (rows,).

        Args:
            count: number of workloads in the dataset. An index of `count` or more is an error.
        """
        numbers = self._numbers(WORKLOAD, np.int32)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
            raise ValueError(f"its column {WORKLOAD} contains workloads that are not listed")
        return numbers

    def log_latency(self, valid: int | None) -> NDArray[np.float64]:
        """Return log2 of the latencies, float64 array of shape (rows,); NaN for invalid rows.

        Args:
            valid: index of the status "valid"; None if the dataset has no such status.
        """
        numbers, status = self._numbers(LATENCY, np.float64), self._numbers(STATUS, np.int8)
        measured = np.isfinite(numbers)
        if np.isinf(numbers).any() or not np.array_equal(measured, status == valid):
            raise ValueError(f"{LATENCY} must be a number exactly in the valid rows")
        return numbers

    def features(self, which: NDArray[np.int64], into: NDArray[np.float32]) -> None:
        """Copy the features of some rows into a matrix.

        Args:
            which: indices of n rows.
            into: float32 array of shape (n, features of the dataset), filled with NaN. Columns of
                features that the file lacks stay NaN.
        """
        for name, place in self._features.items():
            values = self._numbers(name, np.float32)[which]
            if np.isinf(values).any():
                raise ValueError(f"its column {name!r:.60} has infinite values")
            into[:, place] = values

    def _numbers(self, name: str, kind: type[N]) -> NDArray[N]:
        try:
            table = self._file.read(columns=[name], use_threads=False)
            table.validate(full=True)
            column = table.column(0)
            if kind in (np.int32, np.int8):
                column = column.cast(_TYPES[name])  # raises if a number does not fit
            if len(column) != self.rows or (column.null_count and kind in (np.int32, np.int8)):
                raise ValueError(f"its column {name!r:.60} has missing values")
            with np.errstate(over="ignore"):  # becomes infinite, which callers reject
                return np.asarray(column.to_numpy(), dtype=kind)
        except (pa.ArrowException, OSError, MemoryError, LookupError) as error:
            raise ValueError(f"its column {name!r:.60} cannot be read ({error!s:.80})") from None


def _reads_as(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column of one type may be read as another type.

    Integers of any width may be read as integers. Integers and floats may be read as floats.

    Args:
        given: type of the column.
        wanted: type to read.
    """
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(given))
    return bool(pa.types.is_floating(given) or pa.types.is_integer(given))


def _open_file(data: bytes) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data), page_checksum_verification=True, pre_buffer=False, **_LIMITS
        )
        groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > MOST_UNPACKED:
            raise ValueError(f"it takes more than {MOST_UNPACKED >> 30} GiB when unpacked")
    except (pa.ArrowException, OSError, MemoryError, OverflowError) as error:
        raise ValueError(f"it is not a Parquet file ({error!s:.80})") from None
    return file
