"""A program's timeline as a file: a picture, or a page to zoom into."""

from __future__ import annotations

import io
from pathlib import Path

from reports.figures import milliseconds
from reports.templates import render
from reports.timeline.activities import frame
from targets.errors import TilewrightError
from targets.files import write_atomically
from targets.vta.isa import MODULE_NAMES
from targets.vta.timing import CycleReport

_COLOURS = {"LOAD": "#3d7ea6", "GEMM": "#0b6e4f", "ALU": "#c98a1b", "STORE": "#b4532a"}
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
    from reports.timeline.picture import draw_timeline

    buffer = io.BytesIO()
    draw_timeline(report, title=title).savefig(buffer, format="png")
    return buffer.getvalue()


def _page(report: CycleReport, title: str, clock_mhz: float) -> bytes:
    rows = [
        [int(i), MODULE_NAMES.index(str(unit)), str(opcode), int(start), int(end)]
        for i, unit, opcode, start, end in frame(report).itertuples(index=False)
        if end >= 0
    ]
    data = {
        "title": title,
        "total": report.total,
        "time": f"{milliseconds(report.total / (clock_mhz * 1e6))} ms at {clock_mhz:g} MHz",
        "units": list(MODULE_NAMES),
        "colours": _COLOURS,
        "other": _OTHER_COLOUR,
        "rows": rows,
    }
    return render("timeline/page.html.jinja", data=data)
