"""Confines MLflow's server to one folder of artifacts, whatever a request or its database names.

MLflow's own repository of local files opens any folder that an experiment, run, model or trace
names, and follows links. This one takes its place, through MLflow's registries of repositories and
stores. It finds every file from the root, folder by folder, and follows no link on the way.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import urlsplit

from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.prompt.constants import _PROMPT_SOURCE_PLACEHOLDERS
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, RESOURCE_DOES_NOT_EXIST
from mlflow.server import handlers
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import (
    _artifact_repository_registry,
    get_registered_artifact_repositories,
)
from mlflow.store.db.db_types import DATABASE_ENGINES
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as ModelRegistry
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as TrackingStore
from mlflow.utils.file_utils import local_file_uri_to_path

from tilewright.core.safe_files import UnsafeFile
from tilewright.services.artifact_places import is_served
from tilewright.services.confined_folders import (
    check_own,
    create_beside,
    open_to_read,
    opened_folder,
)

SERVED = "mlflow-artifacts:/"
"""The place of what has no other: on the server, which knows where."""
_RESOLVED = ("models", "runs")
_KEPT = ("", "file", "mlflow-artifacts")
_UNFINISHED = re.compile(r"\..*\.[0-9a-f]{16}\.tmp")
"""Names that `create_beside` gives."""


class RefusedPlace(MlflowException):
    """A place for artifacts that is not this server's, or that a link leads to."""

    def __init__(self, place: object) -> None:
        super().__init__(
            f"{place!a} is no place for artifacts on this server, which keeps them itself, in "
            "one folder; leave the place out, or name one below mlflow-artifacts:/, without '..' "
            "and links",
            error_code=PERMISSION_DENIED,
        )


def confine(root: Path, database: str) -> None:
    """Have MLflow's server in this process keep its artifacts below `root`, refuse to record other
    places, and open its database."""

    def confined(
        artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
    ) -> ConfinedArtifacts:
        return ConfinedArtifacts(root, artifact_uri, tracking_uri, registry_uri)

    def refused(artifact_uri: str, **_: object) -> NoReturn:
        raise RefusedPlace(artifact_uri)

    for scheme in set(get_registered_artifact_repositories()) - set(_RESOLVED):
        repository = confined if scheme in _KEPT else refused
        _artifact_repository_registry.register(scheme, repository)

    def tracking_store(store_uri: str, artifact_uri: str) -> ConfinedTrackingStore:
        return ConfinedTrackingStore(store_uri, artifact_uri)

    def model_registry(store_uri: str) -> ConfinedModelRegistry:
        return ConfinedModelRegistry(store_uri)

    for engine in DATABASE_ENGINES:
        handlers._tracking_store_registry.register(engine, tracking_store)
        handlers._model_registry_store_registry.register(engine, model_registry)
    handlers.initialize_backend_stores(database, database, SERVED)


# -- what is recorded --------------------------------------------------------------------------


class ConfinedTrackingStore(TrackingStore):
    """Refuses experiments with a place of their own outside, and what would be in theirs."""

    def create_experiment(
        self, name: str, artifact_location: str | None = None, tags: Any = None
    ) -> str:
        """As MLflow's. Raises `RefusedPlace`."""
        if artifact_location and not is_served(artifact_location):
            raise RefusedPlace(artifact_location)
        return str(super().create_experiment(name, artifact_location, tags))

    def create_run(self, experiment_id: str, *args: Any, **options: Any) -> Any:
        """As MLflow's. Raises `RefusedPlace`."""
        self._check(experiment_id)
        return super().create_run(experiment_id, *args, **options)

    def create_logged_model(self, experiment_id: str, *args: Any, **options: Any) -> Any:
        """As MLflow's. Raises `RefusedPlace`."""
        self._check(experiment_id)
        return super().create_logged_model(experiment_id, *args, **options)

    def start_trace(self, trace_info: Any) -> Any:
        """As MLflow's. Raises `RefusedPlace`."""
        self._check(trace_info.experiment_id)
        return super().start_trace(trace_info)

    def _check(self, experiment_id: str) -> None:
        place = self.get_experiment(experiment_id).artifact_location
        if not is_served(place):
            raise RefusedPlace(place)


class ConfinedModelRegistry(ModelRegistry):
    """Refuses versions of models that are elsewhere."""

    def create_model_version(self, name: str, source: str, *args: Any, **options: Any) -> Any:
        """As MLflow's. Raises `RefusedPlace`."""
        if source not in _PROMPT_SOURCE_PLACEHOLDERS and not is_served(source, lookup=True):
            raise RefusedPlace(source)
        return super().create_model_version(name, source, *args, **options)


# -- files -------------------------------------------------------------------------------------


class ConfinedArtifacts(ArtifactRepository):
    """Files below `root`. Raises `RefusedPlace` for a place or path that leaves it."""

    def __init__(
        self,
        root: Path,
        artifact_uri: str,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
    ) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        self._root = root
        if is_served(artifact_uri):
            self._folder = root / urlsplit(artifact_uri).path.strip("/")
        else:
            self._folder = Path(local_file_uri_to_path(artifact_uri))
        if os.pardir in self._folder.parts or not self._folder.is_relative_to(root):
            raise RefusedPlace(artifact_uri)

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """Copy a file into the folder `artifact_path`, whole or not at all."""
        path = self._path(artifact_path) / os.path.basename(local_file)
        with _answering(path.name), opened_folder(path.parent, self._root, make=True) as folder:
            check_own(path, folder)
            handle, fresh = create_beside(path, folder)
            try:
                with open(local_file, "rb") as source, os.fdopen(handle, "wb") as copy:
                    shutil.copyfileobj(source, copy)
                os.replace(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(fresh, dir_fd=folder)
                raise

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Copy the files of a folder."""
        for folder, _, names in os.walk(local_dir):
            below = PurePosixPath(artifact_path or "") / os.path.relpath(folder, local_dir)
            for name in names:
                self.log_artifact(os.path.join(folder, name), str(below))

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """Plain files and folders there, none if it is a file or missing."""
        place = self._path(path)
        with _answering(path):
            if not self._is_folder(place):
                return []
            with opened_folder(place, self._root) as folder:
                states = {
                    name: os.stat(name, dir_fd=folder, follow_symlinks=False)
                    for name in sorted(os.listdir(folder))
                    if not _UNFINISHED.fullmatch(name)
                }
        return [
            FileInfo(
                (place / name).relative_to(self._folder).as_posix(),
                stat.S_ISDIR(state.st_mode),
                None if stat.S_ISDIR(state.st_mode) else state.st_size,
            )
            for name, state in states.items()
            if stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
        ]

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Remove a file, or a folder with all that is in it."""
        place = self._path(artifact_path)
        if place == self._root:
            raise RefusedPlace(artifact_path)
        with _answering(artifact_path), opened_folder(place.parent, self._root) as folder:
            if self._is_folder(place):
                shutil.rmtree(place.name, dir_fd=folder)
            elif check_own(place, folder):
                os.unlink(place.name, dir_fd=folder)

    def download_artifacts(self, artifact_path: str, dst_path: str | None = None) -> str:
        """A copy of a file in the folder `dst_path`, by default a new one; of no folder."""
        copy = os.path.join(dst_path or tempfile.mkdtemp(), PurePosixPath(artifact_path).name)
        with _answering(artifact_path):
            if self._is_folder(self._path(artifact_path)):
                raise MlflowException.invalid_parameter_value(
                    f"{artifact_path!a} is a folder; ask for a file in it"
                )
        self._download_file(artifact_path, copy)
        return copy

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        with _answering(remote_file_path):
            handle = open_to_read(self._path(remote_file_path), within=self._root)
            with os.fdopen(handle, "rb") as source, open(local_path, "wb") as copy:
                shutil.copyfileobj(source, copy)

    def _path(self, artifact_path: str | None) -> Path:
        asked = PurePosixPath(artifact_path or "")
        if asked.is_absolute() or os.pardir in asked.parts or "\0" in str(asked):
            raise RefusedPlace(artifact_path)
        return self._folder / asked

    def _is_folder(self, place: Path) -> bool:
        """Not if it is missing or a file. Raises `UnsafeFile` for a link."""
        if place == self._root:
            return True
        try:
            with opened_folder(place.parent, self._root) as above:
                found = os.stat(place.name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(found.st_mode):
            raise UnsafeFile(f"{place} is a symbolic link")
        return stat.S_ISDIR(found.st_mode)


@contextmanager
def _answering(path: object) -> Iterator[None]:
    """Errors as MLflow answers them; none says where the root is."""
    try:
        yield
    except UnsafeFile:
        raise RefusedPlace(path) from None
    except FileNotFoundError:
        raise MlflowException(
            f"No such artifact: {path!a}", error_code=RESOURCE_DOES_NOT_EXIST
        ) from None
