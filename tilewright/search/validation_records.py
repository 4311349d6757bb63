"""Validation measurements, which determine a run's final choice on noisy targets.

If measurements vary, the best configs of a run are measured again before one of them is chosen. The
trial store keeps these validation measurements separately from the trials, so that a finished
choice is not repeated when a run is resumed. They do not count as trials, and no model learns from
them. Each measurement belongs to one choice, whose name includes the compared configs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.search.round_steps import Trial

TRIAL = "trial"
"""Value of `ValidationMeasurement.source` for a schedule that is one of the trials."""


@dataclass(frozen=True)
class ValidationMeasurement:
    """One validation measurement of one schedule.

    Attributes:
        block: index of the block, a series of turns.
        turn: index of the turn within the block. In a turn, every schedule is measured once.
        slot: index of the schedule among the compared schedules.
        source: origin of the schedule, as in `tuning.results.Schedule`.
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
