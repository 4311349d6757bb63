"""Concatenates several programs that ran one after the other into one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.reports.timeline.plot import write_plot
from tilewright.targets.vta.timing import CycleReport


def write_joined(path: Path, reports: Sequence[object], title: str, clock_mhz: float) -> None:
    """As `plot.write_plot`, of `CycleReport`s. Raises `TypeError` for anything else."""
    write_plot(path, joined(reports), title, clock_mhz)


def joined(reports: Sequence[object]) -> CycleReport:
    """One report of several: each begins in the cycle in which the one before it ends. Raises
    `TypeError` for what is no `CycleReport`."""
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
