"""Sums up a comparison's leaderboard in as few figures as a reader keeps in mind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.evaluation.compare.leaderboard import LeaderboardRow, Results, relative_trials

YARDSTICK = "autotvm"
"""The tuner that others are told as a share of: what TVM's users have."""
RIVALS = 3


@dataclass(frozen=True)
class RelativeTrials:
    """The winner's trials to the goal as a share of the yardstick's; only a bound from above if
    the yardstick has runs that never came there."""

    yardstick: str
    share: float
    at_most: bool


@dataclass(frozen=True)
class ComparisonVerdict:
    """The best tuner, the few that come next, and how the best compares with the yardstick: None
    where that took no part or is the best itself."""

    best: LeaderboardRow
    rivals: tuple[LeaderboardRow, ...]
    relative: RelativeTrials | None


def verdict(results: Results, rows: Sequence[LeaderboardRow]) -> ComparisonVerdict:
    """Of `rows` of the leaderboard, best first. Raises `ValueError` if there are none."""
    best, *others = rows
    relative = None
    if YARDSTICK in results.tuners and best.tuner != YARDSTICK:
        always = bool(results.reached[results.tuners.index(YARDSTICK)].all())
        share = relative_trials(results, best.tuner, YARDSTICK)
        relative = RelativeTrials(YARDSTICK, share, at_most=not always)
    return ComparisonVerdict(best, tuple(others[:RIVALS]), relative)
