"""Settings with which a command runs Prefect and MLflow: environment variables and their defaults.

Variables that the user has set stay in force, and so does the Prefect profile in use. Prefect would
look for its profiles in its home, which is the workspace here. So `PREFECT_PROFILES_PATH` names the
file: the profiles of the user's own Prefect home, or those that come with Prefect. Clients ask
servers of this machine directly, whatever proxy the user has for other hosts.
"""

from __future__ import annotations

import os
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tilewright.core.database_url import sqlite_address
from tilewright.core.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.services.workspace import Workspace

PROFILES = "PREFECT_PROFILES_PATH"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_PREFECT_SERVER = (
    "PREFECT_API_URL",
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_UI_URL",
)
_SERVER_ADDRESSES = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")


def own_settings() -> dict[str, str]:
    """Return the variable that names the file of Prefect's profiles, unless the user has set it."""
    return {} if os.environ.get(PROFILES) else {PROFILES: str(_profiles())}


def profile_settings() -> dict[str, str]:
    """Return the server that the user's profile in use names, with its login, by variable. Prefect
    reads the rest of the profile itself. Empty if the profile names no server, or if
    `PREFECT_API_URL` does."""
    if os.environ.get(_PREFECT_SERVER[0]):
        return {}
    try:
        known = tomllib.loads(Path(os.environ.get(PROFILES) or _profiles()).read_text())
        named = os.environ.get("PREFECT_PROFILE") or known["active"]
        values = known["profiles"][named]
        return {
            name: str(values[name])
            for name in _PREFECT_SERVER
            if _PREFECT_SERVER[0] in values and name in values
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # Prefect, which reads the same file, says what is wrong with it


def _profiles() -> Path:
    """The user's file, where there is one. `PREFECT_HOME` is the user's or, once it is set here,
    the workspace's; then the variable above is set as well."""
    home = os.environ.get("PREFECT_HOME")
    own = (Path(home) if home else Path.home() / ".prefect") / "profiles.toml"
    if own.is_file():
        return own
    spec = find_spec("prefect")  # which is not imported for it
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'prefect'", name="prefect")
    return Path(spec.origin).parent / "settings" / "profiles.toml"


class ProxyError(TilewrightError):
    """A proxy that cannot be used."""


def keep_loopback_direct() -> None:
    """Add loopback to the hosts that need no proxy, for this process and those it starts.

    All clients heed the variable: urllib, requests, httpx, websockets. Some read it in lower case
    first and some in upper case, so both are set. Raises `ProxyError`.
    """
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in known.split(",") if name.strip()]
    names += [name for name in LOOPBACK_NAMES if name not in names]
    value = "*" if "*" in names else ",".join(names)
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = value
    if value != "*" and find_spec("socksio") is None:
        _go_without_socks()


def _go_without_socks() -> None:
    """Prefect's client does not start where a SOCKS proxy is named that it has no code for, even if
    it would not use it."""
    socks = [
        name
        for name, address in os.environ.items()
        if name.lower().endswith("_proxy") and address.lower().startswith("socks")
    ]
    elsewhere = [name for name in _SERVER_ADDRESSES if _is_elsewhere(os.environ.get(name, ""))]
    if socks and elsewhere:
        raise ProxyError(
            f"the server in {elsewhere[0]} cannot be reached through the SOCKS proxy in "
            f"{socks[0]}; "
            "install httpx[socks] and PySocks, name an HTTP proxy, or unset one of the two"
        )
    for name in socks:
        del os.environ[name]


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and parts.hostname not in LOOPBACK_NAMES


def without_login(url: str) -> str:
    """Return an address without the name and password in it, as records and messages show it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def read_login(url: str) -> tuple[str, str] | None:
    """Return the name and password in an address, or None."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")


def provide_home() -> None:
    """Set `HOME` for a user whom the machine does not know by name, as in a container: Prefect does
    not start without a home. It is not the workspace, because files in a user's home are trusted.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def take_logins_out_of_addresses() -> None:
    """Move names and passwords from the addresses of servers to variables of their own. Errors of
    the clients name the address, and end in logs and databases."""
    if pages := os.environ.get("PREFECT_UI_URL"):
        os.environ["PREFECT_UI_URL"] = without_login(pages)
    if found := read_login(os.environ.get("PREFECT_API_URL", "")):
        os.environ["PREFECT_API_URL"] = without_login(os.environ["PREFECT_API_URL"])
        os.environ.setdefault("PREFECT_API_AUTH_STRING", ":".join(found))
    if found := read_login(os.environ.get("MLFLOW_TRACKING_URI", "")):
        os.environ["MLFLOW_TRACKING_URI"] = without_login(os.environ["MLFLOW_TRACKING_URI"])
        os.environ.setdefault("MLFLOW_TRACKING_USERNAME", found[0])
        os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", found[1])


def default_settings(workspace: Workspace) -> dict[str, str]:
    """Return the settings of Prefect and MLflow for a workspace, by variable. A variable that the
    user has set stays as it is."""
    return {
        # No telemetry. MLflow knows only the literal `true`.
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # links that runs store open these pages, which draw a run's graph; nobody is sold anything
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_HOME": str(workspace.root / "prefect"),
        **own_settings(),
        "PREFECT_LOCAL_STORAGE_PATH": str(workspace.cache),
        "PREFECT_API_DATABASE_CONNECTION_URL": sqlite_address(
            workspace.prefect_database, "aiosqlite"
        ),
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
        # The server of `tilewright ui` forgets runs that ended 90 days ago, every server the events
        # of more than a week.
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        # Nothing here uses automations; the service that looks for them costs time.
        "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
        "MLFLOW_TRACKING_URI": workspace.mlflow_address,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
