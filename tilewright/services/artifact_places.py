"""Checks where MLflow may write and read files: in the folder of the workspace, whatever its
database says.

Every run, experiment and model in MLflow's database names a place for its files. A database that
came with a folder from a stranger may name any folder of this machine, to be written. It may name a
server elsewhere, to be asked or to be sent what a run leaves. The places are therefore checked
before MLflow opens the database.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tilewright.core.errors import TilewrightError

_PLACES = (
    # MLflow makes experiment 0 itself, in the folder of whichever command is the first; nothing is
    # logged to it here
    "SELECT artifact_location FROM experiments WHERE experiment_id <> 0",
    "SELECT artifact_uri FROM runs",
    "SELECT artifact_location FROM logged_models",
    "SELECT storage_location FROM model_versions",
    "SELECT source FROM model_versions",
)
_RESOLVED_FIRST = ("models", "runs")  # MLflow looks up their place, which is another one of these


class ArtifactPlaceError(TilewrightError):
    """A place for files that is not in the workspace's own folder."""


def check_places(database: Path, artifacts: Path) -> None:
    """Look at all places in a database. One that cannot be read is left to who opens it next, and
    says so. Raises `ArtifactPlaceError` if one is outside of `artifacts`, be it by a link."""
    try:
        with closing(sqlite3.connect(database)) as connection:
            found = [place for asked in _PLACES for (place,) in connection.execute(asked)]
    except sqlite3.DatabaseError:
        return
    root = artifacts.resolve()
    for place in found:
        if place is not None and not _is_below(str(place), root):
            raise ArtifactPlaceError(
                f"MLflow's records in {database} keep files in {_shown(str(place))}, outside of "
                f"{artifacts}: they were made elsewhere, or by somebody else; set TILEWRIGHT_HOME "
                "to a new folder, or move this one back to where it was made"
            )


def _is_below(address: str, root: Path) -> bool:
    try:
        parts = urlsplit(address)
        if parts.scheme in _RESOLVED_FIRST:
            return True
        if parts.scheme == "mlflow-artifacts" and not parts.netloc:
            return True
        if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
            return False
        # as MLflow reads it, `%2e` and all
        place = Path(unquote(parts.path if parts.scheme else address))
        return place.is_absolute() and place.resolve().is_relative_to(root)
    except ValueError:  # no address, or no path
        return False


def _shown(address: str) -> str:
    return address if address.isprintable() else ascii(address)
