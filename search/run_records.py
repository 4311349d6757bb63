"""One run's part of a ledger: what it has finished, what is known already, what it adds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from search.records import Record
from search.stages import Batch, Known, Trial, measurements_of
from targets.base import Configs, Measurements, Space

RunKey = tuple[str, str, str]
"""What a ledger files a run's records under: workload, target's fingerprint, run."""


@dataclass(frozen=True)
class FinishedRound:
    """A round the ledger closed: its trials in order, and what else it lowered."""

    index: int
    configs: Configs
    measured: Measurements
    failed: Configs
    lowered: int


class RunRecords:
    """Reads what a run has recorded, out of the records of a ledger that is open or was read."""

    def __init__(self, records: Sequence[Record], key: RunKey) -> None:
        workload, target, run = key
        self._all = records
        self.key = {"run": run, "workload": workload, "target": target}

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

    def records(self, kind: str = "") -> Iterator[Record]:
        """What was recorded for this run, in order: everything, or one kind of record."""
        for record in self._matching(self.key):
            if not kind or record["kind"] == kind:
                yield record

    def known(self, space: Space, *, of_others: bool = True) -> Known:
        """Every measurement of this workload on this target, whichever run made it; or those this
        run has made, without those `of_others`."""
        key = {k: v for k, v in self.key.items() if not of_others or k != "run"}
        trials = [record for record in self._matching(key) if record["kind"] == "trial"]
        if not trials:
            return {}
        flat = space.ravel(np.array([t["config"] for t in trials], dtype=np.int32))
        return {int(i): _trial(t) for i, t in zip(flat, trials, strict=True)}

    def _matching(self, key: dict[str, str]) -> Iterator[Record]:
        for record in self._all:
            if all(record.get(name) == value for name, value in key.items()):
                yield record


class Writable(Protocol):
    """A ledger that is open for writing, as a run sees it."""

    @property
    def records(self) -> list[Record]:
        """All there are."""
        ...

    def append(self, records: Iterable[Record]) -> None:
        """Add records in one write. Raises `LedgerError` or `LeaseHeld`."""
        ...


class RunLedger(RunRecords):
    """The same of a ledger that is open for writing."""

    def __init__(self, ledger: Writable, key: RunKey) -> None:
        super().__init__(ledger.records, key)
        self.ledger = ledger

    def append(
        self,
        space: Space,
        index: int,
        batch: Batch,
        measured: Measurements,
        beside: Iterable[Record] = (),
    ) -> None:
        """Add the trials of a round and close it; what a torn write left of them stays as it is.
        The records `beside` go into the same write. Raises `LedgerError` or `LeaseHeld`."""
        records = [
            self._trial_record(space, index, slot, batch, measured) for slot in range(len(measured))
        ]
        records.append(
            {
                "kind": "round", **self.key, "round": index, "trials": len(measured),
                "lowered": batch.lowered, "failed": batch.failed.tolist(),
            }
        )  # fmt: skip
        held = [record for record in self.records() if record.get("round") == index]
        self.ledger.append([*(record for record in records if record not in held), *beside])

    def _trial_record(
        self, space: Space, index: int, slot: int, batch: Batch, measured: Measurements
    ) -> Record:
        config = batch.rows.configs[slot].tolist()
        record: Record = {
            "kind": "trial", **self.key, "round": index, "slot": slot,
            "config": config, "knobs": space.describe(config),
            "status": str(measured.status[slot]), "reason": str(measured.reason[slot]),
            "cycles": int(measured.cycles[slot]),
            "seconds": _or_none(float(measured.seconds[slot])),
        }  # fmt: skip
        if measured.repeats is not None:
            record["repeats"] = [_or_none(float(each)) for each in measured.repeats[slot]]
        return record


def _finished(closing: Record, trials: list[Record]) -> FinishedRound:
    configs = np.array([t["config"] for t in trials], dtype=np.int32)
    return FinishedRound(
        index=closing["round"],
        configs=configs,
        measured=measurements_of([_trial(t) for t in trials]),
        failed=np.array(closing["failed"], dtype=np.int32).reshape(-1, configs.shape[1]),
        lowered=closing["lowered"],
    )


def _trial(record: Record) -> Trial:
    repeats = tuple(_seconds(each) for each in record.get("repeats", ()))
    return Trial(
        record["status"], record["reason"], record["cycles"], _seconds(record["seconds"]), repeats
    )


def _or_none(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _seconds(number: float | None) -> float:
    return float("nan") if number is None else float(number)
