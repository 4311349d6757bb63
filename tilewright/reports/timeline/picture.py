"""Draws a program's timeline: a lane a unit, instructions by kind, what stalls wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.reports.timeline.colours import KIND_COLOURS, STALL_COLOURS, STALL_LABELS
from tilewright.targets.vta.cycle_breakdown import Spans, kinds, stalls
from tilewright.targets.vta.instruction_format import MODULE_NAMES
from tilewright.targets.vta.timing.simulate import CycleReport
from tilewright.targets.vta.timing.simulator import ACTIVITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACTIVITY_COLOURS = {
    "executing": "#2f7d4f",
    "transferring": "#4e79a7",
    "memory": "#a9bfd6",
    "deciding": "#8a8a8a",
    "done": "#f5f5f5",
} | STALL_COLOURS


def draw_timeline(
    report: CycleReport, first: int = 0, last: int | None = None, title: str = ""
) -> Figure:
    """The window [first, last) of cycles, the whole program by default, as a matplotlib figure:
    a lane a unit above, shares of all cycles below. Raises `TilewrightError` for an empty
    window."""
    from matplotlib.figure import Figure

    last = report.total if last is None else min(last, report.total)
    if not 0 <= first < last:
        raise TilewrightError(
            f"no cycles between {first} and {last} of {report.total}; choose a window inside"
        )
    figure = Figure(figsize=(14, 5.2), dpi=110, layout="constrained")
    lanes, shares = figure.subplots(2, 1, height_ratios=(3, 2))
    _draw_lanes(lanes, report, first, last)
    _draw_shares(shares, report)
    figure.suptitle(f"{title + ': ' if title else ''}{report.total:,} cycles", x=0.01, ha="left")
    return figure


def _draw_lanes(axes: Axes, report: CycleReport, first: int, last: int) -> None:
    kind = kinds(report)
    ran = (report.starts >= 0) & (report.ends >= 0)
    for name, colour in KIND_COLOURS.items():
        for module in range(len(MODULE_NAMES)):
            mine = ran & (kind == name) & (report.modules == module)
            spans = Spans(report.starts[mine], report.ends[mine]).within(first, last)
            _draw_spans(axes, module, spans, colour, name)
    for (unit, reason), gaps in stalls(report).items():
        _draw_spans(
            axes, MODULE_NAMES.index(unit), gaps.within(first, last), STALL_COLOURS[reason],
            STALL_LABELS[reason], zorder=0,
        )  # fmt: skip
    axes.set(xlim=(first, last), xlabel="cycle")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _finish(axes)


def _draw_spans(
    axes: Axes, module: int, spans: Spans, colour: str, label: str, zorder: int = 2
) -> None:
    if len(spans.begins):
        axes.broken_barh(
            spans.bars(), (module - 0.36, 0.72), color=colour, linewidth=0, label=label,
            zorder=zorder,
        )  # fmt: skip


def _draw_shares(axes: Axes, report: CycleReport) -> None:
    left = np.zeros(len(MODULE_NAMES))
    for column, name in enumerate(ACTIVITIES):
        width = report.breakdown[:, column] / max(report.total, 1)
        if not width.any():
            continue
        colour = _ACTIVITY_COLOURS[name]
        bars = axes.barh(
            MODULE_NAMES, width, left=left, color=colour, label=STALL_LABELS.get(name, name),
            edgecolor="#bbbbbb", linewidth=0.4,
        )  # fmt: skip
        dark = name in ("executing", "transferring", "deciding")
        axes.bar_label(
            bars, [f"{w:.0%}" if w >= 0.03 else "" for w in width], label_type="center",
            fontsize=8, color="white" if dark else "black",
        )  # fmt: skip
        left += width
    axes.set(xlim=(0, 1), xlabel="share of all cycles")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.set_yticks(range(len(MODULE_NAMES)), MODULE_NAMES)
    axes.set_ylim(len(MODULE_NAMES) - 0.45, -0.55)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    axes.legend(
        known.values(), known.keys(), frameon=False, fontsize=8, loc="center left",
        bbox_to_anchor=(1, 0.5),
    )  # fmt: skip
