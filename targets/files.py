"""Files that are either complete or absent, and whose bytes depend on nothing but their content."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

JsonScalar: TypeAlias = bool | int | float | str | None
Json: TypeAlias = "JsonScalar | Sequence[Json] | Mapping[str, Json]"
"""A value of JSON. Written from lists, tuples and dicts; read as what `read_json` returns, through
`as_object`, `as_list` and their like."""

Arrays = Mapping[str, NDArray[np.generic]]
_EPOCH = (1980, 1, 1, 0, 0, 0)


def read_json(text: str | bytes) -> Json:
    """The value of a JSON text: objects are dicts, arrays lists. Raises `ValueError`."""
    value: Json = json.loads(text)
    return value


def as_object(value: Json) -> dict[str, Json]:
    """A value that must be an object. Raises `ValueError`, as all of these do."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is no JSON object")
    return value


def as_list(value: Json) -> list[Json]:
    """A value that must be an array."""
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.80} is no JSON array")
    return value


def as_text(value: Json) -> str:
    """A value that must be a text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")
    return value


def as_int(value: Json) -> int:
    """A value that must be a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r:.80} is no whole number")
    return value


def as_number(value: Json) -> float:
    """A value that must be a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{value!r:.80} is no number")
    return value


def canonical(value: Json) -> bytes:
    """The one JSON text of a value: keys sorted, no spaces. NaN and foreign types are refused."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    ).encode()


def digest(data: bytes) -> str:
    """SHA-256, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write beside the file, sync, then rename over it; after a crash the old file or the new.
    Without `sync` that holds for a killed process, not for a power failure. Raises `OSError`,
    which names the file also when the disk is full."""
    with replacing(path, sync=sync) as fresh:
        _write(fresh, data, sync)


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """A place beside the file to write to by whatever means; on leaving it takes the file's place,
    after an error it is gone. `sync` makes the new name last, too. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # several threads may write the same content under the same name
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    try:
        yield fresh
        os.replace(fresh, path)
        if sync:
            sync_folder(path.parent)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
        fresh.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last. Raises `OSError`."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def pack_files(files: Mapping[str, bytes], *, level: int = 0) -> bytes:
    """A ZIP file with fixed time stamps, compressed from level 1 (fast) to 9."""
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], kind, level or None)
    return buffer.getvalue()


def pack_arrays(arrays: Arrays, *, level: int = 0) -> bytes:
    """An NPZ file of arrays of any shape, but none of objects, with fixed time stamps; `level` as
    in `pack_files`."""
    return pack_files({f"{name}.npy": _npy(array) for name, array in arrays.items()}, level=level)


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file by name, of any shape. Raises `ValueError` for one of objects."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _write(path: Path, data: bytes, sync: bool) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def _npy(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()
