"""Deletion of a run's files from its output directory.

The path of the directory comes from a record that somebody else may have written. Files are
therefore deleted only if they have a name that Tilewright uses. The directory must contain a run,
belong to the user, lie below a given root folder and not be reached through a symbolic link. If it
contains other files, the directory and these files are kept.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.search.ledger_import import LEDGERS
from tilewright.search.trial_store import BESIDE, RunInUse, StoreDamaged, TrialStore
from tilewright.tuning.output_dir import (
    CONVERGENCE,
    EXPLANATION,
    EXPLANATION_PICTURE,
    FUSION,
    FUSION_PAGE,
    OWNER,
    RUN,
    SCHEDULES,
    STORE,
    SUMMARY,
    TRIALS,
    identity_file,
)
from tilewright.tuning.run_metadata import read_run

_RESULTS = (
    SUMMARY, SCHEDULES, FUSION, FUSION_PAGE, TRIALS, CONVERGENCE, EXPLANATION, EXPLANATION_PICTURE,
    RUN,
)  # fmt: skip
"""Names of the files that belong to one run, in the order of deletion. The summary comes first,
because it marks a run as complete. `run.json` comes last, because it marks the directory as an
output directory of Tilewright."""
_STORES = (
    *(f"{name}{suffix}" for name in (STORE, f"damaged-{STORE}", OWNER) for suffix in BESIDE),
    *LEDGERS,
)
"""Names of the files that contain the trials of all runs of an output directory."""


class NotDeleted(TilewrightError):
    """The files of a run must not be deleted."""


@dataclass(frozen=True)
class DeletedOutput:
    """Result of deleting the files of a run.

    Attributes:
        files: names of the deleted files.
        left: names of the other files and folders. If there are any, the directory was kept.
    """

    files: tuple[str, ...]
    left: tuple[str, ...]


def check_deletable(folder: Path, root: Path) -> Path:
    """Check that the files of the run in an output directory may be deleted.

    Args:
        folder: the output directory.
        root: folder below which the directory must lie.

    Returns:
        The path of the directory relative to `root`.

    Raises:
        NotDeleted: the directory does not lie below `root`, is reached through a symbolic link,
            belongs to another user, or contains no run.
        RunInUse: a command is working on the directory.
        UnsafeFile: a file is not a plain file.
        TrialStoreError: the trials cannot be read.
        OSError: the directory cannot be read.
    """
    relative = _below(folder, root)
    with _opened(root, relative) as handle:
        if read_run(folder) is None:
            raise NotDeleted(f"{folder} holds no run of Tilewright; nothing there is deleted")
        if _is_plain(handle, STORE):
            with suppress(StoreDamaged), _stores(folder, own=False):
                pass
    return relative


def delete_output(folder: Path, root: Path, *, keep_trials: bool) -> DeletedOutput:
    """Delete the files of the run in an output directory, and the directory if it is then empty.

    If the trials are in a PostgreSQL database, they are deleted from it.

    Args:
        folder: the output directory.
        root: folder below which the directory must lie.
        keep_trials: whether to keep the trials, because other runs have used them too.

    Raises:
        NotDeleted: the files must not be deleted, as in `check_deletable`.
        RunInUse: a command is working on the directory.
        TrialStoreError: the trials cannot be read or written.
        UnsafeFile: a file is not a plain file.
        OSError: a file cannot be deleted.
    """
    relative = check_deletable(folder, root)
    deleted: list[str] = []
    with _opened(root, relative) as handle:
        with ExitStack() as owned:
            if _is_plain(handle, STORE):  # never follow a symbolic link
                with suppress(StoreDamaged):
                    stores = owned.enter_context(_stores(folder, own=True))
                    for store in () if keep_trials else stores:
                        store.clear()
            if keep_trials:
                return DeletedOutput(tuple(_unlink(handle, _RESULTS)), (STORE,))
            deleted += _unlink(handle, _RESULTS[:-1])
        deleted += _unlink(handle, (*_STORES, identity_file(folder).name, RUN))
        left = tuple(sorted(os.listdir(handle)))
    if not left:
        with _opened(root, relative.parent) as parent:
            os.rmdir(relative.name, dir_fd=parent)
    return DeletedOutput(tuple(deleted), left)


@contextmanager
def _stores(folder: Path, *, own: bool) -> Iterator[list[TrialStore]]:
    """Open the databases that contain the trials of an output directory.

    Args:
        folder: the output directory.
        own: whether to become the owner of the directory; if False, the databases are opened for
            reading only.

    Raises:
        RunInUse: a command is working on the directory.
    """
    with ExitStack() as stack:
        local = stack.enter_context(TrialStore(folder / STORE, own=own, read_only=not own))
        stores = [local]
        if local.version and (elsewhere := local.postgres_location()) is not None:
            stores.append(stack.enter_context(TrialStore(*elsewhere, own=own, read_only=not own)))
        for store in stores:
            holder = store.version and (
                (None if own else store.describe_owner()) or store.sharing()
            )
            if holder:
                raise RunInUse(f"{folder} is being written by {holder}; wait for it to end")
        yield stores


def _below(folder: Path, root: Path) -> Path:
    """Return the path of `folder` relative to `root`.

    Raises:
        NotDeleted: the folder lies outside of `root`, or is reached through a symbolic link.
    """
    try:
        place, limit = folder.resolve(strict=True), root.resolve(strict=True)
    except FileNotFoundError:
        raise NotDeleted(f"{folder} does not exist") from None
    except (OSError, RuntimeError, ValueError) as error:  # link to itself, zero byte in the path
        raise NotDeleted(f"{str(folder)!r} is not a folder: {error}") from None
    typed = Path(os.path.abspath(folder))
    for start in (limit, Path(os.path.abspath(root))):
        if typed.is_relative_to(start) and typed != start:
            relative = typed.relative_to(start)
            if limit / relative == place:
                return relative
            raise NotDeleted(
                f"{folder} is reached through a link; delete {place} by itself if it is a run"
            )
    raise NotDeleted(f"{folder} does not lie below {root}, so nothing there is deleted")


@contextmanager
def _opened(root: Path, relative: Path) -> Iterator[int]:
    """Open a directory below `root` and yield its file descriptor.

    No component of the relative path may be a symbolic link or belong to another user. Files that
    are deleted through the descriptor therefore lie in the directory that was checked.

    Raises:
        NotDeleted: a component is a symbolic link, is not a directory or belongs to another user.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with ExitStack() as stack:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, handle)
        for part in relative.parts:
            try:
                handle = os.open(part, flags, dir_fd=handle)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise NotDeleted(f"{root / relative} is reached through a link") from None
            stack.callback(os.close, handle)
            if (owner := os.fstat(handle).st_uid) != os.getuid():
                raise NotDeleted(
                    f"{root / relative} belongs to another user (id {owner}); nothing is deleted"
                )
        yield handle


def _is_plain(handle: int, name: str) -> bool:
    """Return whether a directory contains a regular file, not a symbolic link, with this name."""
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _unlink(handle: int, names: tuple[str, ...]) -> list[str]:
    """Delete files of a directory, and return the names of the files that existed.

    If a file is a symbolic link, the link is deleted, not its target. Folders are kept.
    """
    deleted = []
    for name in names:
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=handle)
            deleted.append(name)
    return deleted
