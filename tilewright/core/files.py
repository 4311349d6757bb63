"""Files: read safely, written whole or not at all, with bytes that depend on content alone.

Files that anybody may have made are read only if they are plain files, up to a limit. Nothing waits
(a pipe would, for ever). JSON is read strictly; ZIP and NPZ files are packed with fixed time
stamps.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from tilewright.core.errors import TilewrightError
from tilewright.core.lazy_module import lazy_module

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy_module("numpy")


LARGEST = 2 << 30
"""Bytes that are read of a file."""
_CHUNK = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
JsonScalar: TypeAlias = bool | int | float | str | None
Json: TypeAlias = "JsonScalar | Sequence[Json] | Mapping[str, Json]"
"""A value of JSON. Written from lists, tuples and dicts; read as what `read_json` returns, through
`as_object`, `as_list` and their like."""
Arrays: TypeAlias = "Mapping[str, NDArray[np.generic]]"
MAX_UNPACKED_BYTES = 1 << 30
MAX_JSON_BYTES = 1 << 25
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""A surrogate, which may lack its other half."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


class UnsafeFile(TilewrightError):
    """Something else than a plain file where a file is expected, or a file that is too large."""


def read_plain(path: Path, *, limit: int = LARGEST) -> bytes:
    """Return all of a plain file. Raises `UnsafeFile` if it is anything else, or larger than
    `limit` bytes, and `OSError`."""
    handle = open_to_read(path)
    try:
        size = os.fstat(handle).st_size
        # In one piece: pieces that are joined take twice the memory.
        data = os.read(handle, size + 1) if size <= limit else b""
        while 0 < len(data) <= limit and len(data) != size:  # 2 GiB at once, or it grows
            if not (more := os.read(handle, max(size - len(data), 0) + _CHUNK)):
                break
            data += more
    finally:
        os.close(handle)
    if max(size, len(data)) > limit:
        raise UnsafeFile(f"{path} is larger than {limit} bytes, more than is read; move it away")
    return data


def open_to_read(path: Path) -> int:
    """Return a descriptor of a plain file. Raises `UnsafeFile` if it is anything else, and
    `OSError`."""
    _refuse_special(os.stat(path), path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _refuse_special(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_own(path: Path, flags: int) -> int:
    """Return a descriptor of a file that is written in place, made if it is missing, as is its
    folder; `flags` as of `os.open`. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let every `OSError` from within name this file, also those of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _refuse_special(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "not a plain file")
        raise UnsafeFile(
            f"{path} is {kind}, where a file is expected; remove it, or choose another folder"
        )


class FileChanged(TilewrightError):
    """A file that somebody else wrote to meanwhile."""


def read_json(text: str | bytes) -> Json:
    """The value of a JSON text: objects are dicts, arrays lists; numbers are finite, whole ones
    have at most 64 bits, and texts hold characters alone. Raises `ValueError`."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value: Json = json.loads(
            text, parse_constant=_finite, parse_float=_finite, parse_int=_whole
        )
        if _HALF_CHARACTER.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.20} is not a number that is stored")
    return value


def _whole(text: str) -> int:
    if not -(1 << 63) <= (value := int(text)) < 1 << 64:
        raise ValueError(f"{text:.20}… has more than 64 bits")
    return value


def read_json_file(path: Path) -> Json:
    """The value of a JSON file of at most `MAX_JSON_BYTES`: as Python's objects it takes twenty
    times as much. Raises `ValueError`, `UnsafeFile` and `OSError`."""
    return read_json(read_plain(path, limit=MAX_JSON_BYTES))


def _shown(value: Json) -> str:
    """Of a list or an object its kind: it may be large or deep."""
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    return f"{value!r:.80}"


def as_object(value: Json) -> dict[str, Json]:
    """A value that must be an object. Raises `ValueError`, as all of these do."""
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is not a JSON object")
    return value


def as_list(value: Json) -> list[Json]:
    """A value that must be an array."""
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)} is not a JSON array")
    return value


def as_text(value: Json) -> str:
    """A value that must be a text."""
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not text")
    return value


def as_int(value: Json) -> int:
    """A value that must be a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not a whole number")
    return value


def as_number(value: Json) -> float:
    """A value that must be a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not a number")
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
    """Write a file so that after a crash there is the old file or the new one.

    The data go to a new file beside it, which is synced and renamed.

    Args:
        path: file to write; its folder is made if it is missing.
        data: the whole content.
        sync: whether the file also survives a power failure; without it, a killed process.

    Raises:
        OSError: names `path`, also when the disk is full.
    """
    fresh = path.with_name(f".{path.name[:40].lstrip('.')}.{secrets.token_hex(8)}.tmp")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                _write(handle, data)
                if sync:
                    os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        if sync:
            sync_folder(path.parent)


@contextmanager
def providing(path: Path) -> Iterator[Path]:
    """A place to write to by whatever means; on leaving, what is there becomes the file, unless
    another process was faster: its file stays. After an error nothing does. Raises `OSError`."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / path.name
        yield fresh
        path.parent.mkdir(parents=True, exist_ok=True)
        turn = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a disk without locks
                fcntl.flock(turn, fcntl.LOCK_EX)
            if not path.exists():
                write_atomically(path, fresh.read_bytes(), sync=False)
        finally:
            os.close(turn)


def append(path: Path, data: bytes, *, length: int | None = None) -> int:
    """Add to the end of a file, synced; returns its new length. After an error it has the old one.
    `length` is the one it must have now. Raises `FileChanged` if it has another, and `OSError`."""
    handle = open_own(path, os.O_RDWR | os.O_APPEND)
    try:
        with naming(path):
            before = os.fstat(handle).st_size
            if length is not None and length != before:
                raise FileChanged(f"{path} was changed by somebody else")
            try:
                _write(handle, data)
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, before)
                raise
    finally:
        os.close(handle)
    if before == 0:
        sync_folder(path.parent)
    return before + len(data)


def remove(path: Path) -> None:
    """Remove a file; there may be none. Raises `OSError`."""
    with naming(path):
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last. Raises `OSError`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
    """An NPZ file of arrays of any shape, but none of objects other than text, with fixed time
    stamps; `level` as in `pack_files`."""
    return pack_files({f"{name}.npy": _npy(array) for name, array in arrays.items()}, level=level)


def unpack_files(data: bytes) -> dict[str, bytes]:
    """What `pack_files` packed. Raises `ValueError` for anything else, and for more than
    `MAX_UNPACKED_BYTES`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return {entry.filename: packed.read(entry) for entry in _entries(packed)}
    except Exception as error:  # ZIP and zlib fail in ways of their own
        raise ValueError(f"no ZIP file: {error}") from None


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file by name, of any shape. Raises `ValueError` for one of objects, for
    other files, and for more than `MAX_UNPACKED_BYTES`."""
    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            for entry in _entries(packed):
                with packed.open(entry) as file:
                    arrays[entry.filename.removesuffix(".npy")] = _unpacked(file, entry.file_size)
    except Exception as error:  # ZIP, zlib and NPY each fail in ways of their own
        raise ValueError(f"no arrays: {error}") from None
    if not all(map(_is_text, arrays.values())):
        raise ValueError("no arrays: text of no code point")
    return arrays


def _entries(packed: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The files in a ZIP file. Raises `ValueError` if they are too large together."""
    entries = packed.infolist()
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise ValueError(f"more than {MAX_UNPACKED_BYTES >> 30} GiB once it is unpacked")
    return entries


def _unpacked(file: IO[bytes], size: int) -> NDArray[Any]:
    """The array of an NPY file of so many bytes, and no memory for more than these. Raises
    `ValueError`."""
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0,
    }[version]  # fmt: skip
    shape, by_columns, dtype = read_header(file)
    count, left = math.prod(shape), size - file.tell()
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which only pickle reads")
    if min(shape, default=0) < 0 or count * dtype.itemsize != left:
        raise ValueError(f"an array of {shape} {dtype} in {left} bytes")
    if count and not left:
        raise ValueError(f"an array of {shape} values without a size")
    flat = np.empty(count, dtype)
    room = flat.view(np.uint8).data if left else memoryview(b"")
    while room and (got := file.readinto(room)):  # type: ignore[attr-defined]
        room = room[got:]
    if room or file.read(1):  # to its end, where the checksum is compared
        raise ValueError("an array is cut")
    return flat.reshape(shape, order="F" if by_columns else "C")


def _is_text(array: NDArray[Any]) -> bool:
    """Whether all characters of an array of text are some; other arrays have none."""
    if array.dtype.kind != "U" or not array.dtype.itemsize:
        return True
    codes = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    return bool(((codes < 0xD800) | ((codes > 0xDFFF) & (codes <= 0x10FFFF))).all())


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    array = np.asarray(array)
    if array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat):
        array = array.astype(str)
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()
