"""Folders of a command: where it was started, and its workspace.

Numba, Prefect and matplotlib read settings files from the working folder, which can name code to
import or call. A folder may come from a stranger. So a command leaves it for `/` before it loads
any of them; only the administrator can write there. Paths it was given become absolute, and are
shown as they were typed. A library call stays where it is. See `docs/decisions/settings-files.md`.

The workspace is `./.tilewright`, or `TILEWRIGHT_HOME` if that is set and not empty. The folder need
not exist.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

ELSEWHERE = "/"
_NAMES_A_PATH = (
    "TILEWRIGHT_HOME", "TMPDIR", "NUMBA_CACHE_DIR", "MATPLOTLIBRC",
    "MPLCONFIGDIR", "PREFECT_PROFILES_PATH", "PREFECT_LOGGING_SETTINGS_PATH",
    "PREFECT_LOGGING_CONFIG_PATH",
)  # fmt: skip
_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|file:|:memory:)(.+)")
DEFAULT = ".tilewright"
VARIABLE = "TILEWRIGHT_HOME"


class _Started:
    folder: Path | None = None
    typed: dict[str, str] = {}  # noqa: RUF012  absolute paths, as they were typed


def leave_working_folder() -> None:
    """Change to `/`, after relative paths in variables were made absolute. Do nothing the second
    time, or if the working folder is gone."""
    if _Started.folder is not None:
        return
    with suppress(OSError):
        _Started.folder = Path.cwd()
        for name in _NAMES_A_PATH:
            if given := os.environ.get(name):
                os.environ[name] = absolute = os.path.abspath(given)
                if not os.path.isabs(given):
                    _Started.typed[absolute] = given
        if address := os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ["MLFLOW_TRACKING_URI"] = _absolute_address(address)
        os.chdir(ELSEWHERE)


def started_in() -> Path:
    """Return the folder to which paths are relative. Raises `FileNotFoundError` if it is gone."""
    return _Started.folder or Path.cwd()


def from_start(path: Path) -> Path:
    """Return a path that was typed, for use after `leave_working_folder`. Before that, or in a
    library call, the path is returned as it is."""
    if _Started.folder is None or path.is_absolute():
        return path
    absolute = started_in() / path
    _Started.typed[str(absolute)] = str(path)
    return absolute


def as_typed(text: str) -> str:
    """Return a text for the user, with the paths of `from_start` as they were typed."""
    for absolute in sorted(_Started.typed, key=len, reverse=True):
        # neither the end of a longer path nor of an address, nor the beginning of a longer name
        whole = rf"(?<![\w/.-]){re.escape(absolute)}(?![\w-]|\.\w)"
        text = _Started.typed[absolute].join(re.split(whole, text))
    return text


def _absolute_address(address: str) -> str:
    """An MLflow address that names a file or folder relative to the working folder."""
    if found := _SQLITE.fullmatch(address):
        return found[1] + os.path.abspath(found[2])
    is_path = (
        "://" not in address and not re.match(r"[\w+-]+:", address) and address != "databricks"
    )
    return os.path.abspath(address) if is_path else address


def workspace_root() -> Path:
    """Return the absolute path of the workspace in force, so that a later change of the working
    folder does not move it. Raises `OSError` and `RuntimeError` where there is no working folder
    any more, or links lead in a circle."""
    named = os.environ.get(VARIABLE) or DEFAULT
    return (started_in() / DEFAULT if named == DEFAULT else Path(named)).resolve()
