"""Reads and appends one run's part of a ledger: finished rounds, known trials, new ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilewright.search.ledger_schema import (
    MAX_REASON,
    ClaimEntry,
    Entry,
    Filed,
    MeasuredEntry,
    RoundEntry,
    TrialEntry,
)
from tilewright.search.round_steps import Batch, Known, Trial, measurements_of, model_errors
from tilewright.targets.base import Configs, Measurements, Space

if TYPE_CHECKING:
    from tilewright.search.ledger import Ledger

RunKey = tuple[str, str, str]
"""What a ledger files a run's records under: workload, target's fingerprint, run."""

ERROR_DIGITS = 4

TRIAL = "trial"
"""The source of a schedule that is one of the trials."""


@dataclass(frozen=True)
class FinishedRound:
    """A round the ledger closed: its trials in order, what else it lowered, and how wrong models
    were that chose it."""

    index: int
    configs: Configs
    measured: Measurements
    failed: Configs
    lowered: int
    errors: Mapping[str, float] = field(default_factory=dict)


class RunRecords:
    """Reads what a run has recorded, out of the records of a ledger that is open or was read."""

    def __init__(self, records: Sequence[Entry], key: RunKey) -> None:
        workload, target, run = key
        self._all = records
        self.key: Filed = {"run": run, "workload": workload, "target": target}

    def finished(self) -> Iterator[FinishedRound]:
        """The rounds that were closed, in order, up to the first that is incomplete."""
        trials: dict[int, dict[int, TrialEntry]] = defaultdict(dict)
        closed: dict[int, RoundEntry] = {}
        for record in self.records():
            if record["kind"] == "trial":
                trials[record["round"]][record["slot"]] = record
            elif record["kind"] == "round":
                closed[record["round"]] = record
        index = 0
        while index in closed and _complete(closed[index], trials[index]):
            slots = range(closed[index]["trials"])
            yield _finished(closed[index], [trials[index][slot] for slot in slots])
            index += 1

    def records(self) -> Iterator[Entry]:
        """What was recorded for this run, in order."""
        run = self.key["run"]
        return (record for record in self._of_workload() if record["run"] == run)

    def claims(self) -> Iterator[ClaimEntry]:
        """What processes said they would measure, in order."""
        for record in self.records():
            if record["kind"] == "claim":
                yield record

    def settled(self) -> set[str]:
        """The claims that are over."""
        return {record["claim"] for record in self.records() if record["kind"] == "settled"}

    def known(self, space: Space, *, of_others: bool = True) -> Known:
        """Every measurement of this workload on this target, whichever run made it; or those this
        run has made, without those `of_others`."""
        records = self._of_workload() if of_others else self.records()
        trials = [record for record in records if record["kind"] == "trial"]
        if not trials:
            return {}
        flat = space.ravel(np.array([t["config"] for t in trials], dtype=np.int32))
        return {int(i): trial_of(t) for i, t in zip(flat, trials, strict=True)}

    def unfit(self, space: Space, first: int = 0) -> list[tuple[Entry, str]]:
        """The records of this workload on this target, whichever run made them, that cannot be of
        its space, each with the reason; looks from record `first` of the ledger on."""
        sizes = space.cardinalities
        listed = None if space.listed is None else np.asarray(space.listed)
        found, fit = [], []
        for record in self._of_workload(first):
            if why := _misfit(record, space, sizes, listed):
                found.append((record, why))
            elif record["kind"] == "trial" and record["status"] == "valid":
                fit.append(record)
        counted = [record for record in fit if record["cycles"] > 0]
        if 0 < len(counted) < len(fit):  # a target counts the cycles of all or of none
            few = min(counted, [r for r in fit if r["cycles"] < 0], key=len)
            found += [(record, "only some valid trials have cycles") for record in few]
        return found

    def _of_workload(self, first: int = 0) -> Iterator[Entry]:
        workload, target = self.key["workload"], self.key["target"]
        for record in islice(self._all, first, None):
            if record["workload"] == workload and record["target"] == target:
                yield record


class RunLedger(RunRecords):
    """The same of a ledger that is open for writing."""

    def __init__(self, ledger: Ledger, key: RunKey) -> None:
        super().__init__(ledger.records, key)
        self.ledger = ledger

    def vet(self, space: Space, first: int = 0) -> list[str]:
        """Set aside what cannot be of the space (`unfit`); returns what to say of it, which is
        among the ledger's problems, too. Raises as `Ledger.append`."""
        unfit = self.unfit(space, first)
        if not unfit:
            return []
        self.ledger.exchange([(record, None) for record, _ in unfit])
        said = f"{len(unfit)} records of workload {self.key['workload']} set aside: {unfit[0][1]}"
        self.ledger.problems.append(said)
        return [said]

    def correct(self, space: Space, measured: Known, *, of_others: bool = True) -> int:
        """Put what trials measure now, by flat index, in the place of what this run recorded of
        them, or whichever run with those `of_others`. What was recorded is set aside; returns of
        how many. Raises as `Ledger.append`."""
        records = self._of_workload() if of_others else self.records()
        trials = [record for record in records if record["kind"] == "trial"]
        if not trials or not measured:
            return 0
        flat = space.ravel(np.array([t["config"] for t in trials], dtype=np.int32))
        changes: list[tuple[Entry, Entry | None]] = [
            (record, _told_anew(record, measured[int(i)]))
            for i, record in zip(flat, trials, strict=True)
            if int(i) in measured
        ]
        self.ledger.exchange(changes)
        return len(changes)

    def append(
        self,
        space: Space,
        index: int,
        batch: Batch,
        measured: Measurements,
        beside: Iterable[Entry] = (),
    ) -> None:
        """Add the trials of a round and close it; what a torn write left of them stays as it is.
        The records `beside` go into the same write. Raises `LedgerError` or `LeaseHeld`."""
        records: list[Entry] = [
            self._trial_record(space, index, slot, batch, measured) for slot in range(len(measured))
        ]
        closing: RoundEntry = {
            "kind": "round", "run": self.key["run"], "workload": self.key["workload"],
            "target": self.key["target"], "round": index, "trials": len(measured),
            "lowered": batch.lowered, "failed": batch.failed.tolist(),
        }  # fmt: skip
        if errors := model_errors(batch.scores, measured):
            # Equal runs write equal bytes also where a learner's last digits differ.
            closing["errors"] = {
                name: float(f"{each:.{ERROR_DIGITS}g}") for name, each in errors.items()
            }
        records.append(closing)
        held = [
            record
            for record in self.records()
            if record["kind"] in ("trial", "round") and record["round"] == index
        ]
        self.ledger.append([*(record for record in records if record not in held), *beside])

    def _trial_record(
        self, space: Space, index: int, slot: int, batch: Batch, measured: Measurements
    ) -> TrialEntry:
        config = batch.rows.configs[slot].tolist()
        key = self.key
        record: TrialEntry = {
            "kind": "trial", "run": key["run"], "workload": key["workload"],
            "target": key["target"], "round": index, "slot": slot,
            "config": config, "knobs": space.describe(config),
            "status": measured.status[slot], "reason": plain_reason(str(measured.reason[slot])),
            "cycles": int(measured.cycles[slot]),
            "seconds": or_none(float(measured.seconds[slot])),
        }  # fmt: skip
        if measured.repeats is not None:
            record["repeats"] = [or_none(float(each)) for each in measured.repeats[slot]]
        return record


def _complete(closing: RoundEntry, trials: Mapping[int, TrialEntry]) -> bool:
    """Whether all trials of a closed round are there. A record can claim more than there are."""
    count = closing["trials"]
    return len(trials) >= count and all(slot in trials for slot in range(count))


def _misfit(
    record: Entry, space: Space, sizes: NDArray[np.int64], listed: NDArray[np.int64] | None
) -> str:
    """Why a record cannot be of the space; empty if it can."""
    if record["kind"] == "settled":
        return ""
    if record["kind"] == "fresh" and record["source"] != TRIAL:
        return ""  # of whichever space the baseline has
    if record["kind"] == "trial" or record["kind"] == "fresh":
        rows, what = [record["config"]], "a config"
    elif record["kind"] == "round":
        rows, what = record["failed"], "a config that failed"
    else:
        rows, what = record["configs"], "a claimed config"
    if not rows:
        return ""
    if any(len(row) != len(sizes) for row in rows):
        return f"{what} has not the {len(sizes)} knobs of space {space.name}"
    configs = np.array(rows, dtype=np.int64)
    if (configs >= sizes).any():
        return f"{what} is out of the range of space {space.name}"
    flat = space.ravel(configs.astype(np.int32))
    if listed is not None and not np.isin(flat, listed).all():
        return f"{what} is none of those listed in space {space.name}"
    if record["kind"] == "trial" and record["knobs"] != space.describe(record["config"]):
        return "the knobs of a trial are not those of its config"
    return ""


def _finished(closing: RoundEntry, trials: list[TrialEntry]) -> FinishedRound:
    configs = np.array([t["config"] for t in trials], dtype=np.int32)
    return FinishedRound(
        index=closing["round"],
        configs=configs,
        measured=measurements_of([trial_of(t) for t in trials]),
        failed=np.array(closing["failed"], dtype=np.int32).reshape(-1, configs.shape[1]),
        lowered=closing["lowered"],
        errors=closing.get("errors", {}),
    )


def trial_of(record: MeasuredEntry) -> Trial:
    """What a record says was measured."""
    repeats = tuple(_seconds(each) for each in record.get("repeats", ()))
    return Trial(
        record["status"], record["reason"], record["cycles"], _seconds(record["seconds"]), repeats
    )


def _told_anew(record: TrialEntry, trial: Trial) -> TrialEntry:
    """A trial as it measures now."""
    anew = record.copy()
    anew.update(
        {"status": trial.status, "reason": plain_reason(trial.reason), "cycles": trial.cycles}
    )
    anew["seconds"] = or_none(trial.seconds)
    anew.pop("repeats", None)
    if trial.repeats:
        anew["repeats"] = [or_none(each) for each in trial.repeats]
    return anew


def plain_reason(text: str) -> str:
    """Text that can be read back: not endless, and without halves of characters."""
    return text[:MAX_REASON].encode("utf-8", "replace").decode()


def or_none(number: float) -> float | None:
    """A number as JSON has it: null where it is not finite."""
    return number if np.isfinite(number) else None


def _seconds(number: float | None) -> float:
    return float("nan") if number is None else float(number)
