"""Pictures of a tuning run: best cycles over trials, between stock schedule and roofline."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogFormatter, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from reports.styles import INK
from targets.base import Target
from targets.titles import shape
from targets.workload import Workload

MUTED, ACCENT, BOUND = "#9aa5b1", "#0b6e4f", "#b4532a"


class Timed(Protocol):
    """A schedule that was timed."""

    @property
    def cycles(self) -> int:
        """Of one call."""
        ...


class Studied(Protocol):
    """What was tuned, on what."""

    @property
    def workload(self) -> Workload:
        """The one whose trials are drawn."""
        ...

    @property
    def target(self) -> Target:
        """The hardware."""
        ...


class TunedWorkload(Protocol):
    """As much of a tuned workload as is drawn."""

    @property
    def study(self) -> Studied:
        """What was tuned."""
        ...

    @property
    def count(self) -> int:
        """Calls in one inference."""
        ...

    @property
    def default(self) -> Timed:
        """The stock schedule."""
        ...

    @property
    def chosen(self) -> Timed:
        """The best schedule."""
        ...

    @property
    def roofline_cycles(self) -> int:
        """What no schedule beats."""
        ...


def convergence(outcome: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """PNG: best cycles of one workload over its trials, between default and roofline. `trials` has
    a row a trial in their order, with its `status` and `cycles`."""
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


def network_convergence(
    network: str, outcomes: Sequence[TunedWorkload], trials: pd.DataFrame
) -> bytes:
    """PNG: every layer's best cycles over its trials as a multiple of its roofline, and what each
    costs by default and tuned. `trials` has a row a trial: `workload` (id), `status`, `cycles`."""
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
    right.set_yticks(rows, [f"{shape(o.study.workload)} ×{o.count}" for o in outcomes], fontsize=7)
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


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
