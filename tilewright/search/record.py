"""Keeps the trials of a run: a `Record` of one writer here, one that processes share in
`search.shared_ledger`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.search.round_steps import Batch, Known
from tilewright.search.run_ledger import FinishedRound, RunLedger
from tilewright.search.setting import Setting
from tilewright.search.validation_records import (
    ValidationMeasurement,
    forget_validation,
    keep_validation,
    validation_of,
)
from tilewright.targets.base import Configs, Measurements


class Record(Protocol):
    """Where the trials of a run are kept, and where those of others come from.

    `claim` and `settle`, and what is asked before them, happen in a `turn`. `problems` tells what
    was found in it that cannot be of this problem, and was set aside.
    """

    problems: list[str]

    def turn(self) -> AbstractContextManager[None]:
        """Within, nobody else changes the record. Raises `LeaseHeld` if it stays taken."""

    def news(self, first: int, trials: int) -> list[FinishedRound]:
        """The rounds from index `first` on that are over; no more of them than hold `trials`."""

    def pending(self) -> Configs | None:
        """What others are measuring now, shape (p, knobs); None if there are no others."""

    def known(self) -> Known:
        """What need not be measured again."""

    def claim(self, batch: Batch) -> None:
        """Say that this batch is ours to measure."""

    def settle(
        self, index: int, batch: Batch, measured: Measurements
    ) -> tuple[int, NDArray[np.int64]]:
        """Append a measured batch; returns the index of its round, `index` if nobody was faster,
        and the rows that counted, shape (at most rows,)."""

    def correct(self, measured: Known) -> int:
        """Put what trials measure now in the place of what was recorded; returns of how many. In
        no `turn`."""

    def fresh(self, choice: str) -> list[ValidationMeasurement]:
        """What was measured for a choice, beside the trials. This and what follows in no `turn`."""

    def keep_validation(self, choice: str, found: Sequence[ValidationMeasurement]) -> None:
        """Add to that."""

    def forget_validation(self, choice: str) -> None:
        """Set it aside."""


class SoloRecord:
    """One writer, and a ledger or none."""

    def __init__(self, setting: Setting, run: RunLedger | None) -> None:
        self.setting = setting
        self.run = run
        self.problems = [] if run is None else run.vet(setting.problem.space)
        self._asked = False

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def news(self, first: int, trials: int) -> list[FinishedRound]:
        if self.run is None or self._asked:
            return []
        self._asked = True
        return take_rounds(self.run.finished(), first, trials)

    def pending(self) -> Configs | None:
        return None

    def known(self) -> Known:
        if self.run is None:
            return {}
        others = self.setting.target.deterministic
        return self.run.known(self.setting.problem.space, of_others=others)

    def claim(self, batch: Batch) -> None:
        pass

    def settle(
        self, index: int, batch: Batch, measured: Measurements
    ) -> tuple[int, NDArray[np.int64]]:
        if self.run is not None:
            self.run.append(self.setting.problem.space, index, batch, measured)
        return index, np.arange(len(measured))

    def correct(self, measured: Known) -> int:
        if self.run is None:
            return 0
        others = self.setting.target.deterministic
        return self.run.correct(self.setting.problem.space, measured, of_others=others)

    def fresh(self, choice: str) -> list[ValidationMeasurement]:
        return [] if self.run is None else validation_of(self.run, choice)

    def keep_validation(self, choice: str, found: Sequence[ValidationMeasurement]) -> None:
        if self.run is not None:
            keep_validation(self.run, choice, found)

    def forget_validation(self, choice: str) -> None:
        if self.run is not None:
            forget_validation(self.run, choice)


def take_rounds(finished: Iterable[FinishedRound], first: int, trials: int) -> list[FinishedRound]:
    """The rounds from index `first` on, until they hold so many trials."""
    found, held = [], 0
    for done in finished:
        if held >= trials:
            break
        if done.index >= first:
            found.append(done)
            held += len(done.configs)
    return found
