"""Lets several processes tune one workload through one ledger, without making a trial twice.

Each takes turns at the ledger for moments. It reads what the others have found, proposes a batch
that none of them has tried or claimed, and writes the claim down. Measuring happens in parallel;
then the trials are appended in one write that settles the claim. A claim holds as long as its
process lives, at most `claim_seconds`. A process that returns later than that loses what others
have claimed since. A dead process's claims are free again: the others make those trials.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tilewright.search.file_lock import LeaseHeld, remaining, stamp
from tilewright.search.ledger import Ledger
from tilewright.search.ledger_schema import ClaimEntry, SettledEntry
from tilewright.search.record import take_rounds
from tilewright.search.round_steps import Batch, Known
from tilewright.search.run_ledger import FinishedRound, RunKey, RunLedger
from tilewright.search.setting import Setting
from tilewright.search.validation_records import (
    ValidationMeasurement,
    forget_validation,
    keep_validation,
    validation_of,
)
from tilewright.targets.base import Configs, Measurements

CLAIM_SECONDS = 600.0
TURN_SECONDS = 600.0


def shared_key(key: RunKey) -> RunKey:
    """What the ledger files a run under that processes share: another than the one that a single
    process makes with the same settings, and which can be repeated trial by trial."""
    workload, target, run = key
    return workload, target, f"{run}-shared"


class SharedRecord:
    """A record for one of several processes; implements `search.record.Record`."""

    def __init__(
        self, setting: Setting, path: Path, key: RunKey, claim_seconds: float = CLAIM_SECONDS
    ) -> None:
        self.setting = setting
        self.path = path
        self.key = key
        self.claim_seconds = claim_seconds
        self.problems: list[str] = []
        self._claim = ""
        self._vetted = 0
        self._open: RunLedger | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        with _turn(self.path) as ledger:
            self._open = ledger.run(self.key)
            self.problems += self._open.vet(self.setting.problem.space, self._vetted)
            self._vetted = len(ledger.records)
            try:
                yield
            finally:
                self._open = None

    def news(self, first: int, trials: int) -> list[FinishedRound]:
        return take_rounds(self._run.finished(), first, trials)

    def pending(self) -> Configs:
        settled = self._run.settled()
        claimed = [
            config
            for record in self._run.claims()
            if record["claim"] not in settled and remaining(record, self.claim_seconds) > 0
            for config in record["configs"]
        ]
        knobs = len(self.setting.problem.space.knobs)
        return np.array(claimed, dtype=np.int32).reshape(-1, knobs)

    def correct(self, measured: Known) -> int:
        with self.turn():
            others = self.setting.target.deterministic
            return self._run.correct(self.setting.problem.space, measured, of_others=others)

    def fresh(self, choice: str) -> list[ValidationMeasurement]:
        with self.turn():
            return validation_of(self._run, choice)

    def keep_validation(self, choice: str, found: Sequence[ValidationMeasurement]) -> None:
        with self.turn():
            keep_validation(self._run, choice, found)

    def forget_validation(self, choice: str) -> None:
        with self.turn():
            forget_validation(self._run, choice)

    def known(self) -> Known:
        others = self.setting.target.deterministic
        return self._run.known(self.setting.problem.space, of_others=others)

    def claim(self, batch: Batch) -> None:
        self._claim = uuid.uuid4().hex
        about = {"claim": self._claim, "configs": batch.rows.configs.tolist()}
        record = {"kind": "claim", **self._run.key, **about, **stamp(self.claim_seconds)}
        self._run.ledger.append([cast(ClaimEntry, record)])

    def settle(
        self, index: int, batch: Batch, measured: Measurements
    ) -> tuple[int, NDArray[np.int64]]:
        index = sum(1 for _ in self._run.finished())
        lost = self._lost()
        keep = np.flatnonzero([row.tobytes() not in lost for row in batch.rows.configs])
        settled: SettledEntry = {
            "kind": "settled", **self._run.key, "claim": self._claim, "kept": len(keep),
        }  # fmt: skip
        if len(keep):
            scores = {role: each[keep] for role, each in batch.scores.items()}
            kept = Batch(batch.rows.rows(keep), scores, batch.failed, batch.lowered)
            space = self.setting.problem.space
            self._run.append(space, index, kept, measured.rows(keep), [settled])
        else:
            self._run.ledger.append([settled])
        return index, keep

    def _lost(self) -> set[bytes]:
        """Configs that were claimed by others after our claim: it was believed dead."""
        lost: set[bytes] = set()
        since = False
        for record in self._run.claims():
            if since:
                lost |= {np.array(config, np.int32).tobytes() for config in record["configs"]}
            since = since or record["claim"] == self._claim
        return lost

    @property
    def _run(self) -> RunLedger:
        assert self._open is not None, "outside of a turn"
        return self._open


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
