"""Access to the trials of one run in a trial store, for the tuning loop.

Several processes can share a run without measuring a config twice. Each takes short turns at the
store, in a transaction: it reads the others' results, proposes a batch that none of them has tried
or claimed, and adds a claim. Measuring happens in parallel. Then the trials are added and the claim
is removed in one transaction. A claim holds as long as its process lives, at most `claim_seconds`.
Other processes remove the claim of a dead process and measure its configs. A process that continues
after its claim was removed loses the trials that others have measured or claimed meanwhile.
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
"""Maximum age of the claim of a command on configs that it measures. The claim of a command that
ended is released at once; this limit releases configs of a command that is paused."""
ERROR_DIGITS = 4
"""Digits of a model's error that are stored. Further digits can differ between equal runs."""
_MEASURED = TypeAdapter(list[ValidationMeasurement])
_CLAIMED = TypeAdapter(list[list[int]])


@dataclass(frozen=True)
class FinishedRound:
    """A round that is complete in the store.

    Attributes:
        index: index of the round.
        configs: configs of the trials, in order, shape (n, knobs).
        measured: their measurements.
        failed: other configs that did not compile, shape (m, knobs).
        lowered: number of configs lowered beyond the trials.
        compiled: other configs that compiled and remain candidates, shape (k, knobs).
        errors: errors of the models on this round.
    """

    index: int
    configs: Configs
    measured: Measurements
    failed: Configs
    lowered: int
    compiled: Configs
    errors: Mapping[str, float] = field(default_factory=dict)


def recorded_batch(task: Task, finished: FinishedRound) -> Batch:
    """Return a round of the trial store as a batch, as if it had just been measured.

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
    """The trials of a run in a store.

    `claim` and `settle`, and the queries before them, must be called within a `turn`. `problems`
    lists data in the store that cannot belong to this run.

    Args:
        store: the trial store.
        key: key of the run.
        space: the search space of its workload. Rows that do not fit it are not used.
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
        self._last_known = 0  # the ID of a trial

    def turn(self) -> AbstractContextManager[object]:
        """Return a context in which other processes cannot change the run.

        Raises:
            TrialStoreError: other processes hold the lock for minutes.
        """
        return self.store.transaction() if self._shared else nullcontext()

    def next_rounds(self, first: int, trials: int) -> list[FinishedRound]:
        """Return finished rounds from index `first` on, up to a number of trials.

        The last round returned is the one with which the rounds hold at least `trials` trials. If
        no other process shares the run, only the first call returns rounds.

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
        """Return the finished rounds in order, up to the first incomplete round.

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
        """Return stored trials by the flat index of their config; they are not measured again."""
        if self._known_once and not self._shared:
            return self._known  # nobody else adds trials, and no config is proposed twice
        self._known_once = True
        # Only what was added since the last time is read. A corrected trial is added anew.
        rows = self._trials(TRIALS.c.id > self._last_known, of_others=self._other_runs)
        self._last_known = max([self._last_known, *(row["id"] for row in rows)])
        self._known |= {i: trial_of(row) for i, row in self._by_index(rows)}
        return self._known

    def pending(self) -> Configs | None:
        """Return configs that other processes measure now, shape (p, knobs); None if not shared."""
        return self._claimed_configs() if self._shared else None

    def _claimed_configs(self) -> Configs:
        """Return configs that other processes have claimed; remove the claims of dead processes."""
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
        """Record in the store that this process measures the batch, so that no other one does."""
        if not self._shared:
            return
        self._claim = uuid.uuid4().hex
        about = {"token": self._claim, "seconds": int(self._claim_seconds)}
        configs = {"configs": to_json_text(batch.rows.configs.tolist())}
        self._insert(CLAIMS, [about | configs | vars(ProcessStamp.of_this_process())])

    def settle(self, index: int, batch: Batch) -> tuple[int, NDArray[np.int64]]:
        """Store the trials of a measured batch and remove this process's claim.

        Args:
            index: index of the round, unless other processes have added rounds meanwhile.
            batch: the measured batch.

        Returns:
            The index under which the round was stored, and the rows of the batch that were added,
            shape (at most rows,). Rows that another process has measured or claimed meanwhile are
            not added.
        """
        with self.store.transaction() as connection:
            if not self._shared:
                self.append(index, batch)
                return index, np.arange(len(batch.rows))
            # Gone, if this process was believed dead. Others may have taken its configs since.
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
        """Add the trials of round `index` in one transaction.

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
            # Equal runs store equal rows also where the last digits of a learner differ.
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
            for table in (TRIALS, ROUNDS):  # what is left of the round if a trial was set aside
                there = self._own_rows(table) & (table.c.round == index)
                connection.execute(sa.delete(table).where(there))
            self._insert(TRIALS, trials)
            self._insert(ROUNDS, [closing])

    def correct(self, measured: Known) -> int:
        """Replace stored trials by new measurements of the same configs.

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
        """Return the stored validation measurements of a final choice, in order.

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
        """Store the validation measurements of one block, a complete series of turns.

        Args:
            choice: name of the choice that the measurements belong to.
            made: the measurements of the block.
        """
        text = _MEASURED.dump_json(list(made)).decode()
        self._insert(VALIDATIONS, [{"choice": choice, "block": made[0].block, "measured": text}])

    def forget_validations(self, choice: str) -> None:
        """Mark stored validation measurements of a final choice as rejected, to make new ones."""
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
            The measurements of the final choice by config.
        """
        used = self._own_rows(VALIDATIONS, of_others=True)
        stored = sa.select(VALIDATIONS).where(used).order_by(VALIDATIONS.c.id)
        with self.store.read_snapshot() as connection:
            rows = connection.execute(stored).all()
        reports = {(row.run_id, row.choice): row.measured for row in rows}  # the last block of each
        trials_by_config: dict[tuple[int, ...], Trial] = {}
        for text in reports.values():
            with suppress(ValidationError, ValueError):
                # A report measures the chosen schedule first, then the baseline.
                first = min(_MEASURED.validate_json(text), key=lambda one: (one.turn, one.slot))
                if first.source == TRIAL and self._fit([first.config]):
                    trials_by_config[first.config] = first.trial
        return {
            config: trial for config, trial in trials_by_config.items() if trial.status == "valid"
        }

    def first_run_of(self, config: Sequence[int]) -> tuple[str, int] | None:
        """Return the ID of the first run that measured a config, and that run's number of trials.

        All runs of this workload on this target are searched. Returns None if no run measured the
        config.
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
        """Return an SQL condition for the rows of `table` that this run uses.

        Rejected rows are excluded. With `of_others`, the condition covers all runs of this workload
        on this target.
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

        Trials that are contradictory or do not fit the space are marked as rejected and reported in
        `problems`.
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
        """Return why a trial does not fit the space; empty if it does."""
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
        """Return each trial with the flat index of its config."""
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
