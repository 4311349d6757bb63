"""Makes the final choice of a run (`tuning.final_validation`) and records it.

A finished choice is not repeated when the run is. But its schedule is timed once more, as every
recorded winner is (`tuning.verification`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.search import StoredRun
from tilewright.search.events import Listener, Note
from tilewright.search.explorer import History
from tilewright.search.round_steps import Trial, trial_at
from tilewright.search.validation_records import TRIAL, ValidationMeasurement
from tilewright.tuning.final_validation import (
    Bench,
    FinalChoice,
    choice_name,
    choose_validated,
    is_block,
    leaders_of,
)
from tilewright.tuning.results import Schedule
from tilewright.tuning.tuning_task import TuningTask
from tilewright.tuning.verification import latency_of_trial, reproduces


class NotMeasured(Exception):
    """There is no record of a part of a choice."""


class ChoiceRecords:
    """The choice among the `count` fastest trials of a history and the baseline; `record`
    is where its measurements are kept."""

    def __init__(
        self,
        study: TuningTask,
        record: StoredRun,
        history: History,
        baseline: Schedule | None,
        count: int,
    ) -> None:
        self.study = study
        self.record = record
        self.baseline = baseline
        self.leaders = leaders_of(study, history, count)
        self.name = choice_name(self.leaders, baseline, len(history))

    def held(self) -> FinalChoice | None:
        """The choice as it was recorded; None if it was not made, or not to its end."""
        try:
            return choose_validated(self.leaders, self.baseline, self._bench(_measures_nothing))
        except NotMeasured:
            return None

    def make(self, measure: Bench) -> FinalChoice:
        """Make it, or what is not recorded of it. Raises what `measure` and the record raise."""
        return choose_validated(self.leaders, self.baseline, self._bench(measure))

    def confirmed(self, held: FinalChoice, timed: dict[int, Trial]) -> bool:
        """Whether what is recorded of the chosen schedule may be true, by a measurement now, which
        is added to `timed` if it is of a trial. If not, the choice is to be made again: its
        records are set aside."""
        chosen = held.chosen
        if chosen is None:
            return True
        now = None if self.baseline is None else self.baseline.latency  # it was measured just now
        if chosen.source == TRIAL:
            config = np.array([chosen.config], dtype=np.int32)
            measured = self.study.target.measure(
                self.study.target.lower(self.study.workload, config)
            )
            flat = int(self.study.problem.space.ravel(config)[0])
            timed[flat] = trial_at(measured, 0)
            now = latency_of_trial(timed[flat])
        if now is not None and reproduces(self.study.target, chosen.latency, now):
            return True
        self.record.forget_validations(self.name)
        return False

    def _bench(self, measure: Bench) -> Bench:
        """Gives what is recorded, block by block, and measures from the first on that is not whole:
        nothing that follows it can have been measured."""
        held = self.record.validations(self.name)

        def bench(
            block: int, contenders: Sequence[Schedule], turns: int
        ) -> Sequence[ValidationMeasurement]:
            found = [each for each in held if each.block == block]
            if is_block(found, contenders, turns):
                return found
            held.clear()
            made = measure(block, contenders, turns)
            self.record.add_validations(self.name, made)
            return made

        return bench


def held_choice(
    choice: ChoiceRecords, timed: dict[int, Trial], emit: Listener
) -> FinalChoice | None:
    """The final choice of an earlier command, if it made one of the same trials that still holds;
    `timed` gathers what was measured to see that."""
    held = choice.held()
    if held is None or choice.confirmed(held, timed):
        return held
    study = choice.study
    emit(
        Note(
            f"{study.workload}: the final choice was recorded with another latency than "
            f"{study.target_name} gives now; set aside, and made again"
        )
    )
    return None


def _measures_nothing(
    block: int, contenders: Sequence[Schedule], turns: int
) -> Sequence[ValidationMeasurement]:
    raise NotMeasured
