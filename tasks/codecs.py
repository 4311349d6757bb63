"""What passes between stages as bytes: arrays as NPZ, learned models in native formats."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import load_state, save_state
from search import Batch, Candidates, ExplorerState, History
from targets.base import Measurements, Target
from targets.files import pack_arrays, pack_files, unpack_arrays
from targets.workload import Workload

_SCORE, _COUNTER = "score_", "counter_"


def encode_candidates(candidates: Candidates) -> bytes:
    scores = {_SCORE + name: values for name, values in candidates.scores.items()}
    return pack_arrays(
        {"configs": candidates.configs, "vetoed": np.array(candidates.vetoed)} | scores
    )


def decode_candidates(data: bytes) -> Candidates:
    arrays = unpack_arrays(data)
    return Candidates(arrays["configs"], _named(arrays, _SCORE), int(arrays["vetoed"]))


def encode_batch(batch: Batch) -> bytes:
    """Programs are not kept: they follow from the configs."""
    scores = {_SCORE + name: values for name, values in batch.scores.items()}
    return pack_arrays(
        {
            "configs": batch.rows.configs,
            "failed": batch.failed,
            "lowered": np.array(batch.lowered),
        }
        | scores
    )


def decode_batch(data: bytes, target: Target, workload: Workload) -> Batch:
    arrays = unpack_arrays(data)
    return Batch(
        rows=target.lower(workload, arrays["configs"]),
        scores=_named(arrays, _SCORE),
        failed=arrays["failed"],
        lowered=int(arrays["lowered"]),
    )


def encode_measurements(measured: Measurements) -> bytes:
    counters = {_COUNTER + name: values for name, values in measured.counters.items()}
    return pack_arrays(
        {
            "status": _text(measured.status),
            "reason": _text(measured.reason),
            "cycles": measured.cycles,
            "seconds": measured.seconds,
        }
        | counters
    )


def decode_measurements(data: bytes) -> Measurements:
    arrays = unpack_arrays(data)
    return Measurements(
        status=arrays["status"].astype(object),
        reason=arrays["reason"].astype(object),
        cycles=arrays["cycles"],
        seconds=arrays["seconds"],
        counters=_named(arrays, _COUNTER),
    )


def encode_history(history: History) -> bytes:
    return pack_arrays(
        {
            "configs": history.configs,
            "status": _text(history.status),
            "cycles": history.cycles,
            "rounds": history.rounds,
            "hidden": history.hidden,
            "hidden_names": _text(history.hidden_names),
            "failed": history.failed,
            "round": np.array(history.round),
        }
    )


def decode_history(data: bytes) -> History:
    arrays = unpack_arrays(data)
    return History(
        configs=arrays["configs"],
        status=arrays["status"].astype(object),
        cycles=arrays["cycles"],
        rounds=arrays["rounds"],
        hidden=arrays["hidden"],
        hidden_names=tuple(str(name) for name in arrays["hidden_names"]),
        failed=arrays["failed"],
        round=int(arrays["round"]),
    )


def encode_state(state: ExplorerState) -> bytes:
    """A ZIP of the files that `models.save_memory` writes."""
    with tempfile.TemporaryDirectory() as folder:
        files = save_state(state, Path(folder))
        return pack_files({path.name: path.read_bytes() for path in files})


def decode_state(data: bytes) -> ExplorerState:
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                (Path(folder) / Path(name).name).write_bytes(archive.read(name))
        return load_state(Path(folder))


def _named(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _text(values: NDArray[np.object_] | tuple[str, ...]) -> NDArray[np.str_]:
    return np.array([str(value) for value in values], dtype=np.str_)
