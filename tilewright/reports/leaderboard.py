"""Leaderboards as text: the table and the verdict, for the terminal, pages, Prefect and MLflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.evaluation.compare.leaderboard import (
    OPTIMUM,
    ConfidenceInterval,
    Leaderboard,
    LeaderboardRow,
    RelativeTrials,
)
from tilewright.evaluation.compare.plan import GOAL
from tilewright.reports.markdown import Row, mark_text, with_known
from tilewright.reports.number_format import (
    count,
    count_text,
    duration,
    interval_text,
    milliseconds,
    percent,
    pluralise,
    speedup,
)
from tilewright.tuning.gains import RULE

LOW, HIGH, NEITHER = 1.0, -1.0, 0.0
"""Direction of a column: lower is better, higher is better, or neither."""
RIVALS = 3
"""Maximum number of tuners that a verdict names after the best tuner."""


@dataclass(frozen=True)
class TableCell:
    """Cell of a leaderboard: a tuner's result in one column, as text.

    Attributes:
        text: the result.
        best: True if no other tuner has a better result in this column.
        around: the 95 % interval; empty if both ends have the same text or the column shows no
            intervals.
        bound: True if the result is only a lower bound.
    """

    text: str
    best: bool = False
    around: str = ""
    bound: bool = False


@dataclass(frozen=True)
class Column:
    """Column of a leaderboard, with one cell per tuner.

    Attributes:
        heading: the heading, split into one or two lines.
        cells: the cells, best tuner first.
        inline: True if plain-text tables also show the intervals of this column.
    """

    heading: tuple[str, ...]
    cells: list[TableCell]
    inline: bool = False

    def text(self, place: int) -> str:
        """Return a cell as plain text.

        Args:
            place: index of the cell, which is the index of the tuner.
        """
        cell = self.cells[place]
        bound = "≥" if cell.bound else ""
        return f"{bound}{cell.text} {cell.around * self.inline}".rstrip()


@dataclass(frozen=True)
class _Figure:
    """Definition of a leaderboard column.

    Attributes:
        heading: the heading, split into one or two lines.
        field: name of the field in `LeaderboardRow` that the column shows.
        form: function that converts a number to text.
        good: `LOW` if low numbers are better, `HIGH` if high numbers are better, or `NEITHER`.
        bounded: True if the number is only a lower bound for a tuner with runs that did not reach
            the goal.
        exact: True if the column shows no intervals.
        inline: True if plain-text tables also show the intervals of this column.
    """

    heading: tuple[str, ...]
    field: str
    form: Callable[[float], str]
    good: float = LOW
    bounded: bool = False
    exact: bool = False
    inline: bool = False


_GOAL = percent(GOAL)
_FIGURES = (
    _Figure(("regret",), "regret", percent),
    _Figure(("within", _GOAL), "within_goal", percent, HIGH),
    _Figure(("trials", f"to {_GOAL}"), "trials_to_goal", count, bounded=True, inline=True),
    _Figure(("first at", "trial"), "first_within", count, bounded=True),
    _Figure(("invalid", "until then"), "invalid_to_goal", count),
    _Figure(("gain",), "gain", lambda gain: speedup(gain, 1.0), HIGH),
    _Figure(("cycles",), "tuned_cycles", lambda cycles: f"{cycles:,.0f}"),
    _Figure(("ms",), "tuned_seconds", milliseconds),
    _Figure(("invalid", "share"), "invalid_share", percent),
    _Figure(("compiles", f"to {_GOAL}"), "compiles_to_goal", count, bounded=True),
    _Figure(("failed", "compiles"), "failed_compiles", count, NEITHER),
    _Figure(("time",), "wall_seconds", duration, exact=True),
    _Figure(("time", f"to {_GOAL}"), "seconds_to_goal", duration, exact=True),
    _Figure(("real time", f"to {_GOAL}"), "stack_seconds_to_goal", duration, exact=True),
    _Figure(("worst", "workload"), "worst_regret", percent, exact=True),
)
"""The columns of every leaderboard. Columns without any value are left out."""
_FASTEST = ("fastest", "on")
BROKEN_HEADINGS = {
    " ".join(heading): "\n".join(heading)
    for heading in (*(figure.heading for figure in _FIGURES), _FASTEST)
}
"""Headings of the columns with line breaks, by the heading in one line."""


def leaderboard_columns(board: Leaderboard) -> list[Column]:
    """Return the columns of a leaderboard, without the tuners' names and without empty columns."""
    columns = [Column(figure.heading, _cells(figure, board), figure.inline) for figure in _FIGURES]
    fastest = [TableCell(f"{row.fastest_on} of {row.seeds}") for row in board.tuners]
    columns.append(Column(_FASTEST, fastest))
    return [column for column in columns if any(cell.text for cell in column.cells)]


def leaderboard_rows(boards: Sequence[Leaderboard]) -> list[Row]:
    """Return leaderboards as one table with one row per tuner of each leaderboard.

    If there are several leaderboards, additional columns contain the network and the target.

    Args:
        boards: the leaderboards.

    Returns:
        The rows. Within a leaderboard, the best tuner comes first.
    """
    rows = []
    for board in boards:
        where = {"network": board.network, "target": board.target} if len(boards) > 1 else {}
        columns = leaderboard_columns(board)
        rows += [
            where
            | {"tuner": row.tuner}
            | {" ".join(column.heading): column.text(k) for column in columns}
            | {"": "wins" if row.tuner == winner(board) else ""}
            for k, row in enumerate(board.tuners)
        ]
    heads = dict.fromkeys(head for row in rows for head in row)
    return with_known([{head: row.get(head, "") for head in heads} for row in rows])


def winner(board: Leaderboard) -> str | None:
    """Return the tuner that alone holds the first place of a leaderboard.

    The result is None if several tuners share the first place, or if there is only one tuner.
    """
    alone = len(board.winners) == 1 and len(board.tuners) > 1
    return board.winners[0] if alone else None


def _cells(figure: _Figure, board: Leaderboard) -> list[TableCell]:
    shown = [_interval(figure.field, row, board) for row in board.tuners]
    known = [figure.good * item.middle for item in shown if item is not None]
    best = min(known, default=math.inf)
    comparable = figure.good != NEITHER and len(board.tuners) > 1 and math.isfinite(best)
    mark = _mark(board.baseline) if figure.field == "gain" else ""
    return [
        TableCell("")
        if item is None
        else TableCell(
            text=mark_text(mark, figure.form(item.middle)),
            best=comparable and figure.good * item.middle <= best,
            around="" if figure.exact else interval_text(item, figure.form),
            bound=figure.bounded and (row.within_goal or 0) < 1,
        )
        for row, item in zip(board.tuners, shown, strict=True)
    ]


def _interval(name: str, row: LeaderboardRow, board: Leaderboard) -> ConfidenceInterval | None:
    """Return the median and the 95 % interval of a tuner's result, or None if it is unknown.

    For a tuner that found no valid schedule, the regret is infinite and not unknown.

    Args:
        name: name of the result: a field of `LeaderboardRow`.
        row: row of the tuner.
        board: leaderboard of the tuner.
    """
    interval = row.interval(name)
    if interval is None and board.baseline == OPTIMUM and name in ("regret", "worst_regret"):
        return ConfidenceInterval(math.inf, math.inf, math.inf)
    return interval


def _mark(baseline: str) -> str:
    """Return the mark "~" for gains over an inexact baseline; "" for the rule or the optimum.

    Args:
        baseline: name of the schedules that gains are relative to.
    """
    return "" if baseline in (RULE, OPTIMUM) else "~"


# -- the verdict -----------------------------------------------------------------------------------


def verdict(board: Leaderboard) -> str:
    """Return a short plain text about which tuner of a leaderboard is best, and by how much."""
    where = f"{board.network} on {board.target}"
    if not board.winners:
        return f"{where}: no tuner found a valid schedule for every layer"
    if board.baseline == OPTIMUM:
        return f"{where}: {board.tuners[0].tuner} {_distance_verdict(board)}"
    message = f"{where}: {' and '.join(board.winners)}"
    best = winner(board)
    if len(board.tuners) > 1:
        message += " wins" if best else " are equal"
    if gain := speedup(board.tuners[0].gain, 1.0):
        message += (
            f", median gain {mark_text(_mark(board.baseline), gain)} over the {board.baseline}"
        )
    if best:
        first = board.tuners[0]
        message += f", fastest on {first.fastest_on} of {count_text(first.seeds, 'seed')}"
    return message


def _distance_verdict(board: Leaderboard) -> str:
    """Return sentences about how close to the optimum the best tuner came, after how many trials.

    The next tuners are mentioned for comparison. If the number of trials relative to a reference
    tuner is known, a last sentence states it.

    Args:
        board: leaderboard of a comparison on workloads, whose optimum is known.
    """
    best, *others = board.tuners
    trials = best.trials_to_goal or 0.0
    text = (
        f"ends {_distance(best)} the optimum and is within {_GOAL} of it in "
        f"{percent(best.within_goal or 0.0)} of its runs, after {count(trials)} "
        f"{pluralise(trials, 'trial')}."
    )
    if others:
        rivals = (
            f"{row.tuner} {count(row.trials_to_goal or 0.0)} ({percent(row.within_goal or 0.0)} "
            "of runs)"
            for row in others[:RIVALS]
        )
        text += f" Next: {', '.join(rivals)}."
    return text + _relative(board.relative)


def _distance(row: LeaderboardRow) -> str:
    return "at" if row.regret == 0 else f"{percent(row.regret or 0.0)} above"


def _relative(relative: RelativeTrials | None) -> str:
    if relative is None:
        return ""
    most = "at most " if relative.at_most else ""
    return (
        f" That is {most}{percent(relative.share)} of the trials that {relative.yardstick} needs."
    )
