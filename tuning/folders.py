"""Whether an output folder can be used, asked before any work."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

from targets.errors import TilewrightError


class OutputError(TilewrightError):
    """An output folder that cannot be used."""


def check_folder(folder: Path) -> None:
    """Raises `OutputError` unless files can be written to `folder`; leaves nothing behind."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    problem = None
    if not existing.is_dir():
        problem = f"{existing} is not a folder"
    elif not existing.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        problem = f"{existing} is read-only"
    else:
        try:
            with tempfile.TemporaryDirectory(dir=existing):
                pass
        except OSError as error:
            problem = f"{existing}: {(error.strerror or str(error)).lower()}"
    if problem:
        raise OutputError(f"cannot write to {folder}: {problem}; choose another folder with --out")
