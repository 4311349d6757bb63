"""Checks what lies in a workspace before Prefect and MLflow open it by its name: they would follow
a link to wherever it leads."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.core.safe_files import check_own, opened_folder

_FOLDERS = ("cache", "mlflow", "oracle", "prefect")
_FILES = ("pages.json", "tilewright.log", "workspace.json")


def check_workspace(root: Path) -> None:
    """Raises `UnsafeFile` if a folder, database, journal or log of a workspace is a link, no plain
    file or another user's; `OSError` if it cannot be read. Of what MLflow keeps with runs, the
    folders alone are looked at: `check_below` looks into those of a run that resumes."""
    for name in _FILES:
        check_own(root / name, in_place=True)
    for name in _FOLDERS:
        _check_folder(root / name, root)
    for name in ("prefect", "mlflow"):
        _check_entries(root / name)
    artifacts = root / "mlflow" / "artifacts"
    for folder in (artifacts, artifacts / "models"):
        _check_entries(folder)


def check_below(folder: Path) -> None:
    """The same for all there is in a folder of a workspace, at any depth."""
    for below in _check_entries(folder):
        check_below(below)


def _check_entries(folder: Path) -> list[Path]:
    """The folders in a folder, checked; none where it is missing."""
    found = []
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    for entry in entries:
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            found.append(path)
        else:
            check_own(path, in_place=True)
    return found


def _check_folder(folder: Path, root: Path) -> None:
    try:
        with opened_folder(folder, root):
            pass
    except FileNotFoundError:
        return
