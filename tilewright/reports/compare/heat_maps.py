"""Draws tables of tuners and workloads, coloured from good to bad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.evaluation.compare.leaderboard import Floats, LeaderboardRow, Results
from tilewright.evaluation.compare.plan import GOAL
from tilewright.reports.compare.plots import FLOOR
from tilewright.reports.number_format import count, percent
from tilewright.reports.styles import heat

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
