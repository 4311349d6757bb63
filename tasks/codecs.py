"""Codecs that convert the results of stages to bytes and back.

Arrays are encoded as NPZ, models in their native formats, and everything else as JSON.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import (
    Json,
    as_int,
    as_list,
    as_object,
    as_text,
    digest,
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
from tilewright.tuning.fusion_interface import Decided, FusionDecision
from tilewright.tuning.network import Extracted, Model
from tilewright.tuning.results import (
    Baselines,
    latency_from_json,
    latency_to_json,
    schedule_from_json,
    schedule_to_json,
)

T = TypeVar("T")

_SCORE, _COUNTER, _REPEATS = "score_", "counter_", "repeats"
_FAST = 1  # zlib level: programs shrink to a quarter, and hardly more at higher levels


@dataclass(frozen=True)
class Codec(Generic[T]):
    """Encoding of one type of results as bytes.

    Attributes:
        name: name of the codec, which is stored with the bytes.
        type: type of the results.
        encode: converts a result to bytes.
        decode: converts the bytes to a result.
    """

    name: str
    type: Any
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


def _json_codec(
    name: str, kind: Any, to_json: Callable[[T], Json], from_json: Callable[[Json], T]
) -> Codec[T]:
    """Return a codec that stores values as JSON. The order of keys is preserved.

    Args:
        name: name of the codec, which is stored with the bytes.
        kind: type of the values.
        to_json: function that converts a value to JSON.
        from_json: function that converts the JSON back to a value.
    """

    def encode(value: T) -> bytes:
        return json.dumps(to_json(value), separators=(",", ":"), allow_nan=False).encode()

    return Codec(name, kind, encode, lambda data: from_json(json.loads(data)))


def encode_candidates(candidates: Candidates) -> bytes:
    """Serialise a tuner's proposed configs as NPZ: the configs, and one array per score."""
    scores = {_SCORE + name: values for name, values in candidates.scores.items()}
    return pack_arrays(
        {"configs": candidates.configs, "vetoed": np.array(candidates.vetoed)} | scores
    )


def decode_candidates(data: bytes) -> Candidates:
    """Read candidates that `encode_candidates` serialised."""
    arrays = unpack_arrays(data)
    return Candidates(arrays["configs"], _arrays_with_prefix(arrays, _SCORE), int(arrays["vetoed"]))


def encode_batch(batch: Batch) -> bytes:
    """Serialise a batch of lowered configs as NPZ, so that another process can measure it.

    The programs are included. Results of measurements, the number of proposed candidates and the
    durations of the steps are not.
    """
    rows, kept = batch.rows, batch.unmeasured_compiled
    scores = {_SCORE + name: values for name, values in batch.scores.items()}
    return pack_arrays(
        {
            "workload": np.array(json.dumps(rows.workload.to_json())),
            "configs": rows.configs,
            "failures": _text(rows.failures),
            "reasons": _text(rows.reasons),
            "failed": batch.unmeasured_failed,
            "lowered": np.array(batch.unmeasured_count),
            "vetoed": np.array(batch.vetoed),
            "all_reasons": _text(batch.reasons),
        }
        | ({} if kept is None else _compiled_arrays(kept.configs, kept.hidden))
        | _features(rows.hidden)
        | write_programs(rows.programs)
        | scores,
        level=_FAST,
    )


def decode_batch(data: bytes) -> Batch:
    """Read a batch that `encode_batch` serialised."""
    arrays = unpack_arrays(data)
    return Batch(
        rows=Lowered(
            workload=Workload.from_json(as_object(read_json(str(arrays["workload"])))),
            configs=arrays["configs"],
            failures=arrays["failures"].astype(object),
            reasons=arrays["reasons"].astype(object),
            hidden=_hidden(arrays),
            programs=read_programs(arrays),
        ),
        scores=_arrays_with_prefix(arrays, _SCORE),
        unmeasured_failed=arrays["failed"],
        unmeasured_count=int(arrays["lowered"]),
        vetoed=int(arrays["vetoed"]),
        reasons=tuple(map(str, arrays["all_reasons"])),
        unmeasured_compiled=_kept_programs(arrays),
    )


def encode_measurements(measured: Measurements) -> bytes:
    """Serialise measurements as NPZ.

    The number of repeated timings (`repeats`) differs between trials, so they are stored as ragged
    arrays, in the same format as programs.
    """
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
    """Read measurements that `encode_measurements` serialised."""
    arrays = unpack_arrays(data)
    return Measurements(
        status=arrays["status"].astype(object),
        reason=arrays["reason"].astype(object),
        cycles=arrays["cycles"],
        seconds=arrays["seconds"],
        counters=_arrays_with_prefix(arrays, _COUNTER),
        repeats=read_programs(arrays).get(_REPEATS),
    )


def encode_history(history: History) -> bytes:
    """Serialise the trials of a workload as NPZ.

    The configs that other processes are measuring (`pending`) and the repeated timings (`repeats`)
    are written only if the history has them.
    """
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
        | _compiled_arrays(history.compiled, history.compiled_hidden)
        | ({} if history.pending is None else {"pending": history.pending})
        | write_programs({} if history.repeats is None else {_REPEATS: history.repeats})
    )


def decode_history(data: bytes) -> History:
    """Read a history that `encode_history` serialised."""
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
    """Serialise the state of a tuner as a ZIP of the files that `models.save_state` writes.

    The state consists of the tuner's models and arrays.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = save_state(state, Path(folder))
        return pack_files({path.name: path.read_bytes() for path in files})


def decode_state(data: bytes) -> ExplorerState:
    """Read a state that `encode_state` serialised.

    Raises:
        StoreError: the files are damaged.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, content in unpack_files(data).items():
            (Path(folder) / name).write_bytes(content)
        return load_state(Path(folder))


def _arrays_with_prefix(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _features(features: Features) -> dict[str, NDArray[Any]]:
    about = json.dumps([asdict(column) for column in features.columns])
    return {"hidden": features.matrix, "columns": np.array(about)}


def _hidden(arrays: dict[str, NDArray[Any]]) -> Features:
    return Features(arrays["hidden"], read_columns(read_json(str(arrays["columns"]))))


def _compiled_arrays(configs: Configs | None, hidden: Features | None) -> dict[str, NDArray[Any]]:
    """Return NPZ arrays of the configs that compiled but were not measured, and their features.

    The result is empty if the tuner does not keep such configs.

    Args:
        configs: knob indices, int array of shape (n, knobs); None if they were not kept.
        hidden: features of their compiled programs, n rows; None if they were not kept.
    """
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


def _kept_programs(arrays: dict[str, NDArray[Any]]) -> Lowered | None:
    hidden = _compiled_hidden(arrays)
    if hidden is None:
        return None
    workload = Workload.from_json(as_object(read_json(str(arrays["workload"]))))
    texts = np.full(len(hidden), "", dtype=object)
    return Lowered(workload, arrays["compiled"], texts, texts, hidden)


def _text(values: NDArray[np.object_] | tuple[str, ...]) -> NDArray[np.str_]:
    """Convert texts to a string array, with surrogate characters replaced by question marks.

    `unpack_arrays` rejects arrays that contain surrogate characters.
    """
    plain = [str(value).encode("utf-8", "replace").decode() for value in values]
    return np.array(plain, dtype=np.str_)


def _extracted_from_json(values: Json) -> Extracted:
    return Extracted.from_json(as_object(values))


def _model_to_json(model: Model) -> Json:
    return {"source": model.source, "name": model.name, "digest": model.digest}


def _model_from_json(values: Json) -> Model:
    row = as_object(values)
    return Model(*(as_text(row[name]) for name in ("source", "name", "digest")))


def _baselines_to_json(found: Baselines) -> Json:
    return {
        "schedule": None if found.baseline is None else schedule_to_json(found.baseline),
        "fallback": None if found.fallback is None else latency_to_json(found.fallback),
    }


def _baselines_from_json(values: Json) -> Baselines:
    row = as_object(values)
    baseline, fallback = row["schedule"], row["fallback"]
    return Baselines(
        None if baseline is None else schedule_from_json(as_object(baseline)),
        None if fallback is None else latency_from_json(as_object(fallback)),
    )


def _decided_to_json(decided: Decided) -> Json:
    return {"summary": cast(Json, decided.summary), "file": decided.file}


def _decided_from_json(values: Json) -> Decided:
    row = as_object(values)
    document = as_object(row["summary"])
    return Decided(
        {
            "mode": as_text(document["mode"]),
            "decisions": [
                _decision(as_object(decision)) for decision in as_list(document["decisions"])
            ],
            "cycles": {name: as_int(n) for name, n in as_object(document["cycles"]).items()},
            "dram_bytes": {
                name: as_int(n) for name, n in as_object(document["dram_bytes"]).items()
            },
            "evaluations": as_int(document["evaluations"]),
            "tuned": as_int(document["tuned"]),
        },
        as_object(row["file"]),
    )


def _decision(row: dict[str, Json]) -> FusionDecision:
    cycles, size = row["cycles_saved"], row["dram_bytes_saved"]
    return {
        "name": as_text(row["name"]),
        "kind": as_text(row["kind"]),
        "fused": row["fused"] is True,
        "cycles_saved": None if cycles is None else as_int(cycles),
        "dram_bytes_saved": None if size is None else as_int(size),
        "estimated": row["estimated"] is True,
    }


PICTURE: Codec[bytes] = Codec("picture", bytes, bytes, bytes)

CODECS: Mapping[str, Codec[Any]] = {
    codec.name: codec
    for codec in (
        Codec("candidates", Candidates, encode_candidates, decode_candidates),
        Codec("batch", Batch, encode_batch, decode_batch),
        Codec("measurements", Measurements, encode_measurements, decode_measurements),
        Codec("history", History, encode_history, decode_history),
        Codec("state", ExplorerState, encode_state, decode_state),
        PICTURE,
        _json_codec("model", Model, _model_to_json, _model_from_json),
        _json_codec("extracted", Extracted, Extracted.to_json, _extracted_from_json),
        _json_codec("baselines", Baselines, _baselines_to_json, _baselines_from_json),
        _json_codec("number", int | None, lambda number: number, lambda number: number),
        _json_codec("decided", Decided, _decided_to_json, _decided_from_json),
    )
}
"""All codecs by name. A stored result contains the name of its codec."""


def encode(value: object) -> tuple[Codec[Any], bytes]:
    """Encode a value with the codec for its type.

    Args:
        value: result of a stage, of any type in `CODECS`.

    Returns:
        The codec, and the encoded bytes.

    Raises:
        TypeError: no codec supports the value.
    """
    for codec in CODECS.values():
        if isinstance(value, codec.type):
            data = codec.encode(value)
            _RECENT.remember(value, digest(data))
            return codec, data
    raise TypeError(f"no codec for {type(value).__name__}")


def decode(name: str, data: bytes) -> Any:
    """Decode bytes that `encode` returned.

    Args:
        name: name of the codec that encoded the value.
        data: the encoded bytes.

    Returns:
        The value, of the codec's type.
    """
    content = digest(data)
    value = _RECENT.value(content)
    if value is None:
        value = CODECS[name].decode(data)
        _RECENT.remember(value, content)
    return value


def digest_of(value: object) -> str:
    """Return a digest of a value's encoded bytes."""
    return _RECENT.digest(value) or digest(encode(value)[1])


class _Recent:
    """Cache of values that were encoded or decoded recently, by the digests of their bytes.

    Thanks to the cache, the digest of such a value is known without encoding it again. Values are
    compared by identity.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, object] = OrderedDict()
        self._changing = threading.Lock()

    def remember(self, value: object, content: str) -> None:
        """Add a value to the cache, and drop the oldest value if the cache is full.

        Args:
            value: the value.
            content: digest of its bytes.
        """
        if value is None:
            return
        with self._changing:
            self._held[content] = value
            self._held.move_to_end(content)
            while len(self._held) > _KEPT:
                self._held.popitem(last=False)

    def value(self, content: str) -> object | None:
        """Return the value whose bytes have the given digest, or None if it is not cached."""
        with self._changing:
            return self._held.get(content)

    def digest(self, value: object) -> str | None:
        """Return the digest of a value's bytes, or None if this object is not cached."""
        with self._changing:
            return next((name for name, held in self._held.items() if held is value), None)


_KEPT = 64
_RECENT = _Recent()
