"""What a timed program looks like: where the cycles of each unit go, in numbers and pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from targets.errors import TilewrightError
from targets.vta.isa import MODULE_NAMES, OPCODE_NAMES
from targets.vta.timing import ACTIVITIES, CycleReport
from tasks.files import Json, write_atomically

COLOURS = {"LOAD": "#3d7ea6", "GEMM": "#0b6e4f", "ALU": "#c98a1b", "STORE": "#b4532a"}
OTHER_COLOUR = "#7b8794"
ACTIVITY_COLOURS = ("#0b6e4f", "#7fb69c", "#c3ddd0", "#b4532a", "#d98e6b", "#c98a1b", "#e3c07c",
                    "#9aa5b1", "#d9dee3")  # fmt: skip
PIXELS = 4000  # bars closer together than this share of the width are drawn as one


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


def bars(report: CycleReport, unit: str, opcode: str, gap: float) -> NDArray[np.int64]:
    """Start and length of a unit's instructions of one kind, shape (n, 2); closer than `gap` cycles
    together they are one."""
    rows = frame(report)
    mine = rows[(rows["unit"] == unit) & (rows["opcode"] == opcode) & (rows["end"] >= 0)]
    starts, ends = mine["start"].to_numpy(), mine["end"].to_numpy()
    if not len(starts):
        return np.empty((0, 2), np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > ends[:-1] + gap])
    last = np.concatenate([first[1:], [True]])
    return np.stack([starts[first], ends[last] - starts[first]], axis=1)


def _kinds(report: CycleReport) -> list[tuple[str, str]]:
    rows = frame(report)[["unit", "opcode"]].drop_duplicates()
    return sorted((str(unit), str(opcode)) for unit, opcode in rows.itertuples(index=False))


def _png(report: CycleReport, title: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    lanes, shares = figure.subplots(2, 1, height_ratios=(2, 1))
    units = list(MODULE_NAMES)
    for unit, opcode in _kinds(report):
        spans = bars(report, unit, opcode, report.total / PIXELS)
        colour = COLOURS.get(opcode, OTHER_COLOUR)
        lanes.broken_barh(
            [(int(s), int(n)) for s, n in spans], (units.index(unit) - 0.4, 0.8), color=colour,
            label=opcode,
        )  # fmt: skip
    lanes.set(xlim=(0, report.total), xlabel="cycle", title=f"{title}: {report.total:,} cycles")
    left = np.zeros(len(units))
    for k, activity in enumerate(ACTIVITIES):
        width = report.breakdown[:, k] / max(report.total, 1)
        if width.any():
            colour = ACTIVITY_COLOURS[k % len(ACTIVITY_COLOURS)]
            shares.barh(units, width, left=left, color=colour, label=activity)
        left += width
    shares.set(xlim=(0, 1), xlabel="share of all cycles")
    for axes in (lanes, shares):
        axes.set_yticks(range(len(units)), units)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        known = dict(zip(labels, handles, strict=True))
        axes.legend(
            known.values(), known.keys(), frameon=False, fontsize=8, loc="center left",
            bbox_to_anchor=(1, 0.5),
        )  # fmt: skip
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
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
