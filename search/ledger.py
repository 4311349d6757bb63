"""The append-only record of every trial: the single source of truth a restart reads.

A ledger is a text file of one checked record a line (`search.records`). A batch is appended in one
write and synced to disk before any of its trials counts; its last line closes the round. What a
crash or a bad disk leaves is expected:

* a torn last line was never promised to anyone: it is cut when a writer opens the file;
* a damaged line further up is moved to `<name>.quarantine` and the rest is used.

Readers take no lock and change nothing. Writers hold a lease (`search.lease`).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
import pandas as pd

from search.lease import Lease, lease_of
from search.records import Record, decode, encode
from search.stages import Batch, Known
from targets.base import Configs, Measurements, Space
from targets.errors import TilewrightError

COLUMNS = (
    "workload", "trial", "round", "config", "knobs", "status", "reason", "cycles", "seconds",
)  # fmt: skip


class LedgerError(TilewrightError):
    """A ledger that cannot be read or written."""


@dataclass(frozen=True)
class FinishedRound:
    """A round the ledger closed: its trials in order, and what else it lowered."""

    index: int
    configs: Configs
    measured: Measurements
    failed: Configs
    lowered: int


@dataclass(frozen=True)
class Contents:
    """What a ledger file holds. `problems` tells of every line that could not be used."""

    records: list[Record]
    problems: list[str] = field(default_factory=list)
    damaged: list[bytes] = field(default_factory=list)
    torn: bool = False

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
            row = {name: record[name] for name in COLUMNS if name in record}
            row |= {"trial": count[run], "knobs": json.dumps(record["knobs"])}
            count[run] += 1
            rows.append(row)
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(
            {"trial": "int64", "round": "int64", "cycles": "int64", "seconds": "float64"}
        )


def read(path: Path) -> Contents:
    """All records of a ledger, also of one that is being written or has died. A missing file is an
    empty ledger. Raises `LedgerError` if the file cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Contents([])
    except OSError as error:
        raise LedgerError(f"cannot read ledger {path}: {error.strerror}") from None
    *lines, last = data.split(b"\n")
    contents = Contents([], torn=bool(last))
    for number, line in enumerate(lines, start=1):
        found, clean = decode(line)
        contents.records.extend(found)
        if not clean:
            contents.damaged.append(line)
            contents.problems.append(f"{path.name}, line {number}: damaged, set aside")
    if last:
        contents.problems.append(f"{path.name}: last record was torn ({len(last)} bytes), cut off")
    return contents


class Ledger:
    """A ledger open for writing, one writer at a time. Use as a context manager.

    Raises `LeaseHeld` if another process writes to it, `LedgerError` if the folder cannot be
    written. `problems` tells what was repaired on opening.
    """

    def __init__(self, path: Path, *, lease_seconds: float = 60.0) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.lease = Lease(lease_of(path), lease_seconds)
            self.lease.acquire()
            contents = self._opened()
        except OSError as error:
            raise LedgerError(
                f"cannot write ledger {path}: {error.strerror}; choose another output folder"
            ) from None
        self.problems = contents.problems
        self.records = contents.records

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lease back; what was appended is on disk already."""
        self.lease.release()

    def append(self, records: Iterable[Record]) -> None:
        """Add records in one synced write: on return they are on disk, after an error none is.
        Raises `LedgerError`, or `LeaseHeld` if another writer took over meanwhile."""
        records = list(records)
        data = b"".join(map(encode, records))
        try:
            with self.lease.renewed():
                _append(self.path, data)
        except OSError as error:
            raise LedgerError(
                f"cannot append to ledger {self.path}: {error.strerror}; nothing of this batch "
                "was recorded: make room and start the same command again"
            ) from None
        self.records.extend(records)

    def run(self, workload: str, target: str, run: str) -> RunLedger:
        """The part of the ledger that belongs to one run on one workload and target."""
        return RunLedger(self, {"run": run, "workload": workload, "target": target})

    def frame(self) -> pd.DataFrame:
        return Contents(self.records).frame()

    def _opened(self) -> Contents:
        try:
            contents = read(self.path)
            self._repair(contents)
        except BaseException:
            self.lease.release()
            raise
        return contents

    def _repair(self, contents: Contents) -> None:
        if contents.damaged:
            _append(
                self.path.with_name(self.path.name + ".quarantine"),
                b"".join(line + b"\n" for line in contents.damaged),
            )
        if contents.damaged or contents.torn:
            _replace(self.path, b"".join(map(encode, contents.records)))


class RunLedger:
    """One run's view of a ledger: what it has finished, what is already known, what to add."""

    def __init__(self, ledger: Ledger, key: dict[str, str]) -> None:
        self.ledger = ledger
        self.key = key

    def finished(self) -> Iterator[FinishedRound]:
        """The rounds that were closed, in order, up to the first that is incomplete."""
        trials: dict[int, dict[int, Record]] = defaultdict(dict)
        closed: dict[int, Record] = {}
        for record in self.records():
            if record["kind"] == "trial":
                trials[record["round"]][record["slot"]] = record
            elif record["kind"] == "round":
                closed[record["round"]] = record
        index = 0
        while index in closed and trials[index].keys() >= set(range(closed[index]["trials"])):
            slots = range(closed[index]["trials"])
            yield _finished(closed[index], [trials[index][slot] for slot in slots])
            index += 1

    def records(self) -> Iterator[Record]:
        """Everything that was recorded for this run, in order."""
        return self._mine(whole_run=True)

    def known(self, space: Space) -> Known:
        """Every measurement of this workload on this target, whichever run made it."""
        trials = [record for record in self._mine(whole_run=False) if record["kind"] == "trial"]
        if not trials:
            return {}
        flat = space.ravel(np.array([t["config"] for t in trials], dtype=np.int32))
        return {
            int(i): (t["status"], t["reason"], t["cycles"], _seconds(t))
            for i, t in zip(flat, trials, strict=True)
        }

    def append(
        self,
        space: Space,
        index: int,
        batch: Batch,
        measured: Measurements,
        beside: Iterable[Record] = (),
    ) -> None:
        """Add the trials of a round and close it; what a torn write left of them stays as it is.
        The records `beside` go into the same write."""
        records: list[Record] = [
            {
                "kind": "trial", **self.key, "round": index, "slot": slot,
                "config": config.tolist(), "knobs": space.describe(config.tolist()),
                "status": str(measured.status[slot]), "reason": str(measured.reason[slot]),
                "cycles": int(measured.cycles[slot]),
                "seconds": _or_none(float(measured.seconds[slot])),
            }
            for slot, config in enumerate(batch.rows.configs)
        ]  # fmt: skip
        records.append(
            {
                "kind": "round", **self.key, "round": index, "trials": len(measured),
                "lowered": batch.lowered, "failed": batch.failed.tolist(),
            }
        )  # fmt: skip
        held = [r for r in self.records() if r.get("round") == index]
        self.ledger.append([*(record for record in records if record not in held), *beside])

    def _mine(self, *, whole_run: bool) -> Iterator[Record]:
        keys = self.key if whole_run else {k: v for k, v in self.key.items() if k != "run"}
        for record in self.ledger.records:
            if all(record.get(name) == value for name, value in keys.items()):
                yield record


def _finished(closing: Record, trials: list[Record]) -> FinishedRound:
    configs = np.array([t["config"] for t in trials], dtype=np.int32)
    return FinishedRound(
        index=closing["round"],
        configs=configs,
        measured=Measurements(
            status=np.array([t["status"] for t in trials], dtype=object),
            reason=np.array([t["reason"] for t in trials], dtype=object),
            cycles=np.array([t["cycles"] for t in trials], dtype=np.int64),
            seconds=np.array([_seconds(t) for t in trials]),
            counters={},
        ),
        failed=np.array(closing["failed"], dtype=np.int32).reshape(-1, configs.shape[1]),
        lowered=closing["lowered"],
    )


def _append(path: Path, data: bytes) -> None:
    """Write and sync; on any error cut back to the length the file had."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        length = os.fstat(handle).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        except BaseException:
            os.ftruncate(handle, length)
            raise
    finally:
        os.close(handle)
    if length == 0:
        _sync_folder(path.parent)


def _replace(path: Path, data: bytes) -> None:
    """Put a repaired file in the place of the old one, atomically."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    _append(fresh, data)
    os.replace(fresh, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _or_none(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _seconds(record: Record) -> float:
    return float("nan") if record["seconds"] is None else float(record["seconds"])
