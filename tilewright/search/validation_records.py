"""Validation measurements of a run's final choice, on targets whose measurements vary.

They measure the configs among which a run chooses, and the chosen config. The trial store keeps
them separately from the trials, so that a finished choice is not repeated. They do not count as
trials and train no model. Each belongs to one choice, whose name includes its configs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.search.round_steps import Trial

TRIAL = "trial"
"""Source of a schedule that is one of the trials."""


@dataclass(frozen=True)
class ValidationMeasurement:
    """One validation measurement.

    Attributes:
        block: index of the block of turns.
        turn: index of the turn within the block.
        slot: position among the schedules that are measured in turn.
        source: where the schedule comes from, as in `tuning.results.Schedule`.
        config: config of the schedule.
        trial: the measurement.
        took: duration of the measurement in seconds.
    """

    block: int
    turn: int
    slot: int
    source: str
    config: tuple[int, ...]
    trial: Trial
    took: float
