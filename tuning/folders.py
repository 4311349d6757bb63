"""An output folder: its files, and whether it can be used, asked before any work.

run.json          whose folder it is, and the layers of each workload (`tuning.run_file`)
summary.json      what every workload costs untuned, tuned and at best
schedules.json    the chosen schedule of every workload; equal runs give equal bytes
trials.parquet    one row a trial
convergence.png   best latency over trials, where somebody draws it
ledger.jsonl      the record the run resumes from (`search.ledger`)
"""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

from search.lease import writer
from targets.errors import TilewrightError

RUN = "run.json"
SUMMARY = "summary.json"
SCHEDULES = "schedules.json"
TRIALS = "trials.parquet"
CONVERGENCE = "convergence.png"
LEDGER = "ledger.jsonl"


class OutputError(TilewrightError):
    """An output folder that cannot be used."""


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


def forget_results(folder: Path) -> None:
    """Remove what an earlier run left, all but the ledger. Raises `OSError`."""
    for name in (SUMMARY, SCHEDULES, TRIALS, CONVERGENCE, RUN):
        (folder / name).unlink(missing_ok=True)


def at_work(folder: Path) -> str | None:
    """Which process tunes into this folder, in words; None if none does."""
    return writer(held_by_command(folder)) or writer(folder / LEDGER)


def held_by_command(folder: Path) -> Path:
    """What a command holds from beginning to end; no result, so it is hidden from who lists the
    folder."""
    return folder / ".tune"
