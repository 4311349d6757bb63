"""Manages the secret of a workspace. The first command that starts a server there makes it, in a
file that only its user can read.

A folder from a stranger may bring such a file, which the stranger knows. A second file, the seal,
therefore says when and where the first was made, which cannot be arranged from outside. A secret
that was unpacked or copied is replaced by a new one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.services.workspace import Workspace, WorkspaceError

SECRET_BYTES = 32
OWN_ONLY, OTHERS = 0o600, 0o077
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")
_LONGEST = 4096
_REMEDY = (
    "remove it and repeat the command, which makes a new one (a 'tilewright ui' that is running "
    "then has to be started anew, too)"
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SecretError(TilewrightError):
    """A file of a secret that others may know."""


def secret_path(workspace: Workspace) -> Path:
    """Where it is kept."""
    return workspace.root / "secret"


def workspace_secret(workspace: Workspace) -> str:
    """The secret of this workspace, made now if there is none: 64 hex digits. Raises `SecretError`
    for a file that others made or can read, or that is no plain file, and `WorkspaceError`;
    `OSError` where the disk is full."""
    path = secret_path(workspace)
    try:
        with held_alone(workspace.root):
            return _sealed(path) or _made(path)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise WorkspaceError(
            f"cannot keep a secret in {path}: {error.strerror or error}; remove what is there, "
            "or set TILEWRIGHT_HOME to a folder you can write"
        ) from None


@contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """While no other command makes or changes a secret there: two that start at once are to know
    the same."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sealed(path: Path) -> str | None:
    """What the file holds, if it was made here."""
    found, seal = read_private(path, _REMEDY), read_private(_seal_path(path), _REMEDY)
    if found is None or seal is None:
        return None
    (secret, state), (text, _) = found, seal
    return secret if text == _seal(state) and _SECRET.fullmatch(secret) else None


def _made(path: Path) -> str:
    secret = secrets.token_hex(SECRET_BYTES)
    write_private(_seal_path(path), _seal(write_private(path, secret)))
    return secret


def _seal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _seal(state: os.stat_result) -> str:
    """The change time is the system's alone to set."""
    return f"{state.st_dev} {state.st_ino} {state.st_ctime_ns}"


def read_private(
    path: Path, remedy: str, limit: int = _LONGEST
) -> tuple[str, os.stat_result] | None:
    """Text, at most `limit` bytes of it, and state of a file, if there is one. Raises
    `SecretError`, which ends with the `remedy`, for what others may know, and `OSError`."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unfit(path, (error.strerror or str(error)).lower(), remedy) from None
    try:
        state = os.fstat(handle)
        if reason := _reason_for_doubt(state):
            raise _unfit(path, reason, remedy)
        return os.read(handle, limit).decode(errors="replace"), state
    finally:
        os.close(handle)


def _reason_for_doubt(state: os.stat_result) -> str:
    if not stat.S_ISREG(state.st_mode):
        return "it is not a plain file"
    if state.st_uid != os.geteuid():
        return "it belongs to another user"
    if state.st_mode & OTHERS:
        return "others may read or write it"
    if state.st_nlink > 1:
        return "it has a second name"
    return ""


def _unfit(path: Path, reason: str, remedy: str) -> SecretError:
    return SecretError(f"{path} is not fit for a secret: {reason}; {remedy}")


def write_private(path: Path, text: str) -> os.stat_result:
    """Whole or not at all, for its user alone. Returns the state of the file in its place."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, OWN_ONLY)
    try:
        os.fchmod(handle, OWN_ONLY)  # whatever the umask
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
