"""Access to the trials of an output directory while a command works on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.core.database_url import without_password
from tilewright.core.files import as_object, as_text, read_json_file
from tilewright.core.formats import WORKSPACE
from tilewright.core.working_folder import workspace_root
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
    """Return a context manager that opens the trial store of a run.

    With `--fresh`, the results and trials of earlier runs are deleted first.

    Args:
        options: options of the run.
        emit: receives notes about unusable data.
        own: whether to become the owner of the output directory. If False, the trials can be opened
            while another command is the owner.

    Raises:
        RunInUse: another command works on the output directory.
        FolderTaken: the output directory contains another run.
        TrialStoreError: the trials cannot be read or written.
        UnsafeFile: a path is not a plain file.
        OSError: the output directory cannot be written.
    """
    folder = options.folder.absolute()
    check_vacant(options)  # before `open_store` creates any file
    with open_store(folder, store_url(options.store), fresh=options.fresh, own=own) as store:
        check_vacant(options)
        if options.fresh:
            forget_results(options.folder)
            store.clear()
        for problem in store.problems:
            emit(Note(problem))
        yield store


def record_of(store: TrialStore, task: TuningTask) -> StoredRun:
    """Return an object that accesses the trials of one workload in the trial store.

    Args:
        store: the open trial store.
        task: the workload, with the target, tuner and seed that identify its trials.
    """
    return StoredRun(
        store, task.store_key, task.problem.space,
        other_runs=task.target.deterministic, shared=task.shared,
    )  # fmt: skip


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Return a context manager that owns an output directory without a trial store of its own.

    Within the `with` block, no other command can write to the directory.

    Args:
        folder: the output directory.

    Raises:
        RunInUse: another command owns the directory.
        TrialStoreError: the file that records the owner cannot be written.
    """
    with TrialStore(folder.absolute() / OWNER):
        yield


def store_url(named: str = "") -> str:
    """Return the URL of the database that keeps the trials of new output directories.

    The URL is `named`, or else the environment variable `TILEWRIGHT_STORE`, or else the value of
    `store` in the workspace's file `workspace.json`. Passwords are removed from it.

    Args:
        named: URL that the user gave with `--store`, or "".

    Returns:
        The URL, or "" if each output directory keeps its own trials.

    Raises:
        ValueError: `workspace.json` is damaged.
    """
    if url := named or os.environ.get(VARIABLE, ""):
        return without_password(url)
    try:
        about = as_object(read_json_file(workspace_root() / WORKSPACE.file))
        return without_password(as_text(about.get("store", "")))
    except (OSError, RuntimeError):
        return ""
