"""The ledger of an output folder, opened once a process however many flows write to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from search import Ledger
from tasks.session import emit
from tuning.outputs import LEDGER

_open: ContextVar[dict[Path, Ledger] | None] = ContextVar("ledgers", default=None)


@contextmanager
def open_ledger(folder: Path, *, fresh: bool = False) -> Iterator[Ledger]:
    """The ledger in `folder`, emptied if `fresh`. Raises `LeaseHeld` if another process has it."""
    path = (folder / LEDGER).absolute()
    ledgers = _open.get() or {}
    if path in ledgers:
        yield ledgers[path]
        return
    with Ledger(path) as ledger:
        if fresh:
            path.unlink(missing_ok=True)
            ledger.records.clear()
        for problem in ledger.problems:
            emit("note", text=problem)
        token = _open.set(ledgers | {path: ledger})
        try:
            yield ledger
        finally:
            _open.reset(token)
