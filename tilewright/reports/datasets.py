"""Description of a dataset in one line, for the terminal and for pages."""

from __future__ import annotations

from pathlib import Path

from tilewright.evaluation.datasets.folder import DatasetMetadata
from tilewright.reports.number_format import count_text


def dataset_line(about: DatasetMetadata, out: Path) -> str:
    """Return one line with the folder, the size and the digest of a dataset.

    Args:
        about: metadata of the dataset.
        out: folder of the dataset.

    Returns:
        The line.
    """
    size = sum(file.bytes for file in about.files)
    return (
        f"{out}: {count_text(about.rows, 'row')} of {count_text(len(about.hardware), 'piece')} of "
        f"hardware and {count_text(len(about.workloads), 'workload')}, {size / 1e6:,.1f} MB in "
        f"{count_text(len(about.files), 'file')}; digest {about.digest[:16]}"
    )
