"""Encodes what passes between stages as bytes: arrays as NPZ, learned models in native formats."""

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
from tilewright.targets.base import Configs, Lowered, Measurements
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
    return Candidates(arrays["configs"], _named(arrays, _SCORE), int(arrays["vetoed"]))


def encode_batch(batch: Batch) -> bytes:
    """With its programs, so that measuring it lowers nothing again."""
    rows, kept = batch.rows, batch.compiled
    scores = {_SCORE + name: values for name, values in batch.scores.items()}
    return pack_arrays(
        {
            "configs": rows.configs,
            "failures": _text(rows.failures),
            "reasons": _text(rows.reasons),
            "failed": batch.failed,
            "lowered": np.array(batch.lowered),
        }
        | ({} if kept is None else _compiled(kept.configs, kept.hidden))
        | _features(rows.hidden)
        | write_programs(rows.programs)
        | scores,
        level=_FAST,
    )


def decode_batch(data: bytes, workload: Workload) -> Batch:
    """`workload` is what the batch was lowered for."""
    arrays = unpack_arrays(data)
    return Batch(
        rows=Lowered(
            workload=workload,
            configs=arrays["configs"],
            failures=arrays["failures"].astype(object),
            reasons=arrays["reasons"].astype(object),
            hidden=_hidden(arrays),
            programs=read_programs(arrays),
        ),
        scores=_named(arrays, _SCORE),
        failed=arrays["failed"],
        lowered=int(arrays["lowered"]),
        compiled=_kept_programs(arrays, workload),
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
    return Measurements(
        status=arrays["status"].astype(object),
        reason=arrays["reason"].astype(object),
        cycles=arrays["cycles"],
        seconds=arrays["seconds"],
        counters=_named(arrays, _COUNTER),
        repeats=read_programs(arrays).get(_REPEATS),
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
        | _compiled(history.compiled, history.compiled_hidden)
        | ({} if history.pending is None else {"pending": history.pending})
        | write_programs({} if history.repeats is None else {_REPEATS: history.repeats})
    )


def decode_history(data: bytes) -> History:
    """What `encode_history` wrote."""
    arrays = unpack_arrays(data)
    return History(
        configs=arrays["configs"],
        status=arrays["status"].astype(object),
        cycles=arrays["cycles"],
        seconds=arrays["seconds"],
        rounds=arrays["rounds"],
        hidden=_hidden(arrays),
        failed=arrays["failed"],
        round=int(arrays["round"]),
        pending=arrays.get("pending"),
        repeats=read_programs(arrays).get(_REPEATS),
        compiled=arrays.get("compiled"),
        compiled_hidden=_compiled_hidden(arrays),
    )


def encode_state(state: ExplorerState) -> bytes:
    """A ZIP of the files that `models.save_state` writes."""
    with tempfile.TemporaryDirectory() as folder:
        files = save_state(state, Path(folder))
        return pack_files({path.name: path.read_bytes() for path in files})


def decode_state(data: bytes) -> ExplorerState:
    """What `encode_state` wrote. Raises `StoreError` as `models.load_state`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in unpack_files(data).items():
            (Path(folder) / name).write_bytes(content)
        return load_state(Path(folder))


def _named(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _features(features: Features) -> dict[str, NDArray[Any]]:
    about = json.dumps([asdict(column) for column in features.columns])
    return {"hidden": features.matrix, "columns": np.array(about)}


def _hidden(arrays: dict[str, NDArray[Any]]) -> Features:
    return Features(arrays["hidden"], read_columns(read_json(str(arrays["columns"]))))


def _compiled(configs: Configs | None, hidden: Features | None) -> dict[str, NDArray[Any]]:
    """Arrays of the programs that were compiled and not measured; empty if none are kept."""
    if configs is None or hidden is None:
        return {}
    about = _features(hidden)
    return {
        "compiled": configs,
        "compiled_hidden": about["hidden"],
        "compiled_columns": about["columns"],
    }


def _compiled_hidden(arrays: dict[str, NDArray[Any]]) -> Features | None:
    if "compiled" not in arrays:
        return None
    columns = read_columns(read_json(str(arrays["compiled_columns"])))
    return Features(arrays["compiled_hidden"], columns)


def _kept_programs(arrays: dict[str, NDArray[Any]], workload: Workload) -> Lowered | None:
    hidden = _compiled_hidden(arrays)
    if hidden is None:
        return None
    texts = np.full(len(hidden), "", dtype=object)
    return Lowered(workload, arrays["compiled"], texts, texts, hidden)


def _text(values: NDArray[np.object_] | tuple[str, ...]) -> NDArray[np.str_]:
    """As text that can be read back: without halves of characters, which a path may hold."""
    plain = [str(value).encode("utf-8", "replace").decode() for value in values]
    return np.array(plain, dtype=np.str_)
