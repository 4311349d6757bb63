"""Reads plain files that anybody may have made, up to a limit. Nothing waits (a pipe would, for
ever).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.core.errors import TilewrightError

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
