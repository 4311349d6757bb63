"""Names the files of an output directory, and checks before any work whether it can be used.

run.json          whose folder it is, and the layers of each workload (`tuning.run_metadata`)
summary.json      what every workload costs as the baseline, tuned and at best
schedules.json    the chosen schedule of every workload; equal runs give equal bytes
fusion.json       what runs together and by which schedules, where that was asked for
trials.parquet    one row a trial
convergence.png   best latency over trials, where somebody draws it
trials.sqlite     the trials, from which the run resumes (`search.trial_store`)
.tune             what the folder is known by, wherever it is moved
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
STORE = FILE
OWNER = ".owner.sqlite"
"""Says who works on a directory that keeps no trials itself."""
OUTPUT_ROOT = "TILEWRIGHT_OUTPUT_ROOT"
"""Variable that names a folder which no results may leave: `tilewright serve` sets it."""


class OutputError(TilewrightError):
    """An output directory that cannot be used."""


def check_folder(folder: Path) -> None:
    """Raises `OutputError` unless files can be written to `folder`; leaves nothing behind."""
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
    """The folder, which counts from `root`; with no root, as it is. Raises `OutputError` if it
    leaves it, be it by a link."""
    if not root:
        return folder
    try:
        place, limit = (Path(root) / folder).resolve(), Path(root).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a zero byte
        raise OutputError(f"out {str(folder)!r} is not a folder below {root}: {error}") from None
    if not place.is_relative_to(limit):
        raise OutputError(
            f"out {folder} is {place}, which lies outside of {limit}, where runs of this "
            "deployment keep their results; choose a folder below, or start 'tilewright serve' "
            "with another --root"
        )
    return place.relative_to(limit) if limit == Path.cwd() and not folder.is_absolute() else place


def forget_results(folder: Path) -> None:
    """Remove what an earlier run left, all but the database of trials; first of all what says that
    the run is complete. Raises `OSError`."""
    for name in (SUMMARY, SCHEDULES, FUSION, FUSION_PAGE, TRIALS, CONVERGENCE, RUN, *LEDGERS):
        remove(folder / name)


def at_work(folder: Path) -> str | None:
    """Return the command that works on an output directory, in words; None if none does. Raises
    `TrialStoreError` and `UnsafeFile`."""
    try:
        with read_store(folder) as store:
            return store.owner()
    except FileNotFoundError:
        return None


def check_idle(folder: Path) -> None:
    """Raises `RunInUse` if a command is `at_work` there."""
    try:
        command = at_work(folder)
    except TrialStoreError:  # whoever opens the database says it, or begins anew
        return
    if command:
        raise RunInUse(
            f"{folder} is being written by {command}; wait for it to end, or choose another folder "
            "with --out"
        )


def identity_file(folder: Path) -> Path:
    """Return the file that holds the ID of an output directory. It is no result, so it is
    hidden."""
    return folder / ".tune"


def identity(folder: Path) -> str:
    """What records know an output directory by: it is kept in the folder, and moves with it. A copy
    beside its original gets one of its own. Ask as the owner of the folder. Raises
    `OSError`."""
    here = str(folder.resolve())
    found, place = _identity(folder)
    if found and place != here and _identity(Path(place))[0] == found:
        found = ""
    if not found or place != here:
        found = found or uuid.uuid4().hex
        text = json.dumps({"id": found, "place": here})
        write_atomically(identity_file(folder), text.encode())
    return found


def _identity(folder: Path) -> tuple[str, str]:
    """As it was written, and for which place; two empty texts if it was not."""
    try:
        held = as_object(read_json(read_plain(identity_file(folder), limit=1 << 16)))
        return as_text(held["id"]), as_text(held["place"])
    except (OSError, ValueError, KeyError, RecursionError):
        return "", ""
