"""Where runs keep their records: one folder for Prefect, MLflow, caches and logs.

The folder is `./.tilewright`, or `TILEWRIGHT_HOME`. `use_home` must run before Prefect or MLflow
is imported, since both read their settings from the environment at import. A user who points
`PREFECT_API_URL` or `MLFLOW_TRACKING_URI` at a server of their own keeps it.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from services.home_files import check_home
from services.logins import login, without_login
from services.mlflow_database import provide_mlflow_database
from targets.errors import TilewrightError


class HomeError(TilewrightError):
    """The folder for records cannot be created or written."""


@dataclass(frozen=True)
class Home:
    """The layout below `root`."""

    root: Path

    @property
    def prefect_database(self) -> Path:
        """SQLite file of this home's own Prefect server."""
        return self.root / "prefect" / "prefect.db"

    @property
    def cache(self) -> Path:
        """Finished stages (`tasks.store`)."""
        return self.root / "cache"

    @property
    def prefect_storage(self) -> Path:
        """Where Prefect would put results; nothing here has it keep any."""
        return self.root / "prefect" / "results"

    @property
    def mlflow_database(self) -> Path:
        """SQLite file that MLflow logs to, unless it logs to a server."""
        return self.root / "mlflow" / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """Folder of the files logged with runs in that database."""
        return self.root / "mlflow" / "artifacts"

    @property
    def log(self) -> Path:
        """What the libraries of a command log."""
        return self.root / "tilewright.log"

    @property
    def server_log(self) -> Path:
        """What the Prefect server prints."""
        return self.root / "prefect" / "server.log"


def current_home() -> Home:
    """The home in force, made absolute so that a later change of folder does not move it."""
    return Home(Path(os.environ.get("TILEWRIGHT_HOME", ".tilewright")).resolve())


def use_home(home: Home | None = None) -> Home:
    """Create the folders and point Prefect and MLflow at them. Raises `HomeError`, and `UnsafeFile`
    if there are links below the home."""
    home = home or current_home()
    try:
        check_home(home.root)
        for folder in (home.prefect_database.parent, home.mlflow_artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home.root):
            pass  # a folder that is there already may be on a disk that cannot be written
        _take_logins_out_of_addresses()
        settings = _settings(home)
        for name, value in settings.items():
            os.environ.setdefault(name, value)
        os.environ["TILEWRIGHT_HOME"] = str(home.root)
        if os.environ["MLFLOW_TRACKING_URI"] == settings["MLFLOW_TRACKING_URI"]:
            provide_mlflow_database(home.mlflow_database)
    except OSError as error:
        raise HomeError(
            f"cannot keep records under {home.root}: {error.strerror or error}; "
            "set TILEWRIGHT_HOME to a folder you can write"
        ) from None
    return home


def _take_logins_out_of_addresses() -> None:
    """Errors of the clients name the address, and land in logs and databases: hand a name and
    password to the clients beside it."""
    if pages := os.environ.get("PREFECT_UI_URL"):
        os.environ["PREFECT_UI_URL"] = without_login(pages)
    if found := login(os.environ.get("PREFECT_API_URL", "")):
        os.environ["PREFECT_API_URL"] = without_login(os.environ["PREFECT_API_URL"])
        os.environ.setdefault("PREFECT_API_AUTH_STRING", ":".join(found))
    if found := login(os.environ.get("MLFLOW_TRACKING_URI", "")):
        os.environ["MLFLOW_TRACKING_URI"] = without_login(os.environ["MLFLOW_TRACKING_URI"])
        os.environ.setdefault("MLFLOW_TRACKING_USERNAME", found[0])
        os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", found[1])


def _settings(home: Home) -> dict[str, str]:
    return {
        # No telemetry. MLflow knows only the literal `true`.
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_HOME": str(home.root / "prefect"),
        "PREFECT_PROFILES_PATH": str(home.root / "prefect" / "profiles.toml"),
        "PREFECT_LOCAL_STORAGE_PATH": str(home.prefect_storage),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect_database}",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        # One SQLite writer at a time: write task events in batches, and try again when it is busy.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
        "PREFECT_CLIENT_MAX_RETRIES": "60",
        "MLFLOW_TRACKING_URI": f"sqlite:///{home.mlflow_database}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
