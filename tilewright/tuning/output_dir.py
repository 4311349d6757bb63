"""Names of the files of an output directory, and checks that the directory can be used.

run.json          identifies the run, and lists the layers of each workload (`tuning.run_metadata`)
summary.json      latencies of every workload: without tuning, tuned, and lower bounds
schedules.json    the chosen schedule of every workload; equal runs write identical files
fusion.json       decisions about fusion with their schedules, if `--fusion` was given
trials.parquet    one row per trial
convergence.png   best latency over trials, if it was drawn
explain.html      what the models learned, with explain.png, if `tilewright explain` was called
trials.sqlite     the trials, from which the run is resumed (`search.trial_store`)
.tune             ID of the directory, which stays the same when the directory is moved
"""

from __future__ import annotations

import json
import stat
import tempfile
import uuid
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.files import (
    as_object,
    as_text,
    read_json,
    read_plain,
    remove,
    write_atomically,
)
from tilewright.search.ledger_import import LEDGERS
from tilewright.search.trial_store import (
    FILE,
    RunInUse,
    TrialStoreError,
    read_store,
)

RUN = "run.json"
SUMMARY = "summary.json"
SCHEDULES = "schedules.json"
FUSION = "fusion.json"
FUSION_PAGE = "fusion.html"
TRIALS = "trials.parquet"
CONVERGENCE = "convergence.png"
EXPLANATION, EXPLANATION_PICTURE = "explain.html", "explain.png"
STORE = FILE
OWNER = ".owner.sqlite"
"""Name of the file that records the owner (the command that is writing) of an output directory
without a trial store of its own."""
OUTPUT_ROOT = "TILEWRIGHT_OUTPUT_ROOT"
"""Environment variable with the folder in which all results must be written. `tilewright serve`
sets it."""


class OutputError(TilewrightError):
    """The output directory cannot be used."""


def check_folder(folder: Path) -> None:
    """Check that files can be written to a folder. No files are left behind.

    Args:
        folder: the folder, which need not exist.

    Raises:
        OutputError: files cannot be written there.
    """
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    problem = None
    if not existing.is_dir():
        problem = f"{existing} is not a folder"
    elif not existing.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        problem = f"{existing} is read-only"
    else:
        try:
            with tempfile.TemporaryDirectory(dir=existing):
                pass
        except OSError as error:
            problem = f"{existing}: {(error.strerror or str(error)).lower()}"
    if problem:
        raise OutputError(f"cannot write to {folder}: {problem}; choose another folder with --out")


def below_root(folder: Path, root: str) -> Path:
    """Check that a folder lies below a root folder, and return its path.

    Args:
        folder: the folder. A relative path is relative to the root.
        root: the root folder; if empty, `folder` is returned unchanged.

    Returns:
        The resolved path. It is relative to the root if the root is the current directory and
        `folder` is a relative path.

    Raises:
        OutputError: the folder lies outside of the root, possibly because of a symbolic link.
    """
    if not root:
        return folder
    try:
        place, limit = (Path(root) / folder).resolve(), Path(root).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # link to itself, zero byte in the path
        raise OutputError(
            f"the output directory {str(folder)!r} is not a folder below {root}: {error}"
        ) from None
    if not place.is_relative_to(limit):
        raise OutputError(
            f"the output directory {folder} is {place}, which is outside of {limit}, where "
            "this deployment keeps its results; choose a folder inside of it, or start "
            "'tilewright serve' with another --root"
        )
    return place.relative_to(limit) if limit == Path.cwd() and not folder.is_absolute() else place


def forget_results(folder: Path) -> None:
    """Delete the files of an earlier run, except for the database of trials.

    The summary is deleted first, because it marks a run as complete.

    Args:
        folder: the output directory.

    Raises:
        OSError: a file cannot be deleted.
    """
    for name in (SUMMARY, SCHEDULES, FUSION, FUSION_PAGE, TRIALS, CONVERGENCE, RUN, *LEDGERS):
        remove(folder / name)


def at_work(folder: Path) -> str | None:
    """Describe the command that is writing to an output directory.

    Args:
        folder: the output directory.

    Returns:
        The description, or None if no command is writing.

    Raises:
        TrialStoreError: the database cannot be read.
        UnsafeFile: the database is not a plain file.
    """
    try:
        with read_store(folder) as store:
            return store.describe_owner()
    except FileNotFoundError:
        return None


def check_idle(folder: Path) -> None:
    """Check that no command is writing to an output directory.

    Args:
        folder: the output directory.

    Raises:
        RunInUse: a command is writing to it.
    """
    try:
        command = at_work(folder)
    except TrialStoreError:  # reported later, when the run opens the database
        return
    if command:
        raise RunInUse(
            f"{folder} is in use by {command}; wait until it ends, or choose another folder "
            "with --out"
        )


def identity_file(folder: Path) -> Path:
    """Return the path of the hidden file that contains the ID of an output directory."""
    return folder / ".tune"


def identity(folder: Path) -> str:
    """Return the ID of an output directory, after creating the ID if necessary.

    The ID is stored in the directory and moves with it. A copy of a directory gets a new ID. This
    function may be called only by the owner of the directory.

    Args:
        folder: the output directory.

    Raises:
        OSError: the ID cannot be written.
    """
    here = str(folder.resolve())
    result, place = _identity(folder)
    if result and place != here and _identity(Path(place))[0] == result:
        result = ""
    if not result or place != here:
        result = result or uuid.uuid4().hex
        text = json.dumps({"id": result, "place": here})
        write_atomically(identity_file(folder), text.encode())
    return result


def _identity(folder: Path) -> tuple[str, str]:
    """Return the stored ID and the path for which it was written.

    Both are empty strings if no valid ID is stored.
    """
    try:
        held = as_object(read_json(read_plain(identity_file(folder), limit=1 << 16)))
        return as_text(held["id"]), as_text(held["place"])
    except (OSError, ValueError, KeyError, RecursionError):
        return "", ""
