"""Ground-truth tables: measurements of every config of a space, which are stored as Parquet files.

A table contains the true optimum, so the distance of a tuner from the optimum is known. A replay
target (`make_replay_target`) returns the rows of such tables instead of compiling and measuring, so
that thousands of tuning runs take only seconds.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tilewright.core.files import read_json, write_atomically
from tilewright.core.formats import GROUND_TRUTH as _FORMAT
from tilewright.targets.base import Lowered, Measurements, Space, Target
from tilewright.targets.capabilities import Enumerates, Estimates, HasCosts, capability
from tilewright.targets.features import Features, read_columns, write_columns
from tilewright.targets.replay import MeasurementTable, ReplayTarget
from tilewright.targets.workload import Workload

Progress = Callable[[int], None]
"""Callback for progress messages. Its argument is the number of configs that were measured since
the previous call."""

_CHUNK = 4096
_DIGEST, _COLUMNS = b"tilewright.digest", b"tilewright.hidden"
_HIDDEN = "hidden:"
_TEXTS = ["status", "failure", "reason"]


def ground_truth_table(
    target: Target, workload: Workload, folder: Path | None = None, progress: Progress | None = None
) -> MeasurementTable:
    """Measure every config of a workload's space, or read the stored measurements.

    Args:
        target: the target to measure on.
        workload: the workload.
        folder: folder for stored tables. A stored table is found by the workload's ID and the
            target's fingerprint, which covers the version of the simulator. If a file is damaged,
            the space is measured again. None means that nothing is stored.
        progress: callback for the progress.

    Raises:
        WorkloadError: the target cannot run the workload.
    """
    path = None if folder is None else ground_truth_path(target, workload, folder)
    table = None if path is None else read_ground_truth(path, target, workload)
    if table is None:
        table = _enumerate_space(target, workload, progress)
        if path is not None:
            _write(path, table)
    return table


def ground_truth_path(target: Target, workload: Workload, folder: Path) -> Path:
    """Return the path of the file in `folder` that stores a workload's measurement table.

    The file name identifies the target and the workload.
    """
    return folder / f"{workload.id}-{target.fingerprint}.parquet"


def read_ground_truth(path: Path, target: Target, workload: Workload) -> MeasurementTable | None:
    """Read a table that `ground_truth_table` stored.

    Returns:
        The table; None if the file is missing, damaged or of an unsupported version.
    """
    space = target.space(workload)
    try:
        parquet = pq.read_table(path, read_dictionary=_TEXTS, use_threads=False)
        version = parquet.schema.metadata.get(_FORMAT.key.encode())
        if not _FORMAT.can_read(_FORMAT.unmarked if version is None else int(version)):
            return None
        table = _decode_table(parquet, workload, space)
        intact = parquet.schema.metadata[_DIGEST].decode() == table.digest
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return None
    return table if intact else None


def make_replay_target(target: Target, tables: Sequence[MeasurementTable]) -> ReplayTarget:
    """Return a replay target, which looks measurements up in tables instead of measuring.

    Args:
        target: the target on which the tables were measured. It provides everything other than
            measurements, for example estimates.
        tables: one complete or partial measurement table per workload.
    """
    return ReplayTarget(
        tables,
        name=target.name,
        hardware=target.hardware_features(),
        estimates=capability(target, Estimates),
        costs=capability(target, HasCosts),
    )


def _enumerate_space(
    target: Target, workload: Workload, progress: Progress | None
) -> MeasurementTable:
    """Measure all configs of a workload's space.

    Use a single pass if the target supports it, and otherwise lower and measure the space in
    chunks. `progress` is called during the enumeration, if it is not None.
    """
    space = target.space(workload)
    whole = capability(target, Enumerates)
    if space.listed is None and whole is not None:
        return _table(workload, space, [whole.enumerate(workload, progress)])
    flat = np.arange(space.size) if space.listed is None else np.asarray(space.listed)
    chunks = []
    for start in range(0, len(flat), _CHUNK):
        lowered = target.lower(workload, space.unravel(flat[start : start + _CHUNK]))
        chunks.append((replace(lowered, programs={}), target.measure(lowered)))
        if progress is not None:
            progress(len(lowered))
    return _table(workload, space, chunks)


def _table(
    workload: Workload, space: Space, chunks: Sequence[tuple[Lowered, Measurements]]
) -> MeasurementTable:
    first, _ = chunks[0]
    return MeasurementTable(
        name=str(workload),
        workload=workload,
        space=space,
        flat=np.concatenate([space.ravel(lowered.configs) for lowered, _ in chunks]),
        status=np.concatenate([measured.status for _, measured in chunks]),
        failures=np.concatenate([lowered.failures for lowered, _ in chunks]),
        reasons=np.concatenate([measured.reason for _, measured in chunks]),
        cycles=np.concatenate([measured.cycles for _, measured in chunks]),
        seconds=np.concatenate([measured.seconds for _, measured in chunks]),
        hidden=Features(
            np.concatenate([lowered.hidden.matrix for lowered, _ in chunks]), first.hidden.columns
        ),
    )


# -- Parquet -----------------------------------------------------------------------------------


def _write(path: Path, table: MeasurementTable) -> None:
    """Write the table atomically: to a temporary file, which is synced and then renamed."""
    columns = {
        "flat": pa.array(table.flat),
        "status": _words(table.status),
        "failure": _words(table.failures),
        "reason": _words(table.reasons),
        "cycles": pa.array(table.cycles),
        "seconds": pa.array(table.seconds),
    }
    hidden = {
        _HIDDEN + name: pa.array(np.ascontiguousarray(table.hidden.matrix[:, k]))
        for k, name in enumerate(table.hidden.names)
    }
    about = json.dumps(write_columns(table.hidden.columns))
    notes = {_DIGEST: table.digest, _COLUMNS: about, _FORMAT.key: str(_FORMAT.written)}
    data = pa.table(columns | hidden).replace_schema_metadata(notes)
    buffer = io.BytesIO()
    pq.write_table(data, buffer, compression="zstd")
    write_atomically(path, buffer.getvalue())


def _decode_table(parquet: pa.Table, workload: Workload, space: Space) -> MeasurementTable:
    columns = read_columns(read_json(parquet.schema.metadata[_COLUMNS]))
    hidden = np.empty((parquet.num_rows, len(columns)))
    for k, column in enumerate(columns):
        hidden[:, k] = parquet[_HIDDEN + column.name].to_numpy()
    return MeasurementTable(
        name=str(workload),
        workload=workload,
        space=space,
        flat=parquet["flat"].to_numpy(),
        status=_objects(parquet["status"]),
        failures=_objects(parquet["failure"]),
        reasons=_objects(parquet["reason"]),
        cycles=parquet["cycles"].to_numpy(),
        seconds=parquet["seconds"].to_numpy(),
        hidden=Features(hidden, columns),
    )


def _words(values: NDArray[np.object_]) -> pa.Array:
    """Encode strings as a Parquet dictionary array, because few different texts fill many rows."""
    return pa.array(values, type=pa.string()).dictionary_encode()


def _objects(column: pa.ChunkedArray) -> NDArray[np.object_]:
    """Decode strings into an object array.

    All rows with equal text share a single string object, to save memory.
    """
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    words = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return np.asarray(words[encoded.indices.to_numpy()], dtype=object)
