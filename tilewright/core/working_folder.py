"""The folders of a command: the folder in which it was started, and its workspace.

Numba, Prefect and matplotlib read settings files from the working folder, and these files can name
code to import or call. The folder may come from a stranger. A command therefore changes to `/`,
where only the administrator can write, before it loads any of these libraries. Paths that the user
gave become absolute, and messages show them as they were typed. A library call does not change the
working folder. See `docs/decisions/settings-files.md`.

The workspace is `./.tilewright`, or `TILEWRIGHT_HOME` if that variable is set and not empty. The
folder need not exist.
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
    """Change the working folder to `/`, and make relative paths in environment variables absolute.

    The function does nothing if it was called before, or if the working folder was deleted.
    """
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
    """Return the folder in which the command was started. Relative paths of the user start there.

    Raises:
        FileNotFoundError: the folder was deleted.
    """
    return _Started.folder or Path.cwd()


def from_start(path: Path) -> Path:
    """Make a path that the user typed absolute, relative to the folder of `started_in`.

    If `leave_working_folder` was not called, as in a library call, the path is returned unchanged.

    Args:
        path: the path as the user typed it.
    """
    if _Started.folder is None or path.is_absolute():
        return path
    absolute = started_in() / path
    _Started.typed[str(absolute)] = str(path)
    return absolute


def as_typed(text: str) -> str:
    """Return a message in which absolute paths from `from_start` appear as the user typed them.

    Args:
        text: the message.
    """
    for absolute in sorted(_Started.typed, key=len, reverse=True):
        # Match whole paths only: no end of a longer path or URL, and no start of a longer name.
        whole = rf"(?<![\w/.-]){re.escape(absolute)}(?![\w-]|\.\w)"
        text = _Started.typed[absolute].join(re.split(whole, text))
    return text


def _absolute_address(address: str) -> str:
    """Make the path in an MLflow URI absolute, if the URI names a relative file or folder."""
    if match := _SQLITE.fullmatch(address):
        return match[1] + os.path.abspath(match[2])
    is_path = (
        "://" not in address and not re.match(r"[\w+-]+:", address) and address != "databricks"
    )
    return os.path.abspath(address) if is_path else address


def workspace_root() -> Path:
    """Return the absolute path of the current workspace.

    The path is absolute, so that a later change of the working folder does not affect it.

    Raises:
        OSError: the working folder was deleted.
        RuntimeError: symbolic links form a loop.
    """
    named = os.environ.get(VARIABLE) or DEFAULT
    return (started_in() / DEFAULT if named == DEFAULT else Path(named)).resolve()
