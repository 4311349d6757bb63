"""Resolves paths on the command line relative to the folder in which the command was started.

The command itself runs in another folder (`core.working_folder`). All arguments of type `Path` are
resolved, and so are texts that name a file, such as a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import typer

from tilewright.core.working_folder import from_start
from tilewright.networks import zoo_names

MLFLOW_ID = re.compile(r"[0-9a-f]{32}")
_OF_FILES = "replay"
"""Name of the kind of target whose arguments are always files, even if the files do not exist."""


def count_paths_from_start(app: typer.Typer) -> None:
    """Let every command of an application and of its groups receive absolute paths.

    Args:
        app: the application.
    """
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_absolute_paths(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        count_paths_from_start(group.typer_instance)


def _with_absolute_paths(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def called(**given: Any) -> Any:
        values = {
            name: from_start(value) if isinstance(value, Path) else value
            for name, value in given.items()
        }
        return command(**values)

    return called


def model_text(text: str | None) -> str | None:
    """Return the name of a built-in network unchanged, or the absolute path of a model file.

    If a text is both, it is treated as a name.

    Args:
        text: text from the command line.
    """
    if not text or not (_looks_like_path(text) or from_start(Path(text)).exists()):
        return text
    return text if text in zoo_names() else str(from_start(Path(text)))


def target_text(text: str) -> str:
    """Return the name of a target unchanged, or make the path of a target's file absolute.

    The path may follow `KIND:`, the kind of target. If a text is both a name and a path, it is
    treated as a name.

    Args:
        text: text from the command line.
    """
    path = from_start(Path(text))
    if ":" not in text and not _looks_like_path(text) and not path.is_file():
        return text
    from tilewright.targets import target_kinds

    kinds = target_kinds()
    head, colon, rest = text.partition(":")
    if colon and head in kinds:
        parts = rest.split(",")
        return f"{head}:{','.join(_file_or_text(part, always=head == _OF_FILES) for part in parts)}"
    named = text in kinds or any(text in kind.presets() for kind in kinds.values())
    return text if named else str(path)


def warm_start_text(text: str) -> str:
    """Return `champion` and an empty text unchanged. Make the path of a model's folder absolute.

    Args:
        text: text from the command line.
    """
    return text if text in ("", "champion") else str(from_start(Path(text)))


def run_text(text: str) -> str:
    """Return the ID of an MLflow run unchanged, or the absolute path of an output directory.

    Args:
        text: text from the command line.
    """
    place = from_start(Path(text))
    return text if MLFLOW_ID.fullmatch(text) and not place.exists() else str(place)


def _looks_like_path(text: str) -> bool:
    return bool(Path(text).suffix) or "/" in text


def _file_or_text(text: str, *, always: bool) -> str:
    """Make the path of an existing file absolute, and return any other text unchanged.

    Args:
        text: the text.
        always: whether to treat the text as a path even if the file does not exist.
    """
    place = from_start(Path(text))
    return str(place) if text and (always or place.is_file()) else text
