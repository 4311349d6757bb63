"""Validation measurements on a target that does not repeat its figures.

They measure configs that a run may choose, and the one that it chose. The trial store keeps them
beside the trials, so that a finished choice is not repeated. They are no trials and train no model.
Each belongs to one choice, whose name includes the configs that it is among.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.search.round_steps import Trial

TRIAL = "trial"
"""The source of a schedule that is one of the trials."""


@dataclass(frozen=True)
class ValidationMeasurement:
    """A validation measurement.

    Attributes:
        block: block of turns that it belongs to.
        turn: turn within the block.
        slot: place among the schedules that are measured in turn.
        source: where the schedule is from, as in `tuning.results.Schedule`.
        config: config of the schedule.
        trial: what was measured.
        took: seconds that measuring took.
    """

    block: int
    turn: int
    slot: int
    source: str
    config: tuple[int, ...]
    trial: Trial
    took: float
