"""The convergence curve of a network in a terminal, drawn with block characters."""

from __future__ import annotations

import numpy as np

from tilewright.tuning.gains import network_figures
from tilewright.tuning.run_figures import CurveLayer, Floats, Unit, network_curve, unit_of
from tilewright.tuning.run_trials import RunTrials

WIDTH, ROWS = 60, 5
"""Width and height of the convergence curve in characters, including its labels."""
_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = len(_BLOCKS) - 1


def convergence_lines(run: RunTrials) -> list[str]:
    """Return the convergence curve of a network as lines of text.

    The start page and MLflow show the same curve (`tuning.run_figures.network_curve`).

    Args:
        run: the trials of a run.

    Returns:
        The lines; empty if there is no trial.
    """
    if not len(run.table):
        return []
    unit = unit_of(run.table)
    layers = [CurveLayer(each.id, each.count, each.figures) for each in run.layers]
    counts, figures = [each.count for each in layers], [each.figures for each in layers]
    known = [each for each in figures if each is not None]
    total = network_figures(counts, known) if len(known) == len(figures) else None
    bound = None if total is None else total.bound
    level = None if bound is None else bound.cycles if unit == "cycles" else bound.seconds
    return draw_curve(network_curve(run.table, layers, unit), unit, level)


def draw_curve(curve: Floats, unit: Unit, bound: float | None = None) -> list[str]:
    """Draw a convergence curve with block characters: the best latency over the number of trials.

    The scale begins at the bound, so that the height of the blocks shows how far the network is
    above its bound. If no bound is known, the scale begins at the last value.

    Args:
        curve: best latency after each trial, float array of shape (trials,), in cycles or seconds;
            NaN where it is unknown.
        unit: unit of `curve`.
        bound: lower bound of the latency in the same unit.

    Returns:
        At most `ROWS` + 2 lines of at most `WIDTH` characters. No lines if no value is known.
    """
    known = curve[np.isfinite(curve)]
    if not len(known):
        return []
    low = float(bound if bound is not None and 0 < bound < known.min() else known.min())
    high = float(known.max())
    top, bottom = (_label(value, unit) for value in (high, low))
    margin = max(len(top), len(bottom))
    columns = min(WIDTH - margin - 2, len(curve))
    last = np.linspace(0, len(curve), columns + 1).round().astype(np.int64)[1:] - 1
    scale = high - low or 1.0
    heights = np.ceil((curve[last] - low) / scale * ROWS * _EIGHTHS)
    heights = np.nan_to_num(heights, nan=0.0).astype(np.int64)
    lines = []
    for row in reversed(range(ROWS)):
        filled = np.clip(heights - row * _EIGHTHS, 0, _EIGHTHS)
        label = top if row == ROWS - 1 else bottom if row == 0 else ""
        blocks = "".join(_BLOCKS[eighths] for eighths in filled)
        lines.append(f"{label:>{margin}} ┤{blocks}".rstrip())
    trials = f"{len(curve):,} trials"
    lines.append(f"{'':>{margin}}  1{trials:>{max(columns - 1, len(trials) + 1)}}")
    level = "the bound" if bound is not None and low == bound else "the last value"
    word = "cycles" if unit == "cycles" else "ms"
    return [f"{word} per inference after each trial, above {level}", *lines]


def _label(value: float, unit: Unit) -> str:
    return f"{value:,.0f}" if unit == "cycles" else f"{1e3 * value:.3g}"
