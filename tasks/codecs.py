"""Encodes what passes between stages as bytes: arrays as NPZ, learned models in native formats.

What is read is checked against its shape: every decoder raises `ValueError` or `KeyError` for bytes
that its encoder cannot have written, and nothing else.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import (
    pack_arrays,
    pack_files,
    read_json,
    unpack_arrays,
    unpack_files,
)
from tilewright.models import load_state, save_state
from tilewright.search import Batch, Candidates, ExplorerState, History
from tilewright.targets.base import STATUSES, Configs, Lowered, Measurements, Ragged
from tilewright.targets.features import Features, read_columns
from tilewright.targets.worker import read_programs, write_programs
from tilewright.targets.workload import Workload

_SCORE, _COUNTER, _REPEATS = "score_", "counter_", "repeats"
_FAST = 1  # of zlib: programs shrink to a quarter, and little more at higher levels


def encode_candidates(candidates: Candidates) -> bytes:
    """As NPZ, each score an array of its own."""
    scores = {_SCORE + name: values for name, values in candidates.scores.items()}
    return pack_arrays(
        {"configs": candidates.configs, "vetoed": np.array(candidates.vetoed)} | scores
    )


def decode_candidates(data: bytes) -> Candidates:
    """What `encode_candidates` wrote."""
    arrays = unpack_arrays(data)
    scores, rows = _named(arrays, _SCORE), _configs(arrays, "configs")
    for values in scores.values():
        _column(values, "f", len(rows))
    return Candidates(rows, scores, _whole(arrays, "vetoed"))


def encode_batch(batch: Batch) -> bytes:
    """With its programs, so that measuring it lowers nothing again."""
    rows = batch.rows
    scores = {_SCORE + name: values for name, values in batch.scores.items()}
    return pack_arrays(
        {
            "configs": rows.configs,
            "failures": _text(rows.failures),
            "reasons": _text(rows.reasons),
            "failed": batch.failed,
            "lowered": np.array(batch.lowered),
        }
        | _features(rows.hidden)
        | write_programs(rows.programs)
        | scores,
        level=_FAST,
    )


def decode_batch(data: bytes, workload: Workload) -> Batch:
    """`workload` is what the batch was lowered for."""
    arrays = unpack_arrays(data)
    configs, scores = _configs(arrays, "configs"), _named(arrays, _SCORE)
    programs, rows = read_programs(arrays), len(configs)
    for values in scores.values():
        _column(values, "f", rows)
    if any(len(part) != rows for part in programs.values()):
        raise ValueError("programs of another batch")
    return Batch(
        rows=Lowered(
            workload=workload,
            configs=configs,
            failures=_column(arrays["failures"], "U", rows).astype(object),
            reasons=_column(arrays["reasons"], "U", rows).astype(object),
            hidden=_hidden(arrays, rows),
            programs=programs,
        ),
        scores=scores,
        failed=_configs(arrays, "failed", configs.shape[1]),
        lowered=_whole(arrays, "lowered"),
    )


def encode_measurements(measured: Measurements) -> bytes:
    """As NPZ; repeats, rows of unequal length, in the form of programs."""
    counters = {_COUNTER + name: values for name, values in measured.counters.items()}
    repeats = {} if measured.repeats is None else {_REPEATS: measured.repeats}
    return pack_arrays(
        {
            "status": _text(measured.status),
            "reason": _text(measured.reason),
            "cycles": measured.cycles,
            "seconds": measured.seconds,
        }
        | counters
        | write_programs(repeats)
    )


def decode_measurements(data: bytes) -> Measurements:
    """What `encode_measurements` wrote."""
    arrays = unpack_arrays(data)
    rows, counters = arrays["status"].size, _named(arrays, _COUNTER)
    for values in counters.values():
        _column(values, "i", rows)
    return Measurements(
        status=_statuses(arrays, rows),
        reason=_column(arrays["reason"], "U", rows).astype(object),
        cycles=_column(arrays["cycles"], "i", rows),
        seconds=_column(arrays["seconds"], "f", rows),
        counters=counters,
        repeats=_repeats(arrays, rows),
    )


def encode_history(history: History) -> bytes:
    """As NPZ, with `pending` and repeats only if there are any."""
    return pack_arrays(
        {
            "configs": history.configs,
            "status": _text(history.status),
            "cycles": history.cycles,
            "seconds": history.seconds,
            "rounds": history.rounds,
            "failed": history.failed,
            "round": np.array(history.round),
        }
        | _features(history.hidden)
        | ({} if history.pending is None else {"pending": history.pending})
        | write_programs({} if history.repeats is None else {_REPEATS: history.repeats})
    )


def decode_history(data: bytes) -> History:
    """What `encode_history` wrote."""
    arrays = unpack_arrays(data)
    configs = _configs(arrays, "configs")
    rows, knobs = configs.shape
    return History(
        configs=configs,
        status=_statuses(arrays, rows),
        cycles=_column(arrays["cycles"], "i", rows),
        seconds=_column(arrays["seconds"], "f", rows),
        rounds=_column(arrays["rounds"], "i", rows),
        hidden=_hidden(arrays, rows),
        failed=_configs(arrays, "failed", knobs),
        round=_whole(arrays, "round"),
        pending=_configs(arrays, "pending", knobs) if "pending" in arrays else None,
        repeats=_repeats(arrays, rows),
    )


def encode_state(state: ExplorerState) -> bytes:
    """A ZIP of the files that `models.save_state` writes."""
    with tempfile.TemporaryDirectory() as folder:
        files = save_state(state, Path(folder))
        return pack_files({path.name: path.read_bytes() for path in files})


def decode_state(data: bytes) -> ExplorerState:
    """What `encode_state` wrote. Raises `StoreError` as `models.load_state`, too."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, content in unpack_files(data).items():
                (Path(folder) / Path(name).name).write_bytes(content)
        except OSError as error:  # what is no name of a file
            raise ValueError(f"no models: {error}") from None
        return load_state(Path(folder))


def _named(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _features(features: Features) -> dict[str, NDArray[Any]]:
    about = json.dumps([asdict(column) for column in features.columns])
    return {"hidden": features.matrix, "columns": np.array(about)}


def _hidden(arrays: dict[str, NDArray[Any]], rows: int) -> Features:
    columns = read_columns(read_json(str(arrays["columns"])))
    hidden = arrays["hidden"]
    if hidden.dtype != np.float64 or hidden.shape != (rows, len(columns)):
        raise ValueError("hidden features of another batch")
    return Features(hidden, columns)


def _repeats(arrays: dict[str, NDArray[Any]], rows: int) -> Ragged | None:
    found = read_programs(arrays).get(_REPEATS)
    if found is not None and (len(found) != rows or found.values.dtype.kind != "f"):
        raise ValueError("repeats of another batch")
    return found


def _configs(arrays: dict[str, NDArray[Any]], name: str, knobs: int | None = None) -> Configs:
    found = arrays[name]
    if found.dtype != np.int32 or found.ndim != 2 or knobs not in (None, found.shape[1]):
        raise ValueError(f"{name} are not configs")
    if found.size and found.min() < 0:
        raise ValueError(f"{name} are below their range")
    return found


def _column(values: NDArray[Any], kind: str, rows: int) -> NDArray[Any]:
    """An entry a row: of text (`U`), whole numbers (`i`) or others (`f`)."""
    if values.dtype.kind != kind or values.shape != (rows,) or values.dtype.itemsize > 1 << 20:
        raise ValueError("a column of another batch")
    return values


def _statuses(arrays: dict[str, NDArray[Any]], rows: int) -> NDArray[np.object_]:
    found = _column(arrays["status"], "U", rows).astype(object)
    if not set(found) <= set(STATUSES):
        raise ValueError("an unknown status")
    return found


def _whole(arrays: dict[str, NDArray[Any]], name: str) -> int:
    found = arrays[name]
    if found.shape != () or found.dtype.kind != "i" or not 0 <= int(found) < 1 << 31:
        raise ValueError(f"{name} is not a count")
    return int(found)


def _text(values: NDArray[np.object_] | tuple[str, ...]) -> NDArray[np.str_]:
    """As text that can be read back: without halves of characters, which a path may hold."""
    plain = [str(value).encode("utf-8", "replace").decode() for value in values]
    return np.array(plain, dtype=np.str_)
