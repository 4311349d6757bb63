"""Lists where the cycles of each unit go, and when each instruction runs: a document and a
table."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, write_atomically
from tilewright.targets.vta.instruction_format import MODULE_NAMES, OPCODE_NAMES
from tilewright.targets.vta.timing import CycleReport


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


def frame(report: CycleReport) -> pd.DataFrame:
    """One row an instruction: its index, unit, opcode, start and end (cycles from launch; -1 where
    it never ran)."""
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
    """`.parquet`, or `.json` with one object an instruction. Raises `TilewrightError` for another
    suffix, and `OSError`."""
    if path.suffix == ".parquet":
        buffer = io.BytesIO()
        frame(report).to_parquet(buffer, index=False)
        write_atomically(path, buffer.getvalue())
    elif path.suffix == ".json":
        write_atomically(path, frame(report).to_json(orient="records").encode())
    else:
        raise TilewrightError(f"{path}: a timeline is written as .parquet or .json")
