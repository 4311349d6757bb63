"""What a timed program looks like: where the cycles of each unit go, in numbers and pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd

from targets.errors import TilewrightError
from targets.files import Json, write_atomically
from targets.vta.isa import MODULE_NAMES, OPCODE_NAMES
from targets.vta.timing import CycleReport

COLOURS = {"LOAD": "#3d7ea6", "GEMM": "#0b6e4f", "ALU": "#c98a1b", "STORE": "#b4532a"}
OTHER_COLOUR = "#7b8794"


def activities(report: CycleReport) -> dict[str, Json]:
    """Totals for people and programs; all in cycles but beats, bursts and counts."""
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


def table(document: dict[str, Json]) -> str:
    """The same as text: a line a unit, busy and then where it waited."""
    total = document["total_cycles"]
    lines = [f"{total:,} cycles, {document['instructions']:,} instructions"]
    for unit, row in document["units"].items():
        spent = sorted(row["spent"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {cycles / total:.1%}" for name, cycles in spent)
        lines.append(f"  {unit:8} busy {row['busy']:>12,} ({row['busy'] / total:6.1%})  {parts}")
    lines.append(
        f"  read {document['read_beats']:,} beats in {document['read_bursts']:,} bursts, "
        f"wrote {document['write_beats']:,} in {document['write_bursts']:,}"
    )
    return "\n".join(lines)


def frame(report: CycleReport) -> pd.DataFrame:
    """One row an instruction: index, unit, opcode, start, end (cycles; -1 where it never ran)."""
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
    """`.parquet`, or `.json` with one object an instruction."""
    if path.suffix == ".parquet":
        buffer = io.BytesIO()
        frame(report).to_parquet(buffer, index=False)
        write_atomically(path, buffer.getvalue())
    elif path.suffix == ".json":
        write_atomically(path, frame(report).to_json(orient="records").encode())
    else:
        raise TilewrightError(f"{path}: a timeline is written as .parquet or .json")


def write_plot(path: Path, report: CycleReport, title: str) -> None:
    """`.png`, or `.html` with a picture one can zoom with the wheel and drag."""
    if path.suffix == ".png":
        write_atomically(path, _png(report, title))
    elif path.suffix == ".html":
        write_atomically(path, _html(report, title).encode())
    else:
        raise TilewrightError(f"{path}: a plot is written as .png or .html")


def _png(report: CycleReport, title: str) -> bytes:
    from reports.timeline_plot import draw_timeline

    buffer = io.BytesIO()
    draw_timeline(report, title=title).savefig(buffer, format="png")
    return buffer.getvalue()


def _html(report: CycleReport, title: str) -> str:
    rows = frame(report)
    data = {
        "title": title,
        "total": report.total,
        "units": list(MODULE_NAMES),
        "colours": COLOURS,
        "other": OTHER_COLOUR,
        "rows": [
            [int(i), MODULE_NAMES.index(str(unit)), str(opcode), int(start), int(end)]
            for i, unit, opcode, start, end in rows.itertuples(index=False)
            if end >= 0
        ],
    }
    template = Path(__file__).with_name("timeline.html").read_text()
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return template.replace("/*DATA*/null", text)
