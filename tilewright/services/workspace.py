"""The workspace: a folder with the records of Prefect and MLflow, caches and logs.

The folder is `./.tilewright`, or `TILEWRIGHT_HOME` if that variable is set and not empty. It
belongs to its user, nobody else may write to it, and its files are trusted.

`use_workspace` must run before Prefect or MLflow is imported, because both read their settings from
the environment at import. Servers that the user has set in `PREFECT_API_URL` or
`MLFLOW_TRACKING_URI` are still used.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilewright.core.database_url import sqlite_address, unfit_for_sqlite
from tilewright.core.errors import TilewrightError
from tilewright.core.files import as_object, canonical, read_json_file, write_atomically
from tilewright.core.formats import WORKSPACE
from tilewright.core.working_folder import DEFAULT, VARIABLE, workspace_root
from tilewright.services.mlflow_database import provide_mlflow_database, relocate_artifacts
from tilewright.services.prefect_mlflow_settings import (
    default_settings,
    keep_loopback_direct,
    profile_settings,
    provide_home,
    take_logins_out_of_addresses,
)

_OTHERS_WRITE = 0o022  # write permission of the group and of others


class WorkspaceError(TilewrightError):
    """The folder of the workspace cannot be created, written or trusted."""


@dataclass(frozen=True)
class Workspace:
    """Paths of the files in a workspace.

    Attributes:
        root: folder of the workspace.
    """

    root: Path

    @property
    def prefect_database(self) -> Path:
        """SQLite file of the Prefect server of this workspace."""
        return self.root / "prefect" / "prefect.db"

    @property
    def cache(self) -> Path:
        """Folder with the cached results of finished stages (`tasks.cached_task`)."""
        return self.root / "cache"

    @property
    def mlflow_database(self) -> Path:
        """SQLite file to which MLflow logs, unless it logs to a server."""
        return self.root / "mlflow" / "mlflow.db"

    @property
    def mlflow_address(self) -> str:
        """The URL of MLflow's SQLite file."""
        return sqlite_address(self.mlflow_database)

    @property
    def mlflow_artifacts(self) -> Path:
        """Folder of the files that MLflow runs log."""
        return self.root / "mlflow" / "artifacts"

    @property
    def version_file(self) -> Path:
        """File with the version of the workspace's layout."""
        return self.root / "workspace.json"

    @property
    def log(self) -> Path:
        """File with the log messages of libraries."""
        return self.root / "tilewright.log"

    @property
    def server_log(self) -> Path:
        """File with the output of the Prefect server."""
        return self.root / "prefect" / "server.log"


def current_workspace() -> Workspace:
    """Return the current workspace. Its path is absolute.

    Raises:
        WorkspaceError: the path cannot be determined, for example because the working folder was
            deleted.
    """
    try:
        return Workspace(workspace_root())
    except (OSError, RuntimeError) as error:  # deleted working folder; loop of links
        raise _unusable_error(os.environ.get(VARIABLE) or DEFAULT, str(error)) from None


def use_workspace(workspace: Workspace | None = None) -> Workspace:
    """Create the folders of a workspace, and configure Prefect and MLflow to use them.

    Args:
        workspace: the workspace; by default the current one.

    Returns:
        The workspace.

    Raises:
        WorkspaceError: the workspace cannot be written, has an unknown version, or belongs to
            another user.
    """
    workspace = workspace or current_workspace()
    if reason := unfit_for_sqlite(workspace.mlflow_database) or unfit_for_sqlite(
        workspace.prefect_database
    ):
        raise _unusable_error(workspace.root, reason)
    try:
        _make_private(workspace)
        _check_version(workspace.version_file)
        for folder in (workspace.prefect_database.parent, workspace.mlflow_artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        if not workspace.version_file.exists():
            about = {WORKSPACE.key: WORKSPACE.written}
            write_atomically(workspace.version_file, canonical(about) + b"\n")
        provide_home()
        for name, value in profile_settings().items():
            os.environ.setdefault(name, value)
        take_logins_out_of_addresses()
        keep_loopback_direct()
        settings = default_settings(workspace)
        for name, value in settings.items():
            os.environ.setdefault(name, value)
        os.environ["TILEWRIGHT_HOME"] = str(workspace.root)
        if os.environ["MLFLOW_TRACKING_URI"] == settings["MLFLOW_TRACKING_URI"]:
            provide_mlflow_database(workspace.mlflow_database)
            relocate_artifacts(workspace.mlflow_database, workspace.mlflow_artifacts)
    except OSError as error:
        raise _unusable_error(workspace.root, error.strerror or str(error)) from None
    return workspace


def _check_version(about: Path) -> None:
    """Check that this program can read a workspace's version.

    Raises `WorkspaceError` if it cannot, and `OSError` if the file cannot be read.

    Args:
        about: path of the file with the version.
    """
    try:
        version = WORKSPACE.version_in(as_object(read_json_file(about)))
    except FileNotFoundError:
        version = WORKSPACE.unmarked
    except ValueError:
        raise WorkspaceError(
            f"{about} is damaged; remove this file only and repeat the command"
        ) from None
    if refusal := WORKSPACE.refusal(about.parent, version):
        raise WorkspaceError(refusal)


def _make_private(workspace: Workspace) -> None:
    """Create the workspace's folder for its user alone. Check that no other user can write to it.

    An earlier version may have left the permissions to the umask. Such permissions are corrected.
    Raises `WorkspaceError` if another user owns the folder or may have written to it, and
    `OSError`.
    """
    root = workspace.root
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = root.stat()
    with tempfile.TemporaryFile(dir=root) as fresh:  # on some file systems, one user owns all files
        if state.st_uid != os.fstat(fresh.fileno()).st_uid:
            raise WorkspaceError(
                f"{root} belongs to another user (ID {state.st_uid}), and Tilewright only "
                f"uses workspaces of the current user; set {VARIABLE} to a folder of your "
                "own, or run the command as that user"
            )
    if not state.st_mode & _OTHERS_WRITE:
        return
    if state.st_mode & stat.S_ISVTX or not workspace.version_file.exists():
        raise WorkspaceError(
            f"other users can write to the workspace {root}, so its files cannot be trusted; "
            f"remove the permission with: chmod go-w {root}; or set {VARIABLE} to another "
            "folder"
        )
    root.chmod(stat.S_IMODE(state.st_mode) & ~_OTHERS_WRITE)


def _unusable_error(folder: object, reason: str) -> WorkspaceError:
    shown = str(folder) if str(folder).isprintable() else ascii(str(folder))
    return WorkspaceError(
        f"cannot write to {shown}: {reason}; set TILEWRIGHT_HOME to a folder that you can write to"
    )
