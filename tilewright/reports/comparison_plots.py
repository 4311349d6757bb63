"""Pictures of a comparison of tuners as SVG for an HTML page.

Call these functions within `house_style`. A tuner has the same colour and dashes in all pictures.
Lines are medians over seeds, and bands are 95 % intervals. Regret is how much slower the best
schedule is than the optimum.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from tilewright.evaluation.compare.leaderboard import Floats, LeaderboardRow, Results, band
from tilewright.evaluation.compare.plan import GOAL
from tilewright.reports.plot_style import (
    GRID,
    INK,
    MUTED,
    LineStyle,
    colours,
    line_styles,
    scale_seconds,
)

FLOOR = 1e-3
"""Smallest regret that is drawn; smaller values are indistinguishable from the optimum."""
_CEILING = 20.0
_POINTS = 120  # half the maximum number of points per curve
_COLUMNS = 3
ATTEMPTS = (
    ("valid trials", "#2f7d5c"),
    ("invalid trials", "#c0562f"),
    ("lowered in addition", "#a9bccb"),
    ("of these, failed", "#dcb6a4"),
)
"""Categories of configs that a run compiles, and the colours of their bars."""


def convergence(results: Results) -> Markup:
    """Draw the regret of each tuner over the number of trials, averaged over all workloads.

    A curve is the median over seeds, with its 95 % interval as a band.

    Args:
        results: results of the runs as arrays.

    Returns:
        The picture as an SVG element.
    """
    figure = Figure(figsize=(10.4, 4.6), layout="constrained")
    axes = figure.subplots()
    for k, style in enumerate(line_styles(results.tuners)):
        _curve(axes, results.overall[k], style)
    _regret_axes(axes, results.trials)
    axes.set(xlabel="trials per workload", ylabel="regret")
    return _svg(figure, "convergence")


def convergence_by_workload(results: Results, titles: Sequence[str]) -> Markup:
    """Draw the regret of each tuner over the number of trials, with one panel per workload.

    A curve is the median over seeds, with its 95 % interval as a band.

    Args:
        results: results of the runs as arrays.
        titles: title of each panel, in the order of the workloads.

    Returns:
        The picture as an SVG element.
    """
    rows = -(-len(titles) // _COLUMNS)
    figure = Figure(figsize=(10.4, 0.5 + 2.35 * rows), layout="constrained")
    grid = figure.subplots(rows, _COLUMNS, squeeze=False, sharex=True, sharey=True)
    for place, axes in enumerate(grid.flat):
        if place >= len(titles):
            axes.set_visible(False)
            continue
        for k, style in enumerate(line_styles(results.tuners)):
            _curve(axes, results.regret[k, place], style)
        _regret_axes(axes, results.trials)
        axes.set_title(titles[place], fontsize=9, loc="left", color=INK)
        axes.tick_params(labelbottom=place + _COLUMNS >= len(titles))
    figure.supxlabel("trials", fontsize=9, color=INK)
    return _svg(figure, "by-workload")


def final_regret(results: Results, rows: Sequence[LeaderboardRow]) -> Markup:
    """Draw each tuner's regret after the last trial: a dot per seed, and the median with interval.

    Regrets outside of the axis are drawn at its ends.

    Args:
        results: results of the runs as arrays.
        rows: rows of the leaderboard, best tuner first.

    Returns:
        The picture as an SVG element.
    """
    figure, axes = _rows_figure(rows)
    shade = dict(zip(results.tuners, colours(results.tuners), strict=True))
    for place, row in enumerate(rows):
        seeds = results.overall[results.tuners.index(row.tuner), :, -1]
        shift = np.linspace(-0.22, 0.22, len(seeds)) if len(seeds) > 1 else np.zeros(1)
        axes.scatter(_shown(seeds), place + shift, s=10, color=shade[row.tuner], alpha=0.35, lw=0)
        _whisker(axes, place, _shown(_ends(row, "regret")), shade[row.tuner])
    axes.set_xscale("log")
    axes.axvline(GOAL, color=MUTED, ls=":", lw=1)
    _percent(axes, "x")
    axes.set_xlabel("regret after the last trial")
    return _svg(figure, "final")


def invalid_trials(results: Results) -> Markup:
    """Draw the cumulative number of invalid trials over the number of trials, one curve per tuner.

    The numbers are averaged over the workloads. A curve is the median over seeds, with its 95 %
    interval as a band. The dotted diagonal shows a tuner whose trials are all invalid.

    Args:
        results: results of the runs as arrays.

    Returns:
        The picture as an SVG element.
    """
    figure = Figure(figsize=(5.1, 3.6), layout="constrained")
    axes = figure.subplots()
    x = _steps(results.trials)
    axes.plot([0, results.trials], [0, results.trials], color=MUTED, ls=":", lw=1)
    for k, style in enumerate(line_styles(results.tuners)):
        low, middle, high = band(results.invalid[k].mean(axis=0)[:, x - 1])
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, lw=0)
        axes.plot(x, middle, **style.line_options)
    axes.set(xlabel="trials per workload", ylabel="invalid trials", xlim=(0, results.trials))
    axes.set_ylim(0, None)
    _plain(axes)
    return _svg(figure, "invalid")


def attempts(results: Results, rows: Sequence[LeaderboardRow]) -> Markup:
    """Draw the outcomes of the configs that a run compiles, as one stacked bar per tuner.

    The parts of a bar are valid trials, invalid trials, configs that compiled but were not
    measured, and configs that did not compile. All numbers are means over the runs.

    Args:
        results: results of the runs as arrays.
        rows: rows of the leaderboard, best tuner first.

    Returns:
        The picture as an SVG element.
    """
    figure, axes = _rows_figure(rows, height=0.42)
    for place, row in enumerate(rows):
        k = results.tuners.index(row.tuner)
        spent, invalid = results.spent[k].mean(), results.invalid[k, :, :, -1].mean()
        lowered, failed = results.lowered[k].mean(), results.failed[k].mean()
        left = 0.0
        widths = (spent - invalid, invalid, lowered - failed, failed)
        for width, (_, colour) in zip(widths, ATTEMPTS, strict=True):
            axes.barh(place, width, left=left, height=0.62, color=colour, lw=0)
            left += width
    axes.set_xlabel("configs per run")
    return _svg(figure, "attempts")


def seconds(results: Results, rows: Sequence[LeaderboardRow]) -> Markup:
    """Draw the wall-clock time of a run of each tuner. A hollow dot shows the time to the goal.

    The times are medians over seeds. A thick line shows the 95 % interval of the time of a run.

    Args:
        results: results of the runs as arrays.
        rows: rows of the leaderboard, best tuner first.

    Returns:
        The picture as an SVG element.
    """
    figure, axes = _rows_figure(rows)
    shade = dict(zip(results.tuners, colours(results.tuners), strict=True))
    for place, row in enumerate(rows):
        colour = shade[row.tuner]
        ends = np.maximum(_ends(row, "wall_seconds"), 1e-4)
        goal = max(row.seconds_to_goal or 0.0, 1e-4)
        axes.plot([goal, ends[1]], [place, place], color=colour, lw=1, alpha=0.5)
        _whisker(axes, place, ends, colour)
        axes.scatter(goal, place, s=34, facecolor="white", edgecolor=colour, lw=1.5, zorder=4)
    scale_seconds(axes)
    axes.set_xlabel("time per run (hollow: until the goal)")
    return _svg(figure, "seconds")


# -- parts ---------------------------------------------------------------------------------------


def _curve(axes: Axes, regret: Floats, style: LineStyle) -> None:
    """Draw the median regret over the number of trials, and its 95 % interval as a band.

    The median and the interval are over seeds. The curve begins where at least half of the seeds
    have found a valid schedule.

    Args:
        axes: axes on which to draw.
        regret: regret after each trial, float array of shape (seeds, trials).
        style: style of the curve.
    """
    x = _steps(regret.shape[1])
    low, middle, high = (_shown(curve) for curve in band(regret[:, x - 1]))
    known = middle < _CEILING
    ends = (low[known], high[known])
    axes.fill_between(x[known], *ends, step="post", color=style.colour, alpha=0.14, lw=0)
    axes.plot(x[known], middle[known], drawstyle="steps-post", clip_on=False, **style.line_options)


def _regret_axes(axes: Axes, trials: int) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, max(trials, 2))
    axes.set_ylim(FLOOR * 0.8, _CEILING)
    ticks = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if n <= trials]
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axhline(GOAL, color=MUTED, ls=":", lw=1)
    _percent(axes, "y")
    _plain(axes)


def _percent(axes: Axes, which: str) -> None:
    axis = axes.yaxis if which == "y" else axes.xaxis
    ticks = [FLOOR, 0.01, 0.1, 1.0, 10.0]
    axis.set_ticks(ticks, ["≤ 0.1 %", "1 %", "10 %", "100 %", "1000 %"])
    axis.set_minor_formatter(NullFormatter())


def _plain(axes: Axes) -> None:
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)


def _rows_figure(rows: Sequence[LeaderboardRow], height: float = 0.36) -> tuple[Figure, Axes]:
    """Create an empty figure with one row per tuner, the best tuner at the top.

    Args:
        rows: rows of the leaderboard, best tuner first.
        height: height of a row in inches.
    """
    figure = Figure(figsize=(5.1, 0.9 + height * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(rows)), [row.tuner for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _whisker(axes: Axes, place: int, ends: Sequence[float] | Floats, colour: str) -> None:
    """Draw an interval as a thick horizontal line, and its median as a dot.

    Args:
        axes: axes on which to draw.
        place: vertical position.
        ends: lower end, median and upper end.
        colour: colour of the line and the dot.
    """
    low, middle, high = ends
    axes.plot([low, high], [place, place], color=colour, lw=2.4, solid_capstyle="round")
    axes.scatter(middle, place, s=38, color=colour, zorder=3, lw=0)


def _ends(row: LeaderboardRow, name: str) -> Floats:
    """Return the median and the 95 % interval of a tuner's result; infinite if it is unknown.

    Args:
        row: row of a tuner in the leaderboard.
        name: name of the result: a field of `LeaderboardRow`.

    Returns:
        Lower end, median and upper end, float array of shape (3,).
    """
    interval = row.interval(name)
    return np.array(
        [np.inf] * 3 if interval is None else [interval.low, interval.middle, interval.high]
    )


def _shown(regret: Floats) -> Floats:
    """Limit regrets to the range of the vertical axis.

    Infinite regrets, from runs without a valid schedule, are drawn at its upper end.

    Args:
        regret: regrets, float array of any shape.
    """
    return np.clip(regret, FLOOR, _CEILING)


def _steps(trials: int) -> NDArray[np.int64]:
    """Return the trial numbers at which a curve is drawn, int array of shape (n,).

    If there are many trials, the numbers are evenly spaced on a logarithmic axis. Otherwise all
    trials are drawn.
    """
    return np.unique(np.geomspace(1, trials, min(trials * 2, 2 * _POINTS)).round().astype(np.int64))


def _svg(figure: Figure, name: str) -> Markup:
    """Return a figure as an SVG element that can be embedded in an HTML page.

    Args:
        figure: the figure.
        name: name of the picture, from which Matplotlib derives the IDs of markers and clip paths.
            These IDs are the targets of references, so they must differ between the pictures of a
            page. The IDs of groups, such as `figure_1`, are equal in all pictures, but nothing
            refers to them.
    """
    FigureCanvasSVG(figure)
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])
