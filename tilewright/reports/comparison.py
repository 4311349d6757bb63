"""Page `report.html` of a comparison on workloads.

The page shows the verdict, the leaderboard, curves, and heat maps of tuners and workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.core.files import write_atomically
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.leaderboard import Floats, LeaderboardRow, Results
from tilewright.evaluation.compare.plan import GOAL, ComparisonPlan
from tilewright.evaluation.compare.workload_comparison import Comparison, space_facts
from tilewright.reports import comparison_plots as plots
from tilewright.reports.comparison_plots import FLOOR
from tilewright.reports.leaderboard import leaderboard_columns, verdict
from tilewright.reports.number_format import count, percent
from tilewright.reports.plot_style import heat, house_style, line_styles
from tilewright.reports.templates import render


def invalid_note(rows: Sequence[LeaderboardRow]) -> str:
    """Return a sentence about the share of invalid trials of each tuner.

    The sentence also states how many of the invalid trials came before the goal was reached. It is
    shown below the leaderboard, because the share of invalid trials alone does not rank tuners.

    Args:
        rows: rows of the leaderboard.
    """
    message = ", ".join(
        f"{row.tuner} {percent(row.invalid_share or 0.0)} ({count(row.invalid_to_goal or 0.0)})"
        for row in rows
    )
    return (
        "Share of invalid trials, and how many of them came before the first schedule "
        f"within {percent(GOAL)} of the optimum: {message}. Later trials have little effect on "
        "the result, so a tuner with a larger share than random search can still need fewer "
        "trials."
    )


_WORST_SHOWN = 1.0  # regret from which a cell has the darkest red


@dataclass(frozen=True)
class HeatCell:
    """Coloured cell of a heat map: the result of one tuner on one workload.

    Attributes:
        text: the result as text.
        best: True if no other tuner has a better result on this workload.
        ground: background colour as `#rrggbb`.
        ink: text colour as `#rrggbb`.
    """

    text: str
    best: bool
    ground: str
    ink: str


@dataclass(frozen=True)
class HeatMap:
    """Table of coloured cells, with one line per tuner and one column per workload.

    Attributes:
        title: title of the table.
        lines: pairs of a tuner's name and its cells, best tuner first.
    """

    title: str
    lines: list[tuple[str, list[HeatCell]]]


def heat_maps(results: Results, rows: Sequence[LeaderboardRow]) -> list[HeatMap]:
    """Return heat maps of the regret, the trials to the goal, and the share of invalid trials.

    The regret and the number of trials are medians over seeds. The share of invalid trials is
    computed from the trials of all seeds together.

    Args:
        results: results of the runs as arrays.
        rows: rows of the leaderboard, best tuner first.

    Returns:
        The three heat maps.
    """
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
            f"Trials until within {percent(GOAL)}, median over seeds",
            _lines(results, rows, np.where(never, np.inf, trials), trials_warmth, trials_text),
        ),
        HeatMap(
            "Share of invalid trials",
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
    """Return the lines of a heat map.

    Args:
        results: results of the runs, which define the order of tuners and workloads.
        rows: rows of the leaderboard, best tuner first.
        figures: numbers that determine the colours, float array of shape (tuners, workloads). Lower
            is better.
        warmth: function that maps a number to a position on the colour scale, from 0 (good) to 1
            (bad).
        text: function that returns the text of a cell, given the index of its tuner and the index
            of its workload.

    Returns:
        Pairs of a tuner's name and its cells, with one cell per workload.
    """
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
    """Return the position of a regret on the colour scale, from 0 (good) to 1 (bad).

    The scale is logarithmic. Regrets of at least `_WORST_SHOWN` are at 1.

    Args:
        regret: the regret: how much slower the best schedule is than the optimum; 0.05 means 5 %.
    """
    low = np.log(FLOOR)
    return float((np.log(max(regret, FLOOR)) - low) / (np.log(_WORST_SHOWN) - low))


REPORT = "report.html"


def write_report(comparison: Comparison, folder: Path) -> None:
    """Write the HTML page of a comparison on workloads to `report.html`.

    Args:
        comparison: the finished comparison.
        folder: folder in which the file is written.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(folder / REPORT, report(comparison))


def report(comparison: Comparison) -> bytes:
    """Render the HTML page of a comparison on workloads.

    This reads the measurement tables of all workloads, because the page shows facts about their
    search spaces.

    Args:
        comparison: the finished comparison.

    Returns:
        The page in UTF-8.
    """
    plan, results, rows = comparison.plan, comparison.results, comparison.leaderboard
    test_bed = plan.test_bed
    facts = [space_facts(name, test_bed.table(name)) for name, _ in test_bed.workloads]
    (board,) = comparison.leaderboards
    with house_style():
        pictures = {
            "convergence": plots.convergence(results),
            "final_regret": plots.final_regret(results, rows),
            "invalid_trials": plots.invalid_trials(results),
            "attempts": plots.attempts(results, rows),
            "seconds": plots.seconds(results, rows),
        }
        if len(facts) > 1:
            titles = [fact.title for fact in facts]
            pictures["by_workload"] = plots.convergence_by_workload(results, titles)
    return render(
        "comparison.html.jinja",
        title=f"Tuners on {test_bed.target}" + f", {test_bed.space} space" * bool(test_bed.space),
        plan=plan,
        goal=percent(GOAL),
        verdict=verdict(board),
        lines=dict(zip(results.tuners, line_styles(results.tuners), strict=True)),
        invalid_note=invalid_note(rows),
        leaderboard=rows,
        columns=leaderboard_columns(board),
        pictures=pictures,
        attempts=plots.ATTEMPTS,
        heat_maps=heat_maps(results, rows),
        facts=facts,
        counted=all(fact.optimum.cycles > 0 for fact in facts),
        options=_options(plan),
        live=isinstance(test_bed, EnumeratedTestBed) and test_bed.live,
    )


def _options(plan: ComparisonPlan) -> list[tuple[str, str]]:
    """Return the options of each tuner, including defaults, for the report.

    Args:
        plan: plan of the comparison.

    Returns:
        Pairs of the tuner's label and its options as text.
    """
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
