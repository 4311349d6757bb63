"""Several processes tuning one workload together, through one ledger: no trial is made twice.

Each takes turns at the ledger for moments: it reads what the others have found, proposes a batch
that none of them has tried or claimed, and writes the claim down. Measuring happens in parallel;
then the trials are appended in one write that settles the claim. A claim holds as long as its
process lives, at most `claim_seconds`; who comes back later than that loses what others have
claimed since.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search import stages
from search.explorer import Explorer, ExplorerState, History, Problem
from search.lease import LeaseHeld, remaining, stamp
from search.ledger import Ledger, RunLedger
from search.records import Record
from search.stages import Batch
from targets.base import Configs, Measurements, Target
from targets.workload import Workload

RUN = "shared"
"""The ledger's name of the one run that all tuners of a workload share, whatever their options."""
CLAIM_SECONDS = 600.0
TURN_SECONDS = 600.0


@dataclass(frozen=True)
class SharedRound:
    """What one process added: its trials, in order. `index` counts the rounds of all processes."""

    index: int
    configs: Configs
    measured: Measurements


def tune_shared(
    target: Target,
    workload: Workload,
    explorer: Explorer,
    path: Path,
    *,
    worker: str,
    trials: int,
    batch: int = 8,
    seed: int = 0,
    claim_seconds: float = CLAIM_SECONDS,
) -> Iterator[SharedRound]:
    """Add trials to the ledger at `path` until this `worker` (a name of its own for every process)
    has made `trials`, or nothing is left to propose. Yields each batch once it is on disk; a worker
    that died goes on under its name. Raises `LeaseHeld` if the ledger stays taken for minutes."""
    problem = stages.problem_of(target, workload, seed)
    share = Share(target, problem, explorer, worker, claim_seconds)
    while True:
        with _turn(path) as ledger:
            claim = share.claim(ledger, trials, batch)
        if claim is None:
            return
        if not len(claim.batch.rows):  # all that is left is being measured by others
            time.sleep(0.05)
            continue
        measured = stages.measure_batch(target, problem, claim.batch.rows, {})
        with _turn(path) as ledger:
            done = share.settle(ledger, claim, measured)
        yield done


@dataclass(frozen=True)
class Claim:
    """A batch that is this worker's to measure."""

    id: str
    batch: Batch


class Share:
    """One worker's part in a shared run, and what it has read of the others'."""

    def __init__(
        self,
        target: Target,
        problem: Problem,
        explorer: Explorer,
        worker: str,
        claim_seconds: float,
    ) -> None:
        self.target = target
        self.problem = problem
        self.explorer = explorer
        self.worker = worker
        self.claim_seconds = claim_seconds
        self.state = ExplorerState()
        self.history = History.empty(problem.space)

    def claim(self, ledger: Ledger, trials: int, batch: int) -> Claim | None:
        """Propose against all that is known and claim it; None when this worker is done. An empty
        batch: what is left to propose is claimed by others."""
        run = self._run(ledger)
        self._read(run)
        left = trials - sum(r["kept"] for r in self._records(run, "settled") if self._own(r))
        if left <= 0:
            return None
        pending = self._pending(run)
        proposed = self._propose(replace(self.history, pending=pending), min(batch, left))
        if not len(proposed.rows):
            return Claim("", proposed) if len(pending) else None
        claim = Claim(uuid.uuid4().hex, proposed)
        configs = proposed.rows.configs.tolist()
        record = {"kind": "claim", **run.key, "worker": self.worker, "claim": claim.id}
        ledger.append([record | {"configs": configs, **stamp(self.claim_seconds)}])
        return claim

    def settle(self, ledger: Ledger, claim: Claim, measured: Measurements) -> SharedRound:
        """Append what is still this worker's."""
        run = self._run(ledger)
        self._read(run)
        lost = self._lost(run, claim)
        keep = np.flatnonzero([row.tobytes() not in lost for row in claim.batch.rows.configs])
        rows, kept, index = claim.batch.rows.rows(keep), _rows(measured, keep), self.history.round
        settled = {"kind": "settled", **run.key, "worker": self.worker, "claim": claim.id}
        beside = [settled | {"kept": len(keep)}]
        if len(keep):
            run.append(self.problem.space, index, replace(claim.batch, rows=rows), kept, beside)
        else:
            ledger.append(beside)
        return SharedRound(index, rows.configs, kept)

    def _propose(self, history: History, n: int) -> Batch:
        explorer, problem, state = self.explorer, self.problem, self.state
        named = stages.generate_candidates(explorer, problem, state, history, n)
        kept = stages.filter_candidates(explorer, problem, state, history, named, n)
        lowered = stages.lower_candidates(self.target, problem, kept)
        return stages.choose_candidates(explorer, problem, state, history, lowered, n)

    def _read(self, run: RunLedger) -> None:
        """Take up the rounds that are new in the ledger, whoever made them."""
        for done in run.finished():
            if done.index < self.history.round:
                continue
            lowered = self.target.lower(self.problem.workload, done.configs)
            batch = Batch(lowered, {}, done.failed, done.lowered)
            self.history = stages.extend_history(self.history, batch, done.measured)
            self.state = stages.retrain(self.explorer, self.problem, self.state, self.history)

    def _pending(self, run: RunLedger) -> Configs:
        settled = {record["claim"] for record in self._records(run, "settled")}
        claimed = [
            config
            for record in self._records(run, "claim")
            if record["claim"] not in settled and remaining(record, self.claim_seconds) > 0
            for config in record["configs"]
        ]
        return np.array(claimed, dtype=np.int32).reshape(-1, len(self.problem.space.knobs))

    def _lost(self, run: RunLedger, claim: Claim) -> set[bytes]:
        """Configs that were claimed by others after this claim: it was believed dead."""
        lost: set[bytes] = set()
        since = False
        for record in self._records(run, "claim"):
            if since:
                lost |= {np.array(config, np.int32).tobytes() for config in record["configs"]}
            since = since or record["claim"] == claim.id
        return lost

    def _own(self, record: Record) -> bool:
        return bool(record["worker"] == self.worker)

    def _records(self, run: RunLedger, kind: str) -> list[Record]:
        return [record for record in run.records() if record["kind"] == kind]

    def _run(self, ledger: Ledger) -> RunLedger:
        return ledger.run(self.problem.workload.id, self.target.fingerprint, RUN)


@contextmanager
def _turn(path: Path) -> Iterator[Ledger]:
    """The ledger, as soon as the others let go of it."""
    deadline = time.monotonic() + TURN_SECONDS
    rng = np.random.default_rng()
    while True:
        try:
            ledger = Ledger(path)
            break
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(float(rng.uniform(0.002, 0.02)))
    with ledger:
        yield ledger


def _rows(measured: Measurements, which: NDArray[np.int64]) -> Measurements:
    return Measurements(
        measured.status[which], measured.reason[which], measured.cycles[which],
        measured.seconds[which], {name: v[which] for name, v in measured.counters.items()},
    )  # fmt: skip
