"""Private files, which only their owner can read, and secrets stored in such files.

A folder from a stranger may contain a file whose secret the stranger knows. A second file, the
seal, therefore records the inode number and the change time of the secret's file. Unpacking or
copying a file changes both, so a secret that came from elsewhere does not match its seal and is not
accepted.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.core.errors import TilewrightError

SECRET_BYTES = 32
OWN_ONLY, OTHERS = 0o600, 0o077
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")
_LONGEST = 4096


class SecretError(TilewrightError):
    """A file with a secret is not private, so that other users may know the secret."""


def find_secret(path: Path, remedy: str) -> str | None:
    """Return the secret in a file, if this program created the file at this path.

    Args:
        path: file with the secret.
        remedy: instruction to the user about an unsafe file. It becomes the end of the error
            message.

    Returns:
        The secret, 64 hexadecimal digits. None if there is no secret, or if the file was edited,
        copied or unpacked.

    Raises:
        SecretError: another user owns or can read the file, or it is not a regular file.
        OSError: the folder is missing, or the file cannot be read.
    """
    with held_alone(path.parent):
        return _find(path, remedy)


def provide_secret(path: Path, remedy: str) -> str:
    """Return the secret in a file. Create the file with a new secret if it has no valid one.

    Args:
        path: file with the secret; its folder must exist.
        remedy: instruction to the user about an unsafe file. It becomes the end of the error
            message.

    Returns:
        The secret, 64 hexadecimal digits.

    Raises:
        SecretError: another user owns or can read the file, or it is not a regular file.
        OSError: the folder is missing, or the file cannot be read or written.
    """
    with held_alone(path.parent):
        return _find(path, remedy) or _make(path)


@contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """Lock a folder, so that no other command creates or changes a secret in it.

    Two commands that start at the same time therefore get the same secret.

    Args:
        folder: the folder to lock; it must exist.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # the file system may not support locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _find(path: Path, remedy: str) -> str | None:
    stored, seal = read_private(path, remedy), read_private(_seal_path(path), remedy)
    if stored is None or seal is None:
        return None
    (secret, state), (text, _) = stored, seal
    return secret if text == _seal(state) and _SECRET.fullmatch(secret) else None


def _make(path: Path) -> str:
    secret = secrets.token_hex(SECRET_BYTES)
    write_private(_seal_path(path), _seal(write_private(path, secret)))
    return secret


def _seal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _seal(state: os.stat_result) -> str:
    # Only the kernel can set the change time. The device number is left out, because it may change
    # when the machine is rebooted.
    return f"{state.st_ino} {state.st_ctime_ns}"


def read_private(
    path: Path, remedy: str, limit: int = _LONGEST
) -> tuple[str, os.stat_result] | None:
    """Return the text and the file status of a private file, or None if the file does not exist.

    Args:
        path: the file to read.
        remedy: instruction to the user about an unsafe file. It becomes the end of the error
            message.
        limit: maximum number of bytes to read.

    Raises:
        SecretError: other users may know the content of the file.
        OSError: the file cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unfit_error(path, (error.strerror or str(error)).lower(), remedy) from None
    try:
        state = os.fstat(handle)
        if reason := _reason_for_doubt(state):
            raise _unfit_error(path, reason, remedy)
        return os.read(handle, limit).decode(errors="replace"), state
    finally:
        os.close(handle)


def _reason_for_doubt(state: os.stat_result) -> str:
    if not stat.S_ISREG(state.st_mode):
        return "it is not a regular file"
    if state.st_uid != os.geteuid():
        return "it belongs to another user"
    if state.st_mode & OTHERS:
        return "other users may read or write it"
    if state.st_nlink > 1:
        return "it has a second hard link"
    return ""


def _unfit_error(path: Path, reason: str, remedy: str) -> SecretError:
    return SecretError(f"{path} cannot be used for a secret: {reason}; {remedy}")


def write_private(path: Path, text: str) -> os.stat_result:
    """Write a file atomically, so that only its owner can read it. Return its file status."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, OWN_ONLY)
    try:
        os.fchmod(handle, OWN_ONLY)  # independent of the umask
        left = text.encode()
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
        os.replace(fresh, path)
        return os.fstat(handle)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
