"""Writes a program's timeline as a file: a picture, or a page to zoom into."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.core.files import write_atomically
from tilewright.reports.number_format import milliseconds
from tilewright.reports.templates import render
from tilewright.reports.timeline.colours import KIND_COLOURS, STALL_COLOURS, STALL_LABELS
from tilewright.reports.timeline.picture import draw_timeline
from tilewright.targets.vta.cycle_breakdown import kinds, stalls
from tilewright.targets.vta.instruction_format import MODULE_NAMES
from tilewright.targets.vta.timing import CycleReport

_OTHER_COLOUR = "#7b8794"


def write_plot(path: Path, report: CycleReport, title: str, clock_mhz: float) -> None:
    """`.png`, or `.html` with a picture one can zoom with the wheel and drag; the clock tells its
    time. Raises `TilewrightError` for another suffix, and `OSError`."""
    if path.suffix == ".png":
        write_atomically(path, _png(report, title))
    elif path.suffix == ".html":
        write_atomically(path, _page(report, title, clock_mhz))
    else:
        raise TilewrightError(f"{path}: a plot is written as .png or .html")


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
    return render("timeline/page.html.jinja", data=data, legend=legend)


def _instructions(report: CycleReport) -> list[list[int | str]]:
    """Index, unit, kind, start and end of every instruction that ran."""
    ran = np.flatnonzero(report.ends >= 0)
    kind = kinds(report)
    return [
        [int(i), int(report.modules[i]), str(kind[i]), int(report.starts[i]), int(report.ends[i])]
        for i in ran
    ]


def _waits(report: CycleReport) -> list[list[int | str]]:
    """Unit, what it waits for, begin and end of every gap between instructions."""
    return [
        [MODULE_NAMES.index(unit), reason, int(begin), int(end)]
        for (unit, reason), gaps in stalls(report).items()
        for begin, end in zip(gaps.begins, gaps.ends, strict=True)
    ]
