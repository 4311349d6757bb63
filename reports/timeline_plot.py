"""A picture of a program's timeline: a lane a unit, instructions by kind, what stalls wait for."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from targets.errors import TilewrightError
from targets.vta.isa import (
    FLAG_QUEUES,
    LOAD,
    MEMORY_NAMES,
    MODULE_NAMES,
    OPCODE_NAMES,
    POP_NEXT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    QUEUE_NAMES,
    STORE,
)  # fmt: skip
from targets.vta.timing.outcome import ACTIVITIES
from targets.vta.timing.report import CycleReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KIND_COLOURS = {
    "LOAD INP": "#4e79a7",
    "LOAD WGT": "#76b7b2",
    "LOAD UOP": "#b07aa1",
    "LOAD ACC": "#9c755f",
    "GEMM": "#2f7d4f",
    "ALU": "#edc948",
    "STORE": "#e15759",
    "no-op": "#4a4a4a",
    "FINISH": "#000000",
}
STALL_COLOURS = {
    "instruction": "#d9d9d9",
    "l2g": "#cfe0f1",
    "g2l": "#c9e7d3",
    "g2s": "#f4e7a8",
    "s2g": "#f6cccc",
}
STALL_LABELS = {
    "instruction": "waits for an instruction",
    "l2g": "waits for l2g (data loaded)",
    "g2l": "waits for g2l (buffer free)",
    "g2s": "waits for g2s (result ready)",
    "s2g": "waits for s2g (result stored)",
}
_ACTIVITY_COLOURS = {
    "executing": "#2f7d4f",
    "transferring": "#4e79a7",
    "memory": "#a9bfd6",
    "deciding": "#8a8a8a",
    "done": "#f5f5f5",
} | STALL_COLOURS
_BARS = 3000  # bars closer together than this share of the window are drawn as one


@dataclass(frozen=True, eq=False)
class Spans:
    """Intervals of cycles on one lane: begins and ends, shape (n,), ascending."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def within(self, first: int, last: int) -> Spans:
        """What lies in the window [first, last), neighbours merged that no eye could part."""
        keep = (self.ends > first) & (self.begins < last)
        begins = np.maximum(self.begins[keep], first)
        ends = np.minimum(self.ends[keep], last)
        if not len(begins):
            return Spans(begins, ends)
        new = begins[1:] - ends[:-1] > (last - first) / _BARS
        return Spans(begins[np.concatenate([[True], new])], ends[np.concatenate([new, [True]])])

    def bars(self) -> list[tuple[float, float]]:
        """(begin, length), as `Axes.broken_barh` takes them."""
        lengths = self.ends - self.begins
        return [(float(b), float(n)) for b, n in zip(self.begins, lengths, strict=True)]


def kinds(report: CycleReport) -> NDArray[np.str_]:
    """Shape (n,): the kind of each instruction, one of `KIND_COLOURS`."""
    opcode = (report.insns[:, 0] & np.uint64(7)).astype(np.int64)
    memory = (report.insns[:, 0] >> np.uint64(7) & np.uint64(7)).astype(np.int64)
    empty = (report.insns[:, 1] & np.uint64(0xFFFF0000)) == 0
    names = np.array([*OPCODE_NAMES, *["?"] * 3])[opcode].astype(object)
    load = opcode == LOAD
    names[load] = [f"LOAD {(*MEMORY_NAMES, '?', '?')[m]}" for m in memory[load]]
    names[(load | (opcode == STORE)) & empty] = "no-op"
    return names.astype(str)


def stalls(report: CycleReport) -> dict[tuple[str, str], Spans]:
    """The gaps between instructions by unit and by what they wait for: fetch unit or token queue.

    The k-th pop of a queue takes its k-th token; of two tokens the one that came last is named.
    The one cycle in which an instruction is taken is no stall.
    """
    ran = report.starts >= 0
    arrival, source = _last_tokens(report, ran)
    found: dict[tuple[str, str], Spans] = {}
    for module, unit in enumerate(MODULE_NAMES):
        mine = np.flatnonzero(ran & (report.modules == module))
        idle = np.concatenate([[0], report.ends[mine][:-1]])
        taken = report.starts[mine] - 1
        seen = np.clip(report.visible[mine], idle, taken)
        _add_spans(found, (unit, "instruction"), idle, seen)
        for queue, name in enumerate(QUEUE_NAMES):
            chosen = (source[mine] == queue) & (arrival[mine] >= taken)
            _add_spans(found, (unit, name), seen[chosen], taken[chosen])
    return found


def _add_spans(
    found: dict[tuple[str, str], Spans],
    key: tuple[str, str],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    keep = ends > begins
    if keep.any():
        found[key] = Spans(begins[keep], ends[keep])


def _last_tokens(
    report: CycleReport, ran: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each instruction the cycle and the queue of the last token it popped, -1 for none."""
    arrival = np.full(len(ran), -1, np.int64)
    source = np.full(len(ran), -1, np.int64)
    for queue in range(len(QUEUE_NAMES)):
        pushes = (report.ends >= 0) & _flagged(report, queue, (PUSH_PREV, PUSH_NEXT))
        pops = np.flatnonzero(ran & _flagged(report, queue, (POP_PREV, POP_NEXT)))
        times = np.sort(report.ends[pushes])
        initial = max(0, len(pops) - len(times))  # those were there before launch
        pops = pops[initial:]
        later = times[: len(pops)] > arrival[pops]
        arrival[pops[later]] = times[: len(pops)][later]
        source[pops[later]] = queue
    return arrival, source


def _flagged(report: CycleReport, queue: int, flags: tuple[int, int]) -> NDArray[np.bool_]:
    """Which instructions pop from (or push to) a token queue."""
    found = np.zeros(len(report.insns), np.bool_)
    for module, names in enumerate(FLAG_QUEUES):
        for flag in flags:
            if names[flag.bit_length() - 4] == queue:
                found |= (report.modules == module) & (report.insns[:, 0] & np.uint64(flag) != 0)
    return found


def draw_timeline(
    report: CycleReport, first: int = 0, last: int | None = None, title: str = ""
) -> Figure:
    """The window [first, last) of cycles, the whole program by default, as a matplotlib figure."""
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


def plot_timeline(
    report: CycleReport, path: Path, first: int = 0, last: int | None = None, title: str = ""
) -> None:
    """Write `draw_timeline` as .png, .svg, or .html (one file, the picture inside)."""
    figure = draw_timeline(report, first, last, title)
    if path.suffix in (".png", ".svg"):
        figure.savefig(path)
    elif path.suffix == ".html":
        picture = io.StringIO()
        figure.savefig(picture, format="svg")
        svg = picture.getvalue()
        path.write_text(
            f"<!doctype html><meta charset=utf-8><title>{html.escape(title or 'timeline')}</title>"
            f"<style>svg{{width:100%;height:auto}}</style>{svg[svg.index('<svg') :]}"
        )
    else:
        raise TilewrightError(f"{path}: a timeline is written as .png, .svg or .html")
