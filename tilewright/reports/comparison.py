"""Writes `report.html` of a comparison: the verdict, the leaderboard, and tables of tuners and
workloads, coloured from good to bad. The verdict reads the same in the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.core.files import write_atomically
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.comparison import Comparison
from tilewright.evaluation.compare.ground_truth import space_facts
from tilewright.evaluation.compare.leaderboard import (
    ConfidenceInterval,
    Floats,
    LeaderboardRow,
    Results,
)
from tilewright.evaluation.compare.plan import GOAL, ComparisonPlan
from tilewright.evaluation.compare.summary import ComparisonVerdict, RelativeTrials, verdict
from tilewright.reports import comparison_plots as plots
from tilewright.reports.comparison_plots import FLOOR
from tilewright.reports.number_format import count, duration, percent, plural, ranged
from tilewright.reports.plot_style import heat, house_style, line_styles
from tilewright.reports.templates import render


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
    """Return a row per tuner, best first, with the cells of the terminal's table."""
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


_WORST_SHOWN = 1.0  # regret from which a cell is as red as it gets


@dataclass(frozen=True)
class HeatCell:
    """A figure as text on a colour, and whether it is the best of its workload, or as good."""

    text: str
    best: bool
    ground: str
    ink: str


@dataclass(frozen=True)
class HeatMap:
    """A title, and for each tuner, best first, its name and a cell a workload."""

    title: str
    lines: list[tuple[str, list[HeatCell]]]


def heat_maps(results: Results, rows: Sequence[LeaderboardRow]) -> list[HeatMap]:
    """Regret, trials to the goal, and the invalid share of the trials; medians over seeds, but for
    the share, which is of all seeds' trials."""
    regret = np.median(results.regret[..., -1], axis=2)
    trials = np.median(results.trials_to_goal, axis=2)
    never = np.median(results.reached, axis=2) < 0.5
    share = results.invalid[..., -1].sum(axis=2) / results.spent.sum(axis=2)

    def trials_text(k: int, w: int) -> str:
        return f"> {results.trials}" if never[k, w] else count(trials[k, w])

    def trials_warmth(number: float) -> float:
        return float(np.log(max(number, 1)) / np.log(max(results.trials, 2)))

    return [
        HeatMap(
            f"Regret after {results.trials} trials, median over seeds",
            _lines(results, rows, regret, _regret_warmth, lambda k, w: percent(regret[k, w])),
        ),
        HeatMap(
            f"Trials to come within {percent(GOAL)}, median over seeds",
            _lines(results, rows, np.where(never, np.inf, trials), trials_warmth, trials_text),
        ),
        HeatMap(
            "Invalid share of the trials",
            _lines(results, rows, share, lambda part: part, lambda k, w: percent(share[k, w])),
        ),
    ]


def _lines(
    results: Results,
    rows: Sequence[LeaderboardRow],
    figures: Floats,
    warmth: Callable[[float], float],
    text: Callable[[int, int], str],
) -> list[tuple[str, list[HeatCell]]]:
    """Of `figures` (tuners, workloads), lower is better. `warmth` is 0 good to 1 bad."""
    lines = []
    best = figures.min(axis=0) + 1e-9
    for row in rows:
        k = results.tuners.index(row.tuner)
        cells = []
        for w, figure in enumerate(figures[k].tolist()):
            ground, ink = heat(warmth(figure))
            cells.append(
                HeatCell(text(k, w), bool(np.isfinite(figure) and figure <= best[w]), ground, ink)
            )
        lines.append((row.tuner, cells))
    return lines


def _regret_warmth(regret: float) -> float:
    """0 at a tenth of a percent, 1 at `_WORST_SHOWN`, even on a log scale."""
    low = np.log(FLOOR)
    return float((np.log(max(regret, FLOOR)) - low) / (np.log(_WORST_SHOWN) - low))


REPORT = "report.html"


def write_report(comparison: Comparison, folder: Path) -> None:
    """Write `report.html` into `folder`. Raises `OSError`."""
    write_atomically(folder / REPORT, report(comparison))


def report(comparison: Comparison) -> bytes:
    """The page, in UTF-8. Opens the tables of all workloads, for the facts of their spaces."""
    plan, results, rows = comparison.plan, comparison.results, comparison.leaderboard
    test_bed = plan.test_bed
    facts = [space_facts(name, test_bed.table(name)) for name, _ in test_bed.workloads]
    said = verdict(results, rows)
    with house_style():
        pictures = {
            "convergence": plots.convergence(results),
            "final_regret": plots.final_regret(results, rows),
            "invalid_trials": plots.invalid_trials(results),
            "attempts": plots.attempts(results, rows),
            "seconds": plots.seconds(results, rows),
        }
        if len(facts) > 1:
            titles = [each.title for each in facts]
            pictures["by_workload"] = plots.convergence_by_workload(results, titles)
    return render(
        "comparison.html.jinja",
        title=f"Tuners on {test_bed.target}" + f", {test_bed.space} space" * bool(test_bed.space),
        plan=plan,
        goal=percent(GOAL),
        best=said.best.tuner,
        verdict=spoken(said),
        lines=dict(zip(results.tuners, line_styles(results.tuners), strict=True)),
        invalid_note=invalid_note(rows),
        leaderboard=rows,
        columns=leaderboard_columns(rows),
        pictures=pictures,
        attempts=plots.ATTEMPTS,
        heat_maps=heat_maps(results, rows),
        facts=facts,
        counted=all(each.optimum.cycles > 0 for each in facts),
        options=_options(plan),
        live=isinstance(test_bed, EnumeratedTestBed) and test_bed.live,
    )


def _options(plan: ComparisonPlan) -> list[tuple[str, str]]:
    """Each tuner with its options, those left at their defaults too."""
    return [
        (
            config.label,
            ", ".join(
                f"{name} = {value}"
                for name, value in config.explorer.options.model_dump(mode="json").items()
            )
            or "none",
        )
        for config in plan.tuner_configs
    ]
