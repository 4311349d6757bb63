"""Pictures of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogFormatter, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from reports.styles import INK
from targets.capabilities import Latency
from targets.titles import shape
from tuning.outcome import TunedWorkload, untuned_word

MUTED, ACCENT, BOUND = "#9aa5b1", "#0b6e4f", "#b4532a"


def convergence(outcome: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """PNG: best latency of one workload over its trials, between the untuned schedule and the
    roofline where the target knows them."""
    figure = Figure(figsize=(6.4, 3.6), dpi=100)
    axes = figure.add_axes((0.13, 0.14, 0.85, 0.76))
    taken = _latencies(trials)
    steps = np.arange(1, len(trials) + 1)
    axes.scatter(steps, taken, s=9, color=MUTED, label="valid trial")
    axes.step(steps, _best_so_far(trials), where="post", color=ACCENT, lw=2, label="best so far")
    if (default := _default(outcome)) is not None:
        axes.axhline(default, color=INK, ls="--", lw=1, label=_untuned([outcome]))
    if (bound := _latency(outcome.roofline)) is not None:
        axes.axhline(bound, color=BOUND, ls=":", lw=1.5, label="roofline")
    unit = "cycles" if _counted(trials) else "seconds"
    axes.set(xlabel="trials", ylabel=unit, yscale="log", title=str(outcome.workload))
    axes.title.set_fontsize(9)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    crowded = np.ptp(np.log10(axes.get_ylim())) > 1
    axes.yaxis.set_minor_formatter(NullFormatter() if crowded else EngFormatter(sep=""))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def network_convergence(
    network: str, outcomes: Sequence[TunedWorkload], trials: pd.DataFrame
) -> bytes:
    """PNG: every layer's best latency over its trials as a multiple of its roofline (of the best
    that was found, where the target knows no bound), and what each costs untuned and tuned."""
    figure = Figure(figsize=(10, 4.4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    bounded = all(outcome.roofline is not None for outcome in outcomes)
    of_what = "roofline" if bounded else "best found"
    for outcome in outcomes:
        mine = trials[trials["workload"] == outcome.workload.id]
        best = _best_so_far(mine) / _reference(outcome, bounded)
        left.step(np.arange(1, len(mine) + 1), best, where="post", lw=1.4, alpha=0.85)
    left.axhline(1, color=BOUND, ls=":", lw=1.5)
    unit = "cycles" if _counted(trials) else "seconds"
    left.set(xlabel="trials a layer", ylabel=f"best {unit} / {of_what}", xscale="log", yscale="log")
    left.set_title("every line a layer", fontsize=9)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    left.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    rows = np.arange(len(outcomes))[::-1]
    default = np.array([_ratio(_default(o), _reference(o, bounded)) for o in outcomes])
    tuned = np.array([_ratio(_tuned(o), _reference(o, bounded)) for o in outcomes])
    right.hlines(rows, tuned, default, color=MUTED, lw=1.5)
    right.scatter(default, rows, color=INK, s=22, label=_untuned(outcomes), zorder=3)
    right.scatter(tuned, rows, color=ACCENT, s=22, label="tuned", zorder=3)
    right.axvline(1, color=BOUND, ls=":", lw=1.5, label=of_what)
    right.set_yticks(rows, [f"{shape(o.workload)} ×{o.count}" for o in outcomes], fontsize=7)
    right.set_xlabel(f"{unit} / {of_what}")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    device = outcomes[0].study.target.name
    figure.suptitle(f"{network} on {device}", fontsize=11)
    return _png(figure)


def _counted(trials: pd.DataFrame) -> bool:
    return bool((trials["cycles"] > 0).any())


def _latencies(trials: pd.DataFrame) -> NDArray[np.float64]:
    """Of each trial, in cycles where the target counts them; NaN where it is not valid."""
    column = trials["cycles"] if _counted(trials) else trials["seconds"]
    valid = (trials["status"] == "valid").to_numpy()
    return np.where(valid, column.to_numpy(dtype=np.float64), np.nan)


def _best_so_far(trials: pd.DataFrame) -> NDArray[np.float64]:
    return np.asarray(np.fmin.accumulate(_latencies(trials)), dtype=np.float64)


def _latency(latency: Latency | None) -> float | None:
    if latency is None:
        return None
    return float(latency.cycles) if latency.cycles > 0 else latency.seconds


def _untuned(outcomes: Sequence[TunedWorkload]) -> str:
    sources = [each.default.source for each in outcomes if each.default is not None]
    return f"{untuned_word(sources)} schedule"


def _default(outcome: TunedWorkload) -> float | None:
    return _latency(None if outcome.default is None else outcome.default.latency)


def _tuned(outcome: TunedWorkload) -> float | None:
    return _latency(None if outcome.chosen is None else outcome.chosen.latency)


def _reference(outcome: TunedWorkload, bounded: bool) -> float:
    found = _latency(outcome.roofline) if bounded else _tuned(outcome)
    return float("nan") if found is None else found


def _ratio(latency: float | None, reference: float) -> float:
    return float("nan") if latency is None else latency / reference


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
