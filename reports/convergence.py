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

from tuning.outcome import TunedWorkload

INK, MUTED, ACCENT, BOUND = "#1f2933", "#9aa5b1", "#0b6e4f", "#b4532a"


def convergence(outcome: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """PNG: best cycles of one workload over its trials, between default and roofline."""
    figure = Figure(figsize=(6.4, 3.6), dpi=100)
    axes = figure.add_axes((0.13, 0.14, 0.85, 0.76))
    best = _best_so_far(trials)
    valid = trials["status"].to_numpy() == "valid"
    steps = np.arange(1, len(trials) + 1)
    axes.scatter(steps[valid], trials["cycles"][valid], s=9, color=MUTED, label="valid trial")
    axes.step(steps, best, where="post", color=ACCENT, lw=2, label="best so far")
    axes.axhline(outcome.default.cycles, color=INK, ls="--", lw=1, label="stock schedule")
    axes.axhline(outcome.roofline_cycles, color=BOUND, ls=":", lw=1.5, label="roofline")
    axes.set(xlabel="trials", ylabel="cycles", yscale="log", title=str(outcome.study.workload))
    axes.title.set_fontsize(9)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    crowded = np.ptp(np.log10(axes.get_ylim())) > 1
    axes.yaxis.set_minor_formatter(NullFormatter() if crowded else EngFormatter(sep=""))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def network_convergence(network: str, outcomes: Sequence[TunedWorkload], trials: pd.DataFrame) -> bytes:
    """PNG: every layer's best cycles over its trials as a multiple of its roofline, and what each
    costs by default and tuned."""
    figure = Figure(figsize=(10, 4.4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    for outcome in outcomes:
        mine = trials[trials["workload"] == outcome.study.workload.id]
        best = _best_so_far(mine) / outcome.roofline_cycles
        left.step(np.arange(1, len(mine) + 1), best, where="post", lw=1.4, alpha=0.85)
    left.axhline(1, color=BOUND, ls=":", lw=1.5)
    left.set(xlabel="trials a layer", ylabel="best cycles / roofline", xscale="log", yscale="log")
    left.set_title("every line a layer", fontsize=9)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    left.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    rows = np.arange(len(outcomes))[::-1]
    default = np.array([o.default.cycles / o.roofline_cycles for o in outcomes])
    tuned = np.array([o.chosen.cycles / o.roofline_cycles for o in outcomes])
    right.hlines(rows, tuned, default, color=MUTED, lw=1.5)
    right.scatter(default, rows, color=INK, s=22, label="stock schedule", zorder=3)
    right.scatter(tuned, rows, color=ACCENT, s=22, label="tuned", zorder=3)
    right.axvline(1, color=BOUND, ls=":", lw=1.5, label="roofline")
    right.set_yticks(rows, [_short(o) for o in outcomes], fontsize=7)
    right.set_xlabel("cycles / roofline")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    device = outcomes[0].study.target.name
    figure.suptitle(f"{network} on {device}", fontsize=11)
    return _png(figure)


def _best_so_far(trials: pd.DataFrame) -> NDArray[np.float64]:
    cycles = np.where(trials["status"] == "valid", trials["cycles"].astype(float), np.inf)
    best = np.minimum.accumulate(cycles) if len(cycles) else cycles
    return np.where(np.isfinite(best), best, np.nan)


def _short(outcome: TunedWorkload) -> str:
    workload = outcome.study.workload
    if workload.operator == "dense":
        return f"dense {workload.in_channels}→{workload.out_channels} ×{outcome.count}"
    return (
        f"{workload.kernel_h}×{workload.kernel_w}/{workload.stride_h} "
        f"{workload.in_channels}→{workload.out_channels} @{workload.height} ×{outcome.count}"
    )


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
