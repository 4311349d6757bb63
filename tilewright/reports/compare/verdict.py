"""Words the verdict of a comparison, the same on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.evaluation.compare.leaderboard import ConfidenceInterval, LeaderboardRow
from tilewright.evaluation.compare.plan import GOAL
from tilewright.evaluation.compare.summary import ComparisonVerdict, RelativeTrials
from tilewright.reports.number_format import count, percent, plural


def spoken(verdict: ComparisonVerdict) -> str:
    """What is said of the best tuner, to be put behind its name. Plain text."""
    best = verdict.best
    text = (
        f"ends {_distance(best.regret)} the optimum and is within {percent(GOAL)} of it in "
        f"{percent(best.reached)} of its runs, after {count(best.trials.middle)} "
        f"{plural(best.trials.middle, 'trial')}."
    )
    if verdict.rivals:
        rivals = (
            f"{row.tuner} {count(row.trials.middle)} ({percent(row.reached)} of runs)"
            for row in verdict.rivals
        )
        text += f" Next: {', '.join(rivals)}."
    return text + _relative(verdict.relative)


def invalid_note(rows: Sequence[LeaderboardRow]) -> str:
    """Of `rows` of the leaderboard: when a run's invalid trials fall, for their share alone does
    not rank tuners. Plain text."""
    said = ", ".join(
        f"{row.tuner} {percent(row.invalid_share.middle)} ({count(row.invalid.middle)})"
        for row in rows
    )
    return (
        f"Invalid share of all trials, and how many of them came before the first schedule within "
        f"{percent(GOAL)}: {said}. Trials after that change little in the result: a tuner may have "
        "a larger share than random and still need fewer trials."
    )


def _distance(regret: ConfidenceInterval) -> str:
    if regret.middle == 0:
        return "at"
    if regret.middle == float("inf"):
        return "without a valid schedule, infinitely far from"
    return f"{percent(regret.middle)} above"


def _relative(relative: RelativeTrials | None) -> str:
    if relative is None:
        return ""
    most = "at most " if relative.at_most else ""
    return (
        f" That is {most}{percent(relative.share)} of the trials that {relative.yardstick} needs."
    )
