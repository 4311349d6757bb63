"""Records validation measurements on a target that does not repeat its figures.

They are of configs that a run may choose, and of the one it chose. The ledger keeps them beside the
trials, so that a finished choice is not repeated. They are no trials, train no model, and serve one
choice only: its name includes the configs that it is among.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.search.ledger_schema import ValidationEntry
from tilewright.search.round_steps import Trial
from tilewright.search.run_ledger import RunLedger, RunRecords, or_none, plain_reason, trial_of


@dataclass(frozen=True)
class ValidationMeasurement:
    """One of them: the `turn` of a `block` of turns, its place (`slot`) among those measured in
    turn, what was measured (`source` and config, as of a `tuning.results.Schedule`), what that
    gave, and the seconds it took."""

    block: int
    turn: int
    slot: int
    source: str
    config: tuple[int, ...]
    trial: Trial
    took: float


def validation_of(run: RunRecords, choice: str) -> list[ValidationMeasurement]:
    """What is recorded for a choice, in order; of what was recorded twice, the later."""
    found = {(e["block"], e["turn"], e["slot"]): _fresh(e) for e in _entries(run, choice)}
    return [found[place] for place in sorted(found)]


def keep_validation(run: RunLedger, choice: str, found: Sequence[ValidationMeasurement]) -> None:
    """Append all of them in one write. Raises as `Ledger.append`."""
    run.ledger.append([_entry(run, choice, each) for each in found])


def forget_validation(run: RunLedger, choice: str) -> None:
    """Set aside what is recorded for a choice. Raises as `Ledger.exchange`."""
    run.ledger.exchange([(entry, None) for entry in _entries(run, choice)])


def _entries(run: RunRecords, choice: str) -> Iterator[ValidationEntry]:
    for record in run.records():
        if record["kind"] == "fresh" and record["choice"] == choice:
            yield record


def _fresh(entry: ValidationEntry) -> ValidationMeasurement:
    return ValidationMeasurement(
        entry["block"], entry["turn"], entry["slot"], entry["source"], tuple(entry["config"]),
        trial_of(entry), entry["took"],
    )  # fmt: skip


def _entry(run: RunRecords, choice: str, fresh: ValidationMeasurement) -> ValidationEntry:
    trial = fresh.trial
    entry: ValidationEntry = {
        "kind": "fresh", "run": run.key["run"], "workload": run.key["workload"],
        "target": run.key["target"], "choice": choice, "block": fresh.block, "turn": fresh.turn,
        "slot": fresh.slot, "source": fresh.source, "config": list(fresh.config),
        "status": trial.status, "reason": plain_reason(trial.reason), "cycles": trial.cycles,
        "seconds": or_none(trial.seconds), "took": fresh.took,
    }  # fmt: skip
    if trial.repeats:
        entry["repeats"] = [or_none(each) for each in trial.repeats]
    return entry
