"""Makes replays of the stock stack's tables from their names.

Nothing heavy is imported before one is made.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.targets.base import Target
from tilewright.targets.registry import TargetKind


class ReplayError(TilewrightError):
    """A replay of no table, or of one that is not there."""


def _files(text: str) -> list[Path]:
    if not text:
        raise ReplayError("replay what? name tables: replay:C4.csv.gz, or several with commas")
    return [Path(part) for part in text.split(",")]


def _check(text: str) -> None:
    for file in _files(text):
        if not file.is_file():
            raise ReplayError(f"there is no file {file}; give the path of a table")


def _make(text: str, space: str) -> Target:
    from tilewright.targets.vta.recorded_tables import recorded_target

    return recorded_target(_files(text))


KIND = TargetKind(
    name="replay",
    summary="tables of the stock VTA stack instead of hardware: replay:FILE[,FILE…]",
    make=_make,
    check=_check,
)
