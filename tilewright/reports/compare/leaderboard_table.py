"""Writes the leaderboard as a table on a page: a line a tuner, the best figure of a column bold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.evaluation.compare.leaderboard import ConfidenceInterval, LeaderboardRow
from tilewright.evaluation.compare.plan import GOAL
from tilewright.reports.number_format import count, duration, percent, ranged

LOW, HIGH, NEITHER = 1.0, -1.0, 0.0
"""Which figures of a column are good."""


@dataclass(frozen=True)
class TableCell:
    """A figure as text, whether it is the best of its column, and its 95 % interval, which is empty
    where both ends read the same. `bound` if the figure is only a lower bound."""

    text: str
    best: bool
    around: str
    bound: bool


@dataclass(frozen=True)
class Column:
    """A heading of one or two lines, and a cell a tuner, best tuner first."""

    heading: tuple[str, ...]
    cells: list[TableCell]


def leaderboard_columns(rows: Sequence[LeaderboardRow]) -> list[Column]:
    """The columns behind the tuner's name, for `rows` of the leaderboard, best first."""
    goal = percent(GOAL)
    return [
        _column(("regret",), rows, lambda row: row.regret, percent),
        _column(("runs within", goal), rows, lambda row: _exact(row.reached), percent, HIGH),
        _column(("trials", f"to {goal}"), rows, lambda row: row.trials, count, bounded=True),
        _column(("first at", "trial"), rows, lambda row: row.first_within, count, bounded=True),
        _column(("invalid", "until then"), rows, lambda row: row.invalid, count),
        _column(("invalid", "share"), rows, lambda row: row.invalid_share, percent),
        _column(("compiles", f"to {goal}"), rows, lambda row: row.compiled, count, bounded=True),
        _column(("failed", "compiles"), rows, lambda row: row.failed, count, NEITHER),
        _column(("time",), rows, lambda row: _exact(row.seconds.middle), duration),
        _column(
            ("time", f"to {goal}"), rows, lambda row: _exact(row.seconds_to_goal.middle), duration
        ),
        *_stack_column(rows, goal),
        _column(("worst", "workload"), rows, lambda row: _exact(row.worst[1]), percent),
    ]


def leaderboard_rows(board: Sequence[LeaderboardRow]) -> list[dict[str, str]]:
    """A row a tuner, best first."""
    columns = leaderboard_columns(board)
    return [
        {"tuner": row.tuner}
        | {" ".join(column.heading): column.cells[place].text for column in columns}
        for place, row in enumerate(board)
    ]


def _stack_column(rows: Sequence[LeaderboardRow], goal: str) -> list[Column]:
    """Only where a table says what its stack took."""
    if not any(row.stack_to_goal.middle for row in rows):
        return []
    heading = ("real time", f"to {goal}")
    return [_column(heading, rows, lambda row: _exact(row.stack_to_goal.middle), duration)]


def _column(
    heading: tuple[str, ...],
    rows: Sequence[LeaderboardRow],
    figure_of: Callable[[LeaderboardRow], ConfidenceInterval],
    form: Callable[[float], str],
    good: float = LOW,
    bounded: bool = False,
) -> Column:
    """`bounded` if a run that never reached the goal makes the figure a bound."""
    shown = [figure_of(row) for row in rows]
    best = min(good * each.middle for each in shown)
    marked = good != NEITHER and len(rows) > 1 and math.isfinite(best)
    cells = [
        TableCell(
            text=form(each.middle),
            best=marked and good * each.middle <= best,
            around=ranged(each, form),
            bound=bounded and row.reached < 1,
        )
        for row, each in zip(rows, shown, strict=True)
    ]
    return Column(heading, cells)


def _exact(number: float) -> ConfidenceInterval:
    return ConfidenceInterval(number, number, number)
