"""Opens the trials of an output directory, for as long as a command is at work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewright.search import Ledger, Record, RunKey, Setting, SoloRecord
from tilewright.search.file_lock import Lease, LeaseHeld, lease_of
from tilewright.tuning.events import Listener, Note
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import (
    LEDGER,
    check_files,
    check_idle,
    forget_results,
    held_by_command,
)
from tilewright.tuning.run_metadata import check_vacant
from tilewright.tuning.tuning_task import TuningTask

RecordOf = Callable[[TuningTask, Setting], Record]
"""Where the trials of a study are kept."""

LEASE_SECONDS = 60.0


@dataclass(frozen=True)
class FolderTrials:
    """The trials of an output directory. `arrange` puts those of runs that were made beside each
    other in the order that runs after each other leave."""

    record_of: RecordOf
    arrange: Callable[[Sequence[RunKey]], None]


@contextmanager
def trials_of_folder(options: TuningOptions, emit: Listener) -> Iterator[FolderTrials]:
    """Where the workloads of a run keep their trials; emptied first if the options say so. Raises
    `LeaseHeld` if another command works on the folder, `FolderTaken` if it holds another run,
    `UnsafeFile`, `LedgerError` or `OSError` if it cannot be written."""
    path = (options.folder / LEDGER).absolute()
    with alone(path.parent):
        check_files(options.folder)
        check_vacant(options)
        with Ledger(path) as ledger:
            if options.fresh:
                forget_results(options.folder)
                ledger.clear()
            for problem in ledger.problems:
                emit(Note(problem))
            yield FolderTrials(
                lambda study, setting: SoloRecord(setting, ledger.run(study.ledger_key)),
                ledger.arrange,
            )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold an output directory. Processes that share a ledger hold it for moments: what a command
    holds is another lease. Raises `LeaseHeld` if another command has it, `UnsafeFile` and
    `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    lease = Lease(lease_of(held_by_command(folder)), LEASE_SECONDS)
    try:
        lease.acquire()
    except LeaseHeld:
        check_idle(folder)  # names the folder; the lease knows its own file alone
        raise
    try:
        yield
    finally:
        lease.release()
