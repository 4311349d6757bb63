"""Access to the trials of one run in a trial store, for the tuning loop.

Several processes can share a run without measuring a config twice. Each process takes turns at the
store. Its turn is a short transaction: it reads the results of the others, proposes a batch of
configs that no process has tried or claimed, and stores a claim on them. The configs are measured
outside of the turn, so that processes measure in parallel. A second transaction then adds the
trials and removes the claim.

A claim is valid as long as its process lives, and at most `claim_seconds`. Other processes remove
the claim of a dead process and measure its configs. A paused process can lose its claim in this
way. When it continues, it discards its trials of configs that others have measured or claimed
meanwhile.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from tilewright.core.process_info import ProcessStamp
from tilewright.search.round_steps import Known, Trial, measurements_of, model_errors, trial_at
from tilewright.search.session import Batch
from tilewright.search.task import RunKey, Task
from tilewright.search.trial_rows import (
    Rejected,
    RoundRow,
    TrialRow,
    check_rows,
    measured_columns,
    to_json_text,
    trial_of,
)
from tilewright.search.trial_store import (
    CLAIMS,
    ROUNDS,
    RUNS,
    TRIALS,
    VALIDATIONS,
    TrialStore,
    stamp_in,
)
from tilewright.search.validation_records import TRIAL, ValidationMeasurement
from tilewright.targets.base import Configs, Measurements, Space

CLAIM_SECONDS = 600.0
"""Maximum age of a claim in seconds. A claim reserves configs that a process is measuring. If the
process ends, its claim is removed at once; this limit frees the configs of a process that is
paused."""
ERROR_DIGITS = 4
"""Number of significant digits with which errors of model predictions are stored. Further digits
can differ between repetitions of the same run."""
_MEASURED = TypeAdapter(list[ValidationMeasurement])
_CLAIMED = TypeAdapter(list[list[int]])


@dataclass(frozen=True)
class FinishedRound:
    """A round whose trials are all in the store.

    Attributes:
        index: index of the round.
        configs: configs of the trials, in order, shape (n, knobs).
        measured: measurements of the trials.
        failed: configs that were lowered, did not compile and are not trials, shape (m, knobs).
        lowered: number of configs that were lowered but not measured.
        compiled: configs that compiled, were not measured and may be measured later, shape (k,
            knobs).
        errors: errors of the models' predictions for this round, by name.
    """

    index: int
    configs: Configs
    measured: Measurements
    failed: Configs
    lowered: int
    compiled: Configs
    errors: Mapping[str, float] = field(default_factory=dict)


def recorded_batch(task: Task, finished: FinishedRound) -> Batch:
    """Convert a round of the trial store to a batch, as if it had just been measured.

    The configs are lowered again, because the store does not keep programs.

    Args:
        task: the workload, target and tuner.
        finished: the recorded round.
    """
    target, workload = task.target, task.problem.workload
    rows, kept = target.lower(workload, finished.configs), None
    if len(finished.compiled):
        kept = replace(target.lower(workload, finished.compiled), programs={})
    return Batch(
        rows, {}, finished.failed, finished.lowered, candidates=len(finished.configs),
        unmeasured_compiled=kept, measured=finished.measured,
    )  # fmt: skip


class StoredRun:
    """The trials of one run in a trial store.

    If the run is shared, the methods `next_rounds`, `known_trials`, `pending`, `claim` and `settle`
    must be called within a `turn`. The attribute `problems` lists data in the store that cannot
    belong to this run.

    Args:
        store: the trial store.
        key: key of the run: workload ID, target fingerprint and run ID.
        space: the search space of the run's workload. Rows that do not fit the space are not used.
        other_runs: whether to use trials of other runs of this workload on this target.
        shared: whether several processes work on the run.
        claim_seconds: maximum age of a claim in seconds.
    """

    def __init__(
        self, store: TrialStore, key: RunKey, space: Space, *, other_runs: bool = False,
        shared: bool = False, claim_seconds: float = CLAIM_SECONDS,
    ) -> None:  # fmt: skip
        self.problems: list[str] = []
        self.store, self.key, self.space = store, key, space
        self._other_runs, self._shared, self._claim_seconds = other_runs, shared, claim_seconds
        self._claim, self._asked = "", False
        self._claims_seen: dict[str, float] = {}
        self._known: dict[int, Trial] = {}
        self._known_once = False
        self._last_known = 0  # highest ID of the trials in `_known`

    def turn(self) -> AbstractContextManager[object]:
        """Return a context manager within which other processes cannot change the run.

        If the run is not shared, the context manager does nothing.

        Raises:
            TrialStoreError: other processes hold the lock for minutes.
        """
        return self.store.transaction() if self._shared else nullcontext()

    def next_rounds(self, first: int, trials: int) -> list[FinishedRound]:
        """Return finished rounds from index `first` on that are not yet part of the session.

        The rounds end with the round that completes at least `trials` trials. If the run is not
        shared, only the first call returns rounds, because no other process adds any.

        Args:
            first: index of the first round to return.
            trials: number of trials after which to stop.
        """
        if self._asked and not self._shared:
            return []  # nobody else adds rounds
        self._asked = True
        new_rounds, held = [], 0
        for done in self.finished_rounds(first):
            if held >= trials:
                break
            new_rounds.append(done)
            held += len(done.configs)
        return new_rounds

    def finished_rounds(self, first: int = 0) -> list[FinishedRound]:
        """Return the finished rounds in order, up to the first round that is incomplete or invalid.

        Args:
            first: index of the first round to return.
        """
        made: dict[int, dict[int, TrialRow]] = defaultdict(dict)
        with self.store.read_snapshot() as connection:
            used = self._own_rows(ROUNDS) & (ROUNDS.c.round >= first)
            rows = connection.execute(sa.select(ROUNDS).where(used)).mappings().all()
            for row in self._trials(TRIALS.c.round >= first):
                made[row["round"]][row["slot"]] = row
        closed = {row["round"]: row for row in check_rows(RoundRow, rows)[0]}
        result, index = [], first
        while index in closed and sorted(made[index]) == list(range(closed[index]["trials"])):
            done = closed[index]
            trials = [made[index][slot] for slot in range(done["trials"])]
            configs = np.array([row["config"] for row in trials], dtype=np.int32)
            if not self._fit(done["failed"]) or not self._fit(done["compiled"]):
                break
            failed, compiled = (
                np.array(done[column], dtype=np.int32).reshape(-1, configs.shape[1])
                for column in ("failed", "compiled")
            )
            measured = measurements_of([trial_of(row) for row in trials])
            result.append(
                FinishedRound(
                    index, configs, measured, failed, done["lowered"], compiled, done["errors"]
                )
            )
            index += 1
        return result

    def known_trials(self) -> Known:
        """Return the stored trials by the flat index of their config.

        These configs need not be measured again.
        """
        if self._known_once and not self._shared:
            return self._known  # nobody else adds trials, and no config is proposed twice
        self._known_once = True
        # Read only the rows added since the last call. A corrected trial is a new row.
        rows = self._trials(TRIALS.c.id > self._last_known, of_others=self._other_runs)
        self._last_known = max([self._last_known, *(row["id"] for row in rows)])
        self._known |= {i: trial_of(row) for i, row in self._by_index(rows)}
        return self._known

    def pending(self) -> Configs | None:
        """Return the configs that other processes are measuring now.

        Returns:
            Configs of shape (p, knobs), or None if the run is not shared.
        """
        return self._claimed_configs() if self._shared else None

    def _claimed_configs(self) -> Configs:
        """Return the configs that other processes have claimed, and delete invalid claims.

        A claim is invalid if its process is dead, if it is too old, or if it does not fit the
        space.
        """
        configs: list[list[int]] = []
        gone, now = [], time.monotonic()
        with self.store.transaction() as connection:
            for row in connection.execute(
                sa.select(CLAIMS).where(self._own_rows(CLAIMS))
            ).mappings():
                age = now - self._claims_seen.setdefault(row["token"], now)
                stamp = stamp_in(row)
                try:
                    claimed = _CLAIMED.validate_json(row["configs"], strict=True)
                    lasts = age < float(row["seconds"]) and self._fit(claimed)
                except (ValidationError, TypeError, ValueError):
                    lasts = False
                if lasts and stamp is not None and stamp.is_alive() is not False:
                    configs += claimed
                else:
                    gone.append(row["id"])
            connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.id.in_(gone)))
        return np.array(configs, dtype=np.int32).reshape(-1, len(self.space.knobs))

    def claim(self, batch: Batch) -> None:
        """Store a claim on the configs of a batch, so that no other process measures them.

        If the run is not shared, nothing is stored.

        Args:
            batch: the batch that this process is about to measure.
        """
        if not self._shared:
            return
        self._claim = uuid.uuid4().hex
        about = {"token": self._claim, "seconds": int(self._claim_seconds)}
        configs = {"configs": to_json_text(batch.rows.configs.tolist())}
        self._insert(CLAIMS, [about | configs | vars(ProcessStamp.of_this_process())])

    def settle(self, index: int, batch: Batch) -> tuple[int, NDArray[np.int64]]:
        """Store the trials of a measured batch and remove this process's claim.

        Rows that another process has measured or claimed meanwhile are left out.

        Args:
            index: index of the round. It is increased if other processes have added rounds
                meanwhile.
            batch: the measured batch.

        Returns:
            The index under which the round was stored, and the rows of the batch that were stored,
            shape (at most rows,).
        """
        with self.store.transaction() as connection:
            if not self._shared:
                self.append(index, batch)
                return index, np.arange(len(batch.rows))
            # If this process was paused for long, others may have removed the claim and measured
            # its configs.
            connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.token == self._claim))
            since = self.finished_rounds(index)
            taken = {row.tobytes() for done in since for row in done.configs}
            taken |= {row.tobytes() for row in self._claimed_configs()}
            keep = np.flatnonzero([row.tobytes() not in taken for row in batch.rows.configs])
            index += len(since)
            if len(keep):
                self.append(index, batch.take(keep))
        return index, keep

    def append(self, index: int, batch: Batch) -> None:
        """Store a measured batch as round `index`, in one transaction.

        If the store already contains rows of this round, for example because one of its trials was
        rejected, they are replaced.

        Args:
            index: index of the round.
            batch: the measured batch.

        Raises:
            TrialStoreError: the trials cannot be written.
            RunInUse: another command became the owner of the output directory.
        """
        measured, trials = batch.measurements(), []
        for slot in range(len(measured)):
            config = batch.rows.configs[slot].tolist()
            place = {"round": index, "slot": slot, "config": to_json_text(config)}
            knobs = {"knobs": to_json_text(self.space.describe(config))}
            trials.append(place | knobs | measured_columns(trial_at(measured, slot)))
        errors = {
            # Rounded so that repeated runs store equal rows even if a model's last digits differ.
            name: float(f"{error:.{ERROR_DIGITS}g}")
            for name, error in model_errors(batch.scores, measured).items()
        }
        kept = batch.unmeasured_compiled
        closing = {
            "round": index, "trials": len(trials), "lowered": batch.unmeasured_count,
            "failed": to_json_text(batch.unmeasured_failed.tolist()),
            "errors": to_json_text(errors),
            "compiled": to_json_text([] if kept is None else kept.configs.tolist()),
        }  # fmt: skip
        with self.store.transaction() as connection:
            for table in (TRIALS, ROUNDS):  # the round may exist partly, if a trial was rejected
                there = self._own_rows(table) & (table.c.round == index)
                connection.execute(sa.delete(table).where(there))
            self._insert(TRIALS, trials)
            self._insert(ROUNDS, [closing])

    def correct(self, measured: Known) -> int:
        """Replace stored trials by new measurements of the same configs.

        The old trials remain in the store, marked as rejected.

        Args:
            measured: new trials by the flat index of their config.

        Returns:
            The number of replaced trials.
        """
        with self.store.transaction() as connection:
            index = self._by_index(self._trials(of_others=self._other_runs))
            wrong = {row["id"]: i for i, row in index if i in measured}
            stored = sa.select(TRIALS).where(TRIALS.c.id.in_(wrong))
            rows = connection.execute(stored).mappings().all()
            self._reject([(row, "the target now measures another latency") for row in rows])
            for row in rows:
                anew = dict(row) | measured_columns(measured[wrong[row["id"]]])
                del anew["id"]
                connection.execute(sa.insert(TRIALS).values(anew))
        return len(rows)

    def validations(self, choice: str) -> list[ValidationMeasurement]:
        """Return the stored validation measurements of a run's final choice, in order.

        Args:
            choice: name of the choice, which includes the configs that it compares.
        """
        used = self._own_rows(VALIDATIONS) & (VALIDATIONS.c.choice == choice)
        with self.store.read_snapshot() as connection:
            rows = connection.execute(sa.select(VALIDATIONS).where(used)).all()
        blocks: dict[int, list[ValidationMeasurement]] = {}
        for row in rows:
            try:
                blocks[row.block] = _MEASURED.validate_json(row.measured)
            except ValidationError as error:
                self.store.report_rejected(
                    [({}, f"a validation measurement is invalid: {error.errors()[0]['msg']}")]
                )
        return [one for block in sorted(blocks) for one in blocks[block]]

    def add_validations(self, choice: str, made: Sequence[ValidationMeasurement]) -> None:
        """Store the validation measurements of one block, which is a complete series of turns.

        Args:
            choice: name of the final choice to which the measurements belong.
            made: the measurements of the block; at least one.
        """
        text = _MEASURED.dump_json(list(made)).decode()
        self._insert(VALIDATIONS, [{"choice": choice, "block": made[0].block, "measured": text}])

    def forget_validations(self, choice: str) -> None:
        """Mark the stored validation measurements of a final choice as rejected.

        The choice must then be measured again.

        Args:
            choice: name of the final choice.
        """
        of_choice = self._own_rows(VALIDATIONS) & (VALIDATIONS.c.choice == choice)
        wrong = sa.update(VALIDATIONS).values(rejected="the target now measures another latency")
        with self.store.transaction() as connection:
            connection.execute(wrong.where(of_choice))

    # -- all runs of the workload on the target ----------------------------------------------------

    def fastest(self) -> list[TrialRow]:
        """Return the valid trials of all runs of this workload on this target, fastest first."""
        rows = [row for row in self._trials(of_others=True) if row["status"] == "valid"]
        return sorted(rows, key=lambda row: (row["cycles"], row["seconds"] or 0.0))

    def winners(self) -> dict[tuple[int, ...], Trial]:
        """Return the trials that won a final choice in any run of this workload on this target.

        Returns:
            Trials by config (knob indices). Each trial is the winner's first measurement in the
            last block of its choice.
        """
        used = self._own_rows(VALIDATIONS, of_others=True)
        stored = sa.select(VALIDATIONS).where(used).order_by(VALIDATIONS.c.id)
        with self.store.read_snapshot() as connection:
            rows = connection.execute(stored).all()
        # Later blocks replace earlier blocks, so the last block of each choice remains.
        reports = {(row.run_id, row.choice): row.measured for row in rows}
        trials_by_config: dict[tuple[int, ...], Trial] = {}
        for text in reports.values():
            with suppress(ValidationError, ValueError):
                # The last block measures the chosen schedule first, then the baseline.
                first = min(_MEASURED.validate_json(text), key=lambda one: (one.turn, one.slot))
                if first.source == TRIAL and self._fit([first.config]):
                    trials_by_config[first.config] = first.trial
        return {
            config: trial for config, trial in trials_by_config.items() if trial.status == "valid"
        }

    def first_run_of(self, config: Sequence[int]) -> tuple[str, int] | None:
        """Find the first run of this workload on this target that measured a config.

        Args:
            config: knob indices.

        Returns:
            ID of the run and its number of trials, or None if no run measured the config.
        """
        rows = self._trials(of_others=True)
        number = next((row["id"] for row in rows if row["config"] == list(config)), None)
        if number is None:
            return None
        run = sa.select(TRIALS.c.run_id).where(TRIALS.c.id == number).scalar_subquery()
        made = sa.select(sa.func.count()).where(TRIALS.c.run_id == run, TRIALS.c.rejected.is_(None))
        with self.store.read_snapshot() as connection:
            name = connection.scalar(sa.select(RUNS.c.run).where(RUNS.c.id == run))
            return str(name), int(connection.scalar(made) or 0)

    # -- rows -----------------------------------------------------------------------------------

    def _own_rows(self, table: sa.Table, of_others: bool = False) -> sa.ColumnElement[bool]:
        """Build an SQL condition for the rows of a table that this run uses, without rejected rows.

        Args:
            table: table with rows of all runs.
            of_others: whether to include the rows of all runs of this workload on this target.
        """
        workload, target, run = self.key
        mine = (RUNS.c.folder == self.store.folder) & (RUNS.c.workload == workload)
        mine &= RUNS.c.target == target
        if not of_others:
            mine &= RUNS.c.run == run
        result = table.c.run_id.in_(sa.select(RUNS.c.id).where(mine))
        return result & table.c.rejected.is_(None) if "rejected" in table.c else result

    def _trials(self, *where: sa.ColumnElement[bool], of_others: bool = False) -> list[TrialRow]:
        """Return trials in the order in which they were added.

        Trials that are contradictory or do not fit the space are left out and reported in
        `problems`. Unless the store is read-only, they are marked as rejected.

        Args:
            *where: further SQL conditions that the trials must satisfy.
            of_others: whether to include the trials of all runs of this workload on this target.
        """
        used = sa.select(TRIALS).where(self._own_rows(TRIALS, of_others), *where)
        with self.store.read_snapshot() as connection:
            rows = connection.execute(used.order_by(TRIALS.c.id)).mappings().all()
        good, bad = check_rows(TrialRow, rows)
        reasons = {row["id"]: reason for row in good if (reason := self._misfit(row))}
        valid = [row for row in good if row["status"] == "valid" and row["id"] not in reasons]
        with_cycles = [row for row in valid if row["cycles"] > 0]
        without = [row for row in valid if row["cycles"] < 0]
        # A target counts the cycles of all trials or of none.
        for row in min(with_cycles, without, key=len):
            reasons[row["id"]] = "only some valid trials have cycles"
        bad += [(row, reasons[row["id"]]) for row in good if row["id"] in reasons]
        if bad and self.store.read_only:
            self.store.report_rejected(bad)
        elif bad:
            self._reject(bad)
            message = f"{len(bad)} trials of workload {self.key[0]} were set aside: {bad[0][1]}"
            self.problems.append(message)
            self.store.problems.append(message)
        return [row for row in good if row["id"] not in reasons]

    def _misfit(self, row: TrialRow) -> str:
        """Check whether the config and the knob values of a trial fit the search space.

        Args:
            row: the trial.

        Returns:
            The reason why the trial does not fit, or "" if it fits.
        """
        if not self._fit([row["config"]]):
            return f"its config is not in the space {self.space.name}"
        if row["knobs"] != self.space.describe(row["config"]):
            return "its knobs do not match its config"
        return ""

    def _fit(self, configs: Sequence[Sequence[int]]) -> bool:
        sizes = self.space.cardinalities
        if any(len(config) != len(sizes) for config in configs):
            return False
        array = np.array(configs, dtype=np.int64).reshape(-1, len(sizes))
        if (array < 0).any() or (array >= sizes).any():
            return False
        listed = self.space.listed
        return listed is None or bool(
            np.isin(self.space.ravel(array.astype(np.int32)), listed).all()
        )

    def _by_index(self, rows: Sequence[TrialRow]) -> list[tuple[int, TrialRow]]:
        """Return pairs of the flat index of a trial's config and the trial.

        Args:
            rows: the trials.
        """
        if not rows:
            return []
        flat = self.space.ravel(np.array([row["config"] for row in rows], dtype=np.int32))
        return list(zip(flat.tolist(), rows, strict=True))

    def _insert(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        with self.store.transaction() as connection:
            run = self.store.add_runs([self.key])[self.key]
            connection.execute(sa.insert(table), [{"run_id": run, **row} for row in rows])

    def _reject(self, bad: Sequence[Rejected]) -> None:
        with self.store.transaction() as connection:
            for row, reason in bad:
                this = sa.update(TRIALS).where(TRIALS.c.id == row["id"])
                connection.execute(this.values(rejected=reason))
