"""A dataset as a folder: rows in Parquet, a file for each piece of hardware, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.transfer.table import Table


def read_table(
    folder: Path,
    *,
    hardware: Sequence[str] | None = None,
    workloads: Sequence[str] | None = None,
    rows: int | None = None,
    seed: int = 0,
) -> Table:
    """Rows of the dataset in a folder: those of some hardware (by id or name) and some workloads
    (by id) if they are named, at most `rows` of them, drawn by `seed`. Hardware, workloads and
    tasks are numbered as `dataset.json` lists them, whatever is read. Raises `DatasetError`."""
    raise NotImplementedError


def digest_of(folder: Path) -> str:
    """What changes when anything of the dataset does. Raises `DatasetError`."""
    raise NotImplementedError
