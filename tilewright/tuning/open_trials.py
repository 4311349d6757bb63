"""Opens the trials of an output directory, for as long as a command is at work on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.core.database_url import without_password
from tilewright.core.files import as_object, as_text, read_json_file
from tilewright.core.formats import WORKSPACE
from tilewright.core.workspace_root import workspace_root
from tilewright.search import StoredRun, TrialStore, open_store
from tilewright.tuning.events import Listener, Note
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import OWNER, forget_results
from tilewright.tuning.run_metadata import check_vacant
from tilewright.tuning.tuning_task import TuningTask

VARIABLE = "TILEWRIGHT_STORE"


@contextmanager
def trials_of_folder(
    options: TuningOptions, emit: Listener, own: bool = True
) -> Iterator[TrialStore]:
    """Open the trials of a run; empty the output directory first if the options say so. With
    `own=False`, open them beside the command that owns the output directory.

    Raises:
        RunInUse: another command works on the output directory.
        FolderTaken: the output directory holds another run.
        TrialStoreError: the trials cannot be read or written.
        UnsafeFile: something else than a plain file is in the place of a file.
        OSError: the output directory cannot be written.
    """
    folder = options.folder.absolute()
    check_vacant(options)  # before anything changes
    with open_store(folder, store_url(options.store), fresh=options.fresh, own=own) as store:
        check_vacant(options)
        if options.fresh:
            forget_results(options.folder)
            store.clear()
        for problem in store.problems:
            emit(Note(problem))
        yield store


def record_of(store: TrialStore, task: TuningTask) -> StoredRun:
    """Return the trials of one workload of a run."""
    return StoredRun(
        store, task.store_key, task.problem.space,
        other_runs=task.target.deterministic, shared=task.shared,
    )  # fmt: skip


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Own an output directory that keeps no trials itself. Raises as `TrialStore`."""
    with TrialStore(folder.absolute() / OWNER):
        yield


def store_url(named: str = "") -> str:
    """Return the URL of the database that keeps the trials of new output directories: the one that
    is named, else that of the variable `TILEWRIGHT_STORE`, else that of `store` in the workspace's
    `workspace.json`. Empty if each directory keeps its own. Raises `ValueError` for a damaged
    `workspace.json`."""
    if url := named or os.environ.get(VARIABLE, ""):
        return without_password(url)
    try:
        about = as_object(read_json_file(workspace_root() / WORKSPACE.file))
        return without_password(as_text(about.get("store", "")))
    except (OSError, RuntimeError):
        return ""
