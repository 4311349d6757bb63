"""Where MLflow may keep and look for files: in the home's own folder, whatever its database says.

Every run, experiment and model in MLflow's database names a place for its files. A database that
came with a folder from a stranger may name any folder of this machine, to be written, or a server
elsewhere, to be asked or to be sent what a run leaves.
"""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tilewright.core.errors import TilewrightError
from tilewright.core.imports import after_import
from tilewright.services.workspace import current_home

_RESOLVED_FIRST = ("models", "runs")  # MLflow looks up their place, and asks for that one
_OF_A_SERVER = "_MLFLOW_SERVER_FILE_STORE"  # what `mlflow server` tells its workers


class ArtifactPlaceError(TilewrightError):
    """A place for files that is not in the home's own folder."""


def confine_artifacts() -> None:
    """In force once MLflow is imported, for what is tracked in the home's own database. A tracking
    server that the user names decides for itself."""
    after_import("mlflow.store.artifact.artifact_repository_registry", _confine)


def check_place(address: str) -> None:
    """Raises `ArtifactPlaceError` if what is tracked in the home's own database has no business
    there."""
    home = current_home()
    store = os.environ.get(_OF_A_SERVER) or os.environ.get("MLFLOW_TRACKING_URI")
    if store != home.mlflow_address:
        return
    parts = urlsplit(address)
    if parts.scheme in _RESOLVED_FIRST or (parts.scheme == "mlflow-artifacts" and not parts.netloc):
        return
    if parts.scheme == "" or (parts.scheme == "file" and parts.netloc in ("", "localhost")):
        from mlflow.utils.file_utils import local_file_uri_to_path

        # as MLflow reads it, `%2e` and all
        place = str(local_file_uri_to_path(address))  # type: ignore[no-untyped-call]
        if Path(place).resolve().is_relative_to(home.mlflow_artifacts.resolve()):
            return
    shown = address if address.isprintable() else ascii(address)
    raise ArtifactPlaceError(
        f"MLflow's records in {home.mlflow_database} keep files in {shown}, outside of "
        f"{home.mlflow_artifacts}: they were made elsewhere, or by somebody else; set "
        "TILEWRIGHT_HOME to a new folder, or move this one back to where it was made"
    )


def _confine(registry: ModuleType) -> None:
    kind = registry.ArtifactRepositoryRegistry
    ask = kind.get_artifact_repository

    @wraps(ask)
    def confined(self: Any, artifact_uri: str, *others: Any, **named: Any) -> Any:
        check_place(str(artifact_uri))
        return ask(self, artifact_uri, *others, **named)

    kind.get_artifact_repository = confined
