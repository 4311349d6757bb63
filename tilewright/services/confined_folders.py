"""Opens files below a folder that requests write to: follows no link, changes own files only.

The path to the folder that a user names may have links. Below it none is followed, neither a
folder's nor a file's. Everything is opened relative to a descriptor of its folder, and checked
before a byte of it is read or written. Nothing waits (a pipe would, for ever).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.core.safe_files import UnsafeFile, naming

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def opened_folder(folder: Path, within: Path | None = None, *, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder. Links on the way to `within`, by default the folder itself, are
    followed; below it they are refused, and so is `..`. `make` makes what is missing. Raises
    `UnsafeFile` and `OSError`."""
    root = folder if within is None else within
    names = _names_below(folder, root)
    if make:
        root.mkdir(parents=True, exist_ok=True)
    handle = os.open(root, _FOLDER)
    try:
        place = root
        for name in names:
            place /= name
            below = _below(handle, place, make)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def open_to_read(path: Path, *, within: Path | None = None) -> int:
    """A descriptor of a plain file of any owner. Raises `UnsafeFile` if it is anything else,
    and `OSError`."""
    with opened_folder(path.parent, within) as folder, naming(path):
        _refuse_special(os.stat(path.name, dir_fd=folder, follow_symlinks=False), path)
        handle = _open(path, os.O_RDONLY, folder)
        if handle is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        try:
            _refuse_special(os.fstat(handle), path)
        except BaseException:
            os.close(handle)
            raise
        return handle


def create_beside(path: Path, folder: int) -> tuple[int, str]:
    """A descriptor of a new file in the folder of `path`, and its unforeseeable name."""
    name = f".{path.name[:40].lstrip('.')}.{secrets.token_hex(8)}.tmp"
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o644, dir_fd=folder), name


def check_own(path: Path, folder: int | None = None) -> bool:
    """Whether the file is there; `folder` is a descriptor of where it is. Raises `UnsafeFile` if it
    is not a plain file of this user's."""
    where = str(path) if folder is None else path.name
    try:
        found = os.stat(where, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    _refuse_foreign(found, path, folder)
    return True


# -- one file ----------------------------------------------------------------------------------


def _names_below(folder: Path, root: Path) -> tuple[str, ...]:
    names = folder.relative_to(root).parts if folder.is_relative_to(root) else (os.pardir,)
    if os.pardir in names:
        raise UnsafeFile(f"{folder} leads out of {root}; {_STEP}")
    return names


def _below(folder: int, place: Path, make: bool) -> int:
    with naming(place):
        if make:
            with suppress(FileExistsError):
                os.mkdir(place.name, dir_fd=folder)
        try:
            return os.open(place.name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
    found = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no folder")
    raise UnsafeFile(f"{place} is {kind}, where a folder is expected; {_STEP}")


def _open(path: Path, flags: int, folder: int) -> int | None:
    """None if it was removed meanwhile."""
    try:
        return os.open(path.name, flags | _PLAIN, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # it was exchanged meanwhile
            raise UnsafeFile(f"{path} is not a plain file; {_STEP}") from None
        raise


_STEP = "remove it, or choose another folder"


def _refuse_special(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "not a plain file")
        raise UnsafeFile(f"{path} is {kind}, where a file is expected; {_STEP}")


def _refuse_foreign(found: os.stat_result, path: Path, folder: int | None) -> None:
    _refuse_special(found, path)
    if found.st_uid != os.geteuid() and found.st_uid != _owner_in(path, folder):
        raise UnsafeFile(
            f"{path} belongs to another user (id {found.st_uid}); {_STEP}, or work as that user"
        )


def _owner_in(path: Path, folder: int | None) -> int | None:
    """Whose a file is that this process makes there: some disks give all files to one user."""
    if folder is None:
        with suppress(OSError), opened_folder(path.parent) as opened:
            return _owner_in(path, opened)
        return None
    try:
        handle, name = create_beside(path, folder)
    except OSError:
        return None
    try:
        return os.fstat(handle).st_uid
    finally:
        os.close(handle)
        os.unlink(name, dir_fd=folder)
