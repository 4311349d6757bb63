"""Deletion of runs: their records in MLflow and Prefect, and the files in their output directories.

An output directory contains the results of one run, and possibly the trials of several runs. The
trials are deleted together with the last of these runs. Files outside of the folder that the start
page searches are never deleted (`tuning.delete_output`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.files import as_object, read_json_file
from tilewright.dashboard.listing import RUNNING, KnownRuns, ListedRun, settings_of
from tilewright.tasks.runs_table import delete_network_run
from tilewright.tuning.delete_output import NotDeleted, check_deletable, delete_output
from tilewright.tuning.output_dir import SUMMARY
from tilewright.tuning.run_metadata import is_complete, read_run


@dataclass(frozen=True)
class Deletion:
    """Plan of the deletion of a run.

    Attributes:
        run: the run.
        folder: output directory whose files are deleted; None if no file is deleted.
        keep_trials: whether the trials in this directory are kept, because other runs use them.
        sentences: description for the user of what is deleted and what is kept.
    """

    run: ListedRun
    folder: Path | None
    keep_trials: bool
    sentences: tuple[str, ...]


def plan_deletion(known: KnownRuns, run_id: str) -> Deletion:
    """Plan the deletion of a run, without deleting anything.

    If the files may not be deleted, but the run has records in MLflow or Prefect, only the records
    are deleted. If other runs use the output directory, its trials are kept.

    Args:
        known: the runs of the start page.
        run_id: ID of the run.

    Returns:
        The files and records to delete, with a description for the user.

    Raises:
        RunUnreadable: no run has this ID.
        NotDeleted: the run is in progress, or it has no records and its files may not be deleted.
        RunInUse: a command is working on the output directory of the run.
        OSError: the output directory cannot be read.
        MlflowException: MLflow does not answer.
    """
    run = known.find(run_id)
    if run.row["state"] == RUNNING:
        raise NotDeleted("the run is in progress; stop it first")
    sentences = []
    systems = [name for name in ("MLflow", "Prefect") if run.row[name.lower()]]
    if systems:
        records = "record is" if len(systems) == 1 else "records are"
        sentences.append(f"The {records} deleted in {' and '.join(systems)}.")
    folder = run.folder
    if folder is None or not _holds(folder, run):
        if folder is not None and folder.is_dir():
            sentences.append(f"The files in {folder} stay: they belong to another run.")
        return Deletion(run, None, False, tuple(sentences))
    others = [each for each in known.runs() if each.folder == folder and each.id != run.id]
    try:
        check_deletable(folder, known.start)
    except (NotDeleted, OSError) as error:
        if not systems:  # there would be nothing to delete
            raise
        return Deletion(run, None, False, (*sentences, f"The files in {folder} stay: {error}."))
    if others:
        count = "another run uses" if len(others) == 1 else f"{len(others)} other runs use"
        sentences.append(f"The results in {folder} are deleted. Its trials stay, as {count} them.")
    else:
        sentences.append(f"The results and trials in {folder} are deleted.")
    return Deletion(run, folder, bool(others), tuple(sentences))


def delete_run(known: KnownRuns, run_id: str) -> Deletion:
    """Delete a run: its files first, then its records in Prefect and MLflow.

    If a step fails, the run stays in the list, and the deletion can be repeated.

    Args:
        known: the runs of the start page.
        run_id: ID of the run.

    Returns:
        Description of what was deleted.

    Raises:
        RunUnreadable: no run has this ID.
        NotDeleted: the run is in progress, or its files may not be deleted.
        RunInUse: a command is working on the output directory of the run.
        FlowRunsUnavailable: Prefect does not answer.
        TilewrightError: a file cannot be used.
        OSError: a file cannot be deleted.
        MlflowException: MLflow does not answer.
    """
    deletion = plan_deletion(known, run_id)
    run = deletion.run
    if deletion.folder is not None:
        deleted = delete_output(deletion.folder, known.start, keep_trials=deletion.keep_trials)
        if deleted.left and not deletion.keep_trials:
            more = f"The directory stays, because it contains {', '.join(deleted.left[:3])}."
            sentences = (*deletion.sentences, more)
            deletion = Deletion(run, deletion.folder, deletion.keep_trials, sentences)
    if run.row["flow_run"] and known.flow_runs is not None:
        known.flow_runs.delete(str(run.row["flow_run"]))
    if run.row["tracked"]:
        client = known.client
        assert client is not None, "the run was read from it"
        delete_network_run(client, run.id)
    known.forget(run)
    return deletion


def _holds(folder: Path, run: ListedRun) -> bool:
    """Return whether the results in an output directory belong to a given run.

    An output directory holds the results of its last run only. If they do not name their MLflow
    run, the tuner, the seed and the number of trials are compared.

    Args:
        folder: the output directory.
        run: the run.
    """
    held = read_run(folder)
    if held is None or not run.row["tracked"]:
        return held is not None
    with suppress(OSError, ValueError, TilewrightError):
        if is_complete(folder):
            summary = as_object(read_json_file(folder / SUMMARY))
            return summary.get("mlflow_run_id") == run.id
    return settings_of(held) == settings_of(run.row)
