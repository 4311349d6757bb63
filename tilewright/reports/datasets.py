"""Describes what a dataset holds, in a line: for the terminal and for pages alike."""

from __future__ import annotations

from pathlib import Path

from tilewright.evaluation.datasets.metadata import DatasetMetadata
from tilewright.reports.number_format import plural


def dataset_line(about: DatasetMetadata, out: Path) -> str:
    """How large it is, and its digest."""
    size = sum(file.bytes for file in about.files)
    return (
        f"{out}: {about.rows:,} rows of {len(about.hardware)} pieces of hardware and "
        f"{len(about.workloads)} workloads, {size / 1e6:,.1f} MB in {len(about.files)} "
        f"{plural(len(about.files), 'file')}; digest {about.digest[:16]}"
    )
