"""Functions that read and write files safely and reproducibly.

Reading: a file of unknown origin is read only if it is a regular file and not larger than a limit.
A pipe, for example, is refused, because reading it could block forever. JSON is parsed strictly.

Writing: files are written atomically. ZIP and NPZ files get fixed time stamps, so that equal
contents give equal bytes.
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
"""Maximum size in bytes of a file that `read_plain` reads by default."""
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
"""A JSON value. Lists, tuples and dicts can be written. `read_json` returns lists and dicts;
`as_object`, `as_list` and similar functions check their types."""
Arrays: TypeAlias = "Mapping[str, NDArray[np.generic]]"
MAX_UNPACKED_BYTES = 1 << 30
MAX_JSON_BYTES = 1 << 25  # parsed Python objects take about twenty times as much memory
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""Matches the JSON escape sequence of a UTF-16 surrogate. Its other half may be missing."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time stamp that ZIP can store


class UnsafeFile(TilewrightError):
    """A path is not a regular file, or the file is too large."""


def read_plain(path: Path, *, limit: int = LARGEST) -> bytes:
    """Read a whole regular file.

    Args:
        path: the file to read.
        limit: maximum size in bytes.

    Returns:
        The content of the file.

    Raises:
        UnsafeFile: the path is not a regular file, or the file is larger than `limit`.
        OSError: the file cannot be read.
    """
    handle = open_to_read(path)
    try:
        size = os.fstat(handle).st_size
        # Read all bytes at once: joining pieces would need twice the memory.
        data = os.read(handle, size + 1) if size <= limit else b""
        # One read returns at most 2 GiB, and the file may grow meanwhile.
        while 0 < len(data) <= limit and len(data) != size:
            if not (more := os.read(handle, max(size - len(data), 0) + _CHUNK)):
                break
            data += more
    finally:
        os.close(handle)
    if max(size, len(data)) > limit:
        raise UnsafeFile(f"{path} is larger than the limit of {limit} bytes; move the file away")
    return data


def open_to_read(path: Path) -> int:
    """Open a regular file for reading and return its file descriptor.

    Raises:
        UnsafeFile: the path is not a regular file.
        OSError: the file cannot be opened.
    """
    _refuse_special(os.stat(path), path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _refuse_special(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_own(path: Path, flags: int) -> int:
    """Open a file that will be modified in place, and return its file descriptor.

    The file and its folder are created if they are missing.

    Args:
        path: the file to open.
        flags: flags for `os.open`, such as `os.O_RDWR`.

    Raises:
        OSError: the file cannot be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add a file name to every `OSError` that is raised within the context.

    The operating system names no file in some errors, for example if the disk is full.

    Args:
        path: the file to name.
    """
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _refuse_special(result: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(result.st_mode):
        kind = _KINDS.get(stat.S_IFMT(result.st_mode), "not a regular file")
        raise UnsafeFile(
            f"{path} is {kind}, but a file is expected; remove it, or choose another folder"
        )


class FileChanged(TilewrightError):
    """A file that is to be extended was changed by another process."""


def read_json(text: str | bytes) -> Json:
    """Parse a JSON text strictly.

    Args:
        text: the JSON text. Bytes may be encoded in UTF-8, UTF-16 or UTF-32.

    Returns:
        The value. Objects become dicts, and arrays become lists.

    Raises:
        ValueError: the text is not valid JSON, a number is not finite, an integer does not fit into
            64 bits, a string contains an unpaired surrogate, or the nesting is too deep.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value: Json = json.loads(
            text, parse_constant=_finite, parse_float=_finite, parse_int=_parse_integer
        )
        if _HALF_CHARACTER.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.20} is not a finite number")
    return value


def _parse_integer(text: str) -> int:
    if not -(1 << 63) <= (value := int(text)) < 1 << 64:
        raise ValueError(f"{text:.20}… does not fit into 64 bits")
    return value


def read_json_file(path: Path) -> Json:
    """Read and parse a JSON file of at most `MAX_JSON_BYTES`.

    The limit is low because the parsed Python objects take about twenty times as much memory as the
    file.

    Raises:
        ValueError: the content is not valid JSON, see `read_json`.
        UnsafeFile: the path is not a regular file, or the file is too large.
        OSError: the file cannot be read.
    """
    return read_json(read_plain(path, limit=MAX_JSON_BYTES))


def _value_text(value: Json) -> str:
    """Return a JSON value for an error message. For a list or an object, return only its type."""
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    return f"{value!r:.80}"


def as_object(value: Json) -> dict[str, Json]:
    """Return a JSON value that must be an object. Raise `ValueError` otherwise."""
    if not isinstance(value, dict):
        raise ValueError(f"{_value_text(value)} is not a JSON object")
    return value


def as_list(value: Json) -> list[Json]:
    """Return a JSON value that must be an array. Raise `ValueError` otherwise."""
    if not isinstance(value, list):
        raise ValueError(f"{_value_text(value)} is not a JSON array")
    return value


def as_text(value: Json) -> str:
    """Return a JSON value that must be a string. Raise `ValueError` otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{_value_text(value)} is not text")
    return value


def as_int(value: Json) -> int:
    """Return a JSON value that must be an integer. Raise `ValueError` otherwise."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{_value_text(value)} is not an integer")
    return value


def as_number(value: Json) -> float:
    """Return a JSON value that must be a number. Raise `ValueError` otherwise."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{_value_text(value)} is not a number")
    return value


def canonical(value: Json) -> bytes:
    """Serialise a value as canonical JSON: sorted keys, no spaces, UTF-8.

    Equal values give equal bytes.

    Args:
        value: the value to serialise.

    Raises:
        ValueError: a number is NaN or infinite.
        TypeError: the value contains a type that does not exist in JSON.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    ).encode()


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of data as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file atomically. After a crash, the file has either its old or its new content.

    The data are written to a temporary file in the same folder, which is then renamed to `path`.

    Args:
        path: file to write. Its folder is created if it is missing.
        data: the whole content.
        sync: flush the file to the disk, so that it survives a power failure. Without `sync`, the
            file survives the end of the process, but not necessarily a power failure.

    Raises:
        OSError: the file cannot be written. The error names `path`, even if the disk is full.
    """
    fresh = path.with_name(f".{path.name[:40].lstrip('.')}.{secrets.token_hex(8)}.tmp")
    with name_in_errors(path):
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
    """Create a file, unless another process creates it first.

    The context yields a temporary path, to which the caller writes the content. If the context ends
    without an error, the temporary file becomes `path`. If `path` exists by then, the existing file
    is kept.

    Args:
        path: the file to create. Its folder is created if it is missing.

    Raises:
        OSError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / path.name
        yield fresh
        path.parent.mkdir(parents=True, exist_ok=True)
        turn = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # the file system may not support locks
                fcntl.flock(turn, fcntl.LOCK_EX)
            if not path.exists():
                write_atomically(path, fresh.read_bytes(), sync=False)
        finally:
            os.close(turn)


def append(path: Path, data: bytes, *, length: int | None = None) -> int:
    """Append data to a file and flush it to the disk. If this fails, restore the old length.

    Args:
        path: file to extend. It is created if it is missing.
        data: bytes to append.
        length: length in bytes that the file must have before; None to skip this check.

    Returns:
        The new length in bytes.

    Raises:
        FileChanged: the length of the file differs from `length`.
        OSError: the file cannot be written.
    """
    handle = open_own(path, os.O_RDWR | os.O_APPEND)
    try:
        with name_in_errors(path):
            before = os.fstat(handle).st_size
            if length is not None and length != before:
                raise FileChanged(f"{path} was changed by another program")
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
    """Remove a file if it exists. Raise `OSError` if that fails."""
    with name_in_errors(path):
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that new file names survive a power failure.

    Raises:
        OSError: the folder cannot be opened or flushed.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def pack_files(files: Mapping[str, bytes], *, level: int = 0) -> bytes:
    """Return the bytes of a ZIP file with fixed time stamps.

    Args:
        files: content of each file, by name.
        level: compression level from 1 (fast) to 9 (small); 0 stores the files uncompressed.
    """
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], kind, level or None)
    return buffer.getvalue()


def pack_arrays(arrays: Arrays, *, level: int = 0) -> bytes:
    """Return the bytes of an NPZ file with fixed time stamps.

    Args:
        arrays: arrays of any shape, by name. Arrays with dtype `object` may contain only strings.
        level: compression level, as in `pack_files`.
    """
    return pack_files({f"{name}.npy": _npy(array) for name, array in arrays.items()}, level=level)


def unpack_files(data: bytes) -> dict[str, bytes]:
    """Return the content of each file in a ZIP file, by name.

    Args:
        data: the bytes of the ZIP file.

    Raises:
        ValueError: the data are not a ZIP file, or the unpacked files have more than
            `MAX_UNPACKED_BYTES`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return {entry.filename: packed.read(entry) for entry in _entries(packed)}
    except Exception as error:  # zipfile and zlib raise many types
        raise ValueError(f"not a ZIP file: {error}") from None


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in an NPZ file, by name. The arrays may have any shape and dtype.

    Args:
        data: the bytes of the NPZ file.

    Raises:
        ValueError: the data are not an NPZ file, contain pickled objects or invalid Unicode, or
            have more than `MAX_UNPACKED_BYTES` when unpacked.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            for entry in _entries(packed):
                with packed.open(entry) as file:
                    arrays[entry.filename.removesuffix(".npy")] = _unpack_array(
                        file, entry.file_size
                    )
    except Exception as error:  # zipfile, zlib and numpy raise many types
        raise ValueError(f"not a file of arrays: {error}") from None
    if not all(map(_is_text, arrays.values())):
        raise ValueError("not a file of arrays: a name contains an invalid code point")
    return arrays


def _entries(packed: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """List the files in a ZIP file. Raise `ValueError` if the unpacked files are too large."""
    entries = packed.infolist()
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise ValueError(f"it would take more than {MAX_UNPACKED_BYTES >> 30} GiB when unpacked")
    return entries


def _unpack_array(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read the array in an NPY file.

    The header is compared with the file size before memory is allocated. A damaged file can
    therefore not exhaust the memory.

    Args:
        file: the NPY file, open for reading.
        size: size of the file in bytes.

    Raises:
        ValueError: the file is damaged or contains Python objects.
    """
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0,
    }[version]  # fmt: skip
    shape, by_columns, dtype = read_header(file)
    count, left = math.prod(shape), size - file.tell()
    if dtype.hasobject:
        raise ValueError(
            "it contains an array of Python objects, which could only be read with pickle"
        )
    if min(shape, default=0) < 0 or count * dtype.itemsize != left:
        raise ValueError(
            f"an array of shape {shape} and type {dtype} does not fit into {left} bytes"
        )
    if count and not left:
        raise ValueError(f"an array of shape {shape} has elements of size zero")
    flat = np.empty(count, dtype)
    room = flat.view(np.uint8).data if left else memoryview(b"")
    while room and (got := file.readinto(room)):  # type: ignore[attr-defined]
        room = room[got:]
    if room or file.read(1):  # zipfile compares the checksum at the end
        raise ValueError("an array is truncated")
    return flat.reshape(shape, order="F" if by_columns else "C")


def _is_text(array: NDArray[Any]) -> bool:
    """Return whether a string array contains only valid code points. True for all other dtypes."""
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
    if array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()
