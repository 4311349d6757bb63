"""Stores every trial in an append-only record: the single source of truth a restart reads.

A ledger is a text file of one checked record a line (`search.ledger_schema`). A batch is appended
in one write and synced to disk before any of its trials counts; its last line closes the round.
Damage by a crash or a bad disk is handled:

* a torn last line was never promised to anyone: it is cut when a writer opens the file;
* a damaged line further up, or one with a record that cannot be true, is moved to
  `<name>.quarantine` and the rest is used.

Readers take no lock and change nothing. Writers hold a lease (`search.file_lock`).
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.errors import TilewrightError
from tilewright.core.files import FileChanged, append, remove, write_atomically
from tilewright.core.formats import LEDGER
from tilewright.core.lazy_module import lazy_module
from tilewright.core.safe_files import check_own, read_plain
from tilewright.search.file_lock import Lease, lease_of
from tilewright.search.ledger_schema import Entry, TrialEntry, decode, encode
from tilewright.search.run_ledger import RunKey, RunLedger, RunRecords

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = lazy_module("pandas")

COLUMNS = (
    "workload", "trial", "round", "config", "knobs", "status", "reason", "cycles", "seconds",
)  # fmt: skip


TOLD_LINES = 5
"""Of how many lines that cannot be used each is told."""


class LedgerError(TilewrightError):
    """A ledger that cannot be read or written."""


@dataclass(frozen=True)
class Contents:
    """What a ledger file holds. `problems` tells of the lines that could not be used."""

    records: list[Entry]
    problems: list[str] = field(default_factory=list)
    damaged: list[bytes] = field(default_factory=list)
    torn: bool = False

    def run(self, key: RunKey) -> RunRecords:
        """What belongs to one run on one workload and target."""
        return RunRecords(self.records, key)

    def frame(self) -> pd.DataFrame:
        """One row a trial, columns `COLUMNS`, as in `trials.parquet`; `trial` counts within a run.
        A trial that was recorded again after a crash appears once."""
        rows, count = [], defaultdict[tuple[str, ...], int](int)
        seen: set[tuple[tuple[str, ...], str]] = set()
        for record in self.records:
            if record["kind"] != "trial":
                continue
            run = (record["workload"], record["target"], record["run"])
            if (run, str(record["config"])) in seen:
                continue
            seen.add((run, str(record["config"])))
            rows.append(_row(record, count[run]))
            count[run] += 1
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
            {"trial": "int64", "round": "int64", "cycles": "int64", "seconds": "float64"}
        )


def quarantine_of(path: Path) -> Path:
    """Where a ledger's damaged lines go."""
    return path.with_name(path.name + ".quarantine")


def read(path: Path) -> Contents:
    """All records of a ledger, also of one that is being written or has died. A missing file is an
    empty ledger. Raises `LedgerError` if the file cannot be read or is of another version,
    `UnsafeFile` if it is no plain file."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        return Contents([])
    except OSError as error:
        raise LedgerError(f"cannot read ledger {path}: {error.strerror}") from None
    *lines, last = data.split(b"\n")
    contents = Contents([], torn=bool(last))
    for number, line in enumerate(lines, start=1):
        found = decode(line)
        if refusal := LEDGER.refusal(path, found.version):
            raise LedgerError(refusal)
        contents.records.extend(found.entries)
        if found.problem:
            contents.damaged.append(line)
            if len(contents.damaged) <= TOLD_LINES:
                problem = f"{path.name}, line {number}: {found.problem}, set aside"
                contents.problems.append(problem)
    if len(contents.damaged) > TOLD_LINES:
        more = len(contents.damaged) - TOLD_LINES
        contents.problems.append(f"{path.name}: {more} more lines like these, set aside")
    if last:
        contents.problems.append(f"{path.name}: last record was torn ({len(last)} bytes), cut off")
    return contents


class Ledger:
    """A ledger open for writing, one writer at a time. Use as a context manager.

    Raises `LeaseHeld` if another process writes to it, `LedgerError` if the folder cannot be
    written, `UnsafeFile` if something else is in the file's place. `problems` tells what was
    repaired on opening.
    """

    def __init__(self, path: Path, *, lease_seconds: float = 60.0) -> None:
        self.path = path
        self._writing = threading.Lock()
        self._length = 0  # of the file, as this writer left it
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.lease = Lease(lease_of(path), lease_seconds)
            self.lease.acquire()
            contents = self._opened()
        except OSError as error:
            raise LedgerError(
                f"cannot write ledger {path}: {error.strerror}; choose another output directory"
            ) from None
        self.problems = contents.problems
        self.records = contents.records

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lease back; what was appended is on disk already."""
        self.lease.release()

    def append(self, records: Iterable[Entry]) -> None:
        """Add records in one synced write: on return they are on disk, after an error none is. May
        be called from several threads. Raises `LedgerError`, or `LeaseHeld` if another writer took
        over meanwhile."""
        records = list(records)
        data = b"".join(map(encode, records))
        try:
            with self._writing, self.lease.renewed():
                self._length = append(self.path, data, length=self._length)
                self.records.extend(records)
        except FileChanged as error:
            raise LedgerError(
                f"{error} while this command was at work; nothing of this batch was recorded: "
                "start the same command again, it reads what is there"
            ) from None
        except OSError as error:
            raise LedgerError(
                f"cannot append to ledger {self.path}: {error.strerror}; nothing of this batch "
                "was recorded: make room and start the same command again"
            ) from None

    def run(self, key: RunKey) -> RunLedger:
        """The part of the ledger that belongs to one run on one workload and target."""
        return RunLedger(self, key)

    def exchange(self, changes: Sequence[tuple[Entry, Entry | None]]) -> None:
        """Move records that cannot be true into the quarantine; what each is paired with, if
        anything, takes its place. Raises as `append`."""
        instead = {id(old): new for old, new in changes}
        try:
            with self._writing, self.lease.renewed():
                kept = [instead.get(id(record), record) for record in self.records]
                records = [record for record in kept if record is not None]
                self._set_aside(b"".join(encode(old) for old, _ in changes))
                self._rewrite(records)
                self.records[:] = records
        except OSError as error:
            raise LedgerError(
                f"cannot repair ledger {self.path}: {error.strerror}; make room and start the "
                "same command again"
            ) from None

    def arrange(self, keys: Sequence[RunKey]) -> None:
        """Put the records of these runs in their order, where there are any of them: those of the
        first first, each in the order it was recorded. Then the ledger is the one that runs after
        each other leave, in any order of time. Raises as `append`."""
        order = {key: number for number, key in enumerate(keys)}

        def number(record: Entry) -> int:
            return order.get((record["workload"], record["target"], record["run"]), -1)

        ours = [place for place, record in enumerate(self.records) if number(record) >= 0]
        held = [self.records[place] for place in ours]
        wanted = sorted(held, key=number)
        if all(old is new for old, new in zip(held, wanted, strict=True)):
            return
        records = list(self.records)
        for place, record in zip(ours, wanted, strict=True):
            records[place] = record
        try:
            with self._writing, self.lease.renewed():
                self._rewrite(records)
                self.records[:] = records
        except OSError as error:
            raise LedgerError(
                f"cannot write ledger {self.path}: {error.strerror}; make room and start the same "
                "command again"
            ) from None

    def clear(self) -> None:
        """Forget everything; the file is gone on return."""
        with self._writing, self.lease.renewed():
            remove(self.path)
            self.records.clear()
            self._length = 0

    def frame(self) -> pd.DataFrame:
        """As `Contents.frame`."""
        return Contents(self.records).frame()

    def _opened(self) -> Contents:
        try:
            check_own(self.path, in_place=True)
            contents = read(self.path)
            self._repair(contents)
            self._length = self.path.stat().st_size if self.path.exists() else 0
        except BaseException:
            self.lease.release()
            raise
        return contents

    def _repair(self, contents: Contents) -> None:
        if contents.damaged:
            self._set_aside(b"".join(line + b"\n" for line in contents.damaged))
        if contents.damaged or contents.torn:
            self._rewrite(contents.records)

    def _rewrite(self, records: Sequence[Entry]) -> None:
        data = b"".join(map(encode, records))
        write_atomically(self.path, data)
        self._length = len(data)

    def _set_aside(self, lines: bytes) -> None:
        append(quarantine_of(self.path), lines)


def _row(trial: TrialEntry, number: int) -> dict[str, object]:
    """A row of `Contents.frame`."""
    about: dict[str, object] = {**trial}
    return {name: about.get(name) for name in COLUMNS} | {
        "trial": number,
        "knobs": json.dumps(trial["knobs"]),
    }
