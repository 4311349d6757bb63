"""Timelines of a simulated VTA program, as a table, a picture, or a zoomable page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, write_atomically
from tilewright.reports.number_format import milliseconds
from tilewright.reports.templates import render
from tilewright.targets.vta.cycle_breakdown import Spans, instruction_kinds, stalls
from tilewright.targets.vta.instruction_format import MODULE_NAMES, OPCODE_NAMES
from tilewright.targets.vta.timing import CycleReport
from tilewright.targets.vta.timing.simulator import ACTIVITIES

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


def activities(report: CycleReport) -> dict[str, Json]:
    """Return the totals of a simulation for JSON.

    They are the total cycles, the number of instructions, the cycles of each unit by activity, and
    the numbers of beats and bursts on the memory bus.

    Args:
        report: the simulated cycles.

    Returns:
        The totals, by name.
    """
    return {
        "total_cycles": report.total,
        "instructions": len(report.insns),
        "units": {
            unit: {"busy": report.busy(unit), "spent": report.spent(unit)} for unit in MODULE_NAMES
        },
        "read_beats": report.read_beats,
        "read_bursts": report.read_bursts,
        "write_beats": report.write_beats,
        "write_bursts": report.write_bursts,
    }


def frame(report: CycleReport) -> pd.DataFrame:
    """Return a table with one row per instruction: its index, unit, opcode, start and end.

    Start and end are in cycles since the launch. They are -1 if the instruction never ran.

    Args:
        report: the simulated cycles.

    Returns:
        The table, in program order.
    """
    opcodes = (report.insns[:, 0] & np.uint64(7)).astype(int)
    names = np.array([*OPCODE_NAMES, *(f"opcode {k}" for k in range(len(OPCODE_NAMES), 8))])
    return pd.DataFrame(
        {
            "instruction": np.arange(len(report.insns)),
            "unit": np.array(MODULE_NAMES)[report.modules],
            "opcode": names[opcodes],
            "start": report.starts,
            "end": report.ends,
        }
    )


def write_timeline(path: Path, report: CycleReport) -> None:
    """Write a table of the instructions of a simulation to a file.

    Args:
        path: a `.parquet` file, or a `.json` file with one object per instruction.
        report: the simulated cycles.

    Raises:
        TilewrightError: the file name has a different suffix.
        OSError: the file cannot be written.
    """
    if path.suffix == ".parquet":
        buffer = io.BytesIO()
        frame(report).to_parquet(buffer, index=False)
        write_atomically(path, buffer.getvalue())
    elif path.suffix == ".json":
        write_atomically(path, frame(report).to_json(orient="records").encode())
    else:
        raise TilewrightError(f"{path}: the file name of a timeline must end in .parquet or .json")


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
    """Draw what the accelerator's units do over time.

    The upper part has one lane per unit. The lower part shows the share of all cycles that each
    unit spends on each activity.

    Args:
        report: the simulated cycles.
        first: first cycle to draw.
        last: cycle before which the drawing ends; None for the end of the simulation.
        title: title of the picture.

    Returns:
        The Matplotlib figure.

    Raises:
        TilewrightError: the range of cycles is empty or outside of the simulation.
    """
    from matplotlib.figure import Figure

    last = report.total if last is None else min(last, report.total)
    if not 0 <= first < last:
        raise TilewrightError(
            f"the window {first} to {last} is outside of the {report.total} cycles of the "
            "program; choose a window inside"
        )
    figure = Figure(figsize=(14, 5.2), dpi=110, layout="constrained")
    lanes, shares = figure.subplots(2, 1, height_ratios=(3, 2))
    _draw_lanes(lanes, report, first, last)
    _draw_shares(shares, report)
    figure.suptitle(f"{title + ': ' if title else ''}{report.total:,} cycles", x=0.01, ha="left")
    return figure


def _draw_lanes(axes: Axes, report: CycleReport, first: int, last: int) -> None:
    kind = instruction_kinds(report)
    ran = (report.starts >= 0) & (report.ends >= 0)
    for name, colour in KIND_COLOURS.items():
        for module in range(len(MODULE_NAMES)):
            mine = ran & (kind == name) & (report.modules == module)
            spans = Spans(report.starts[mine], report.ends[mine]).clip(first, last)
            _draw_spans(axes, module, spans, colour, name)
    for (unit, reason), gaps in stalls(report).items():
        _draw_spans(
            axes, MODULE_NAMES.index(unit), gaps.clip(first, last), STALL_COLOURS[reason],
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
    axes.set(xlim=(0, 1), xlabel="fraction of all cycles")
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


_OTHER_COLOUR = "#7b8794"


def write_plot(path: Path, report: CycleReport, title: str, clock_mhz: float) -> None:
    """Draw a timeline to a `.png` file, or to an `.html` page that can be zoomed and dragged.

    Args:
        path: the file to write; its suffix selects the format.
        report: the simulated cycles.
        title: title of the picture.
        clock_mhz: clock frequency in MHz, with which cycles are converted to times.

    Raises:
        TilewrightError: the file name has a different suffix.
        OSError: the file cannot be written.
    """
    if path.suffix == ".png":
        write_atomically(path, _png(report, title))
    elif path.suffix == ".html":
        write_atomically(path, _page(report, title, clock_mhz))
    else:
        raise TilewrightError(f"{path}: the file name of a plot must end in .png or .html")


def _png(report: CycleReport, title: str) -> bytes:
    buffer = io.BytesIO()
    draw_timeline(report, title=title).savefig(buffer, format="png")
    return buffer.getvalue()


def _page(report: CycleReport, title: str, clock_mhz: float) -> bytes:
    rows, waits = _instructions(report), _waits(report)
    kind = {row[2] for row in rows}
    reasons = {wait[1] for wait in waits}
    data = {
        "title": title,
        "total": report.total,
        "time": f"{milliseconds(report.total / (clock_mhz * 1e6))} ms at {clock_mhz:g} MHz",
        "units": list(MODULE_NAMES),
        "colours": KIND_COLOURS,
        "other": _OTHER_COLOUR,
        "rows": rows,
        "waits": waits,
        "waitColours": STALL_COLOURS,
        "waitLabels": STALL_LABELS,
    }
    legend = [(name, colour) for name, colour in KIND_COLOURS.items() if name in kind]
    legend += [(STALL_LABELS[name], STALL_COLOURS[name]) for name in STALL_COLOURS
               if name in reasons]  # fmt: skip
    return render("timeline.html.jinja", data=data, legend=legend)


def _instructions(report: CycleReport) -> list[list[int | str]]:
    """Return the instructions that ran, as rows for the HTML page.

    Args:
        report: the simulated cycles.

    Returns:
        For each instruction, its index, the index of its unit, its type, and the cycles in which it
        starts and ends.
    """
    ran = np.flatnonzero(report.ends >= 0)
    kind = instruction_kinds(report)
    return [
        [int(i), int(report.modules[i]), str(kind[i]), int(report.starts[i]), int(report.ends[i])]
        for i in ran
    ]


def _waits(report: CycleReport) -> list[list[int | str]]:
    """Return the intervals in which a unit waits, as rows for the HTML page.

    Args:
        report: the simulated cycles.

    Returns:
        For each interval, the index of the unit, the reason, the start and the end in cycles.
    """
    return [
        [MODULE_NAMES.index(unit), reason, int(begin), int(end)]
        for (unit, reason), gaps in stalls(report).items()
        for begin, end in zip(gaps.begins, gaps.ends, strict=True)
    ]


def write_joined(path: Path, reports: Sequence[object], title: str, clock_mhz: float) -> None:
    """Draw several simulations, one after the other, in one timeline.

    Args:
        path: the file to write, as for `write_plot`.
        reports: one `CycleReport` per simulation, in the order of execution.
        title: title of the picture.
        clock_mhz: clock frequency in MHz.

    Raises:
        TypeError: an element of `reports` is not a `CycleReport`.
        TilewrightError: the file name has an unknown suffix.
        OSError: the file cannot be written.
    """
    write_plot(path, join_reports(reports), title, clock_mhz)


def join_reports(reports: Sequence[object]) -> CycleReport:
    """Join the reports of several simulations into one report.

    Each simulation begins in the cycle in which the previous one ends.

    Args:
        reports: one `CycleReport` per simulation, in the order of execution.

    Returns:
        The joined report.

    Raises:
        TypeError: an element of `reports` is not a `CycleReport`.
    """
    known = []
    for report in reports:
        if not isinstance(report, CycleReport):
            raise TypeError(f"{type(report).__name__} is not a report of cycles")
        known.append(report)
    begins = np.cumsum([0, *(report.total for report in known)]).tolist()

    def later(name: str) -> NDArray[np.int64]:
        parts = [getattr(report, name) for report in known]
        moved = [np.where(p >= 0, p + at, p) for p, at in zip(parts, begins, strict=False)]
        whole: NDArray[np.int64] = np.concatenate(moved)
        return whole

    def total(name: str) -> int:
        return sum(int(getattr(report, name)) for report in known)

    return CycleReport(
        total=begins[-1],
        insns=np.concatenate([report.insns for report in known]),
        modules=np.concatenate([report.modules for report in known]),
        visible=later("visible"),
        starts=later("starts"),
        ends=later("ends"),
        breakdown=np.sum([report.breakdown for report in known], axis=0),
        read_beats=total("read_beats"),
        read_bursts=total("read_bursts"),
        write_beats=total("write_beats"),
        write_bursts=total("write_bursts"),
        early_loads=total("early_loads"),
    )
