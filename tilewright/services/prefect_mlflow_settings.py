"""Settings of Prefect and MLflow for a command: environment variables and their defaults.

Variables that the user has set stay in force, and so does the user's active Prefect profile.
Prefect looks for profiles in its home folder, and here this folder lies in the workspace.
`PREFECT_PROFILES_PATH` therefore names a profiles file elsewhere: the one in the user's own Prefect
home or, if there is none, the one that Prefect's package contains.

Clients contact servers on this machine directly, even if the user has set a proxy for other hosts.
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
    """Return `PREFECT_PROFILES_PATH` with the path of the user's Prefect profiles.

    The result is empty if the user has set this environment variable.
    """
    return {} if os.environ.get(PROFILES) else {PROFILES: str(_profiles())}


def profile_settings() -> dict[str, str]:
    """Return the Prefect server and login in the user's active profile, as environment variables.

    Prefect reads the other settings of the profile itself. The result is empty if the profile names
    no server, or if `PREFECT_API_URL` is set.
    """
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
        return {}  # Prefect reads the same file and reports the error


def _profiles() -> Path:
    """Return the path of the user's Prefect profiles or, if there are none, of Prefect's own file.

    `PREFECT_HOME` is the user's Prefect home here. When this package later sets it to a folder in
    the workspace, it also sets `PREFECT_PROFILES_PATH`, so this function is not called again.
    """
    home = os.environ.get("PREFECT_HOME")
    own = (Path(home) if home else Path.home() / ".prefect") / "profiles.toml"
    if own.is_file():
        return own
    spec = find_spec("prefect")  # does not import Prefect
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'prefect'", name="prefect")
    return Path(spec.origin).parent / "settings" / "profiles.toml"


class ProxyError(TilewrightError):
    """A proxy in the environment cannot be used."""


def keep_loopback_direct() -> None:
    """Exclude loopback addresses from the proxy, for this process and its child processes.

    All clients (urllib, requests, httpx, websockets) respect the variable `no_proxy`. Some clients
    prefer its lower-case name and others its upper-case name, so both are set.

    If the package for SOCKS is missing, SOCKS proxies are also removed from the environment
    variables, because clients would not start with them.

    Raises:
        ProxyError: a server on another machine needs a SOCKS proxy, but the package for SOCKS is
            missing.
    """
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in known.split(",") if name.strip()]
    names += [name for name in LOOPBACK_NAMES if name not in names]
    value = "*" if "*" in names else ",".join(names)
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = value
    if value != "*" and find_spec("socksio") is None:
        _go_without_socks()


def _go_without_socks() -> None:
    """Remove SOCKS proxies from the environment, because the package for them is missing.

    Prefect's client does not start with a SOCKS proxy that it cannot use, even if it never contacts
    the proxy. Raises `ProxyError` if a server on another machine is configured, because that server
    may need the proxy.
    """
    socks = [
        name
        for name, address in os.environ.items()
        if name.lower().endswith("_proxy") and address.lower().startswith("socks")
    ]
    elsewhere = [name for name in _SERVER_ADDRESSES if _is_elsewhere(os.environ.get(name, ""))]
    if socks and elsewhere:
        raise ProxyError(
            f"the server in {elsewhere[0]} cannot be reached through the SOCKS proxy in "
            f"{socks[0]}; install httpx[socks] and PySocks, use an HTTP proxy, or unset one "
            "of the two variables"
        )
    for name in socks:
        del os.environ[name]


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and parts.hostname not in LOOPBACK_NAMES


def without_login(url: str) -> str:
    """Return a URL without its user name and password, for records and messages.

    A slash at the end is also removed.
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def read_login(url: str) -> tuple[str, str] | None:
    """Return the user name and the password in a URL. None if the URL has no user name."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return unquote(parts.username), unquote(parts.password or "")


def provide_home() -> None:
    """Set `HOME` to `/` if the user has no home folder, as in some containers.

    Prefect does not start without a home folder. The workspace is not used instead, because
    programs trust files in a home folder.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def take_logins_out_of_addresses() -> None:
    """Move user names and passwords from server URLs to separate environment variables.

    Error messages of clients contain the URL and are stored in logs and databases. Without this
    function, they would reveal the passwords.
    """
    if pages := os.environ.get("PREFECT_UI_URL"):
        os.environ["PREFECT_UI_URL"] = without_login(pages)
    if login := read_login(os.environ.get("PREFECT_API_URL", "")):
        os.environ["PREFECT_API_URL"] = without_login(os.environ["PREFECT_API_URL"])
        os.environ.setdefault("PREFECT_API_AUTH_STRING", ":".join(login))
    if login := read_login(os.environ.get("MLFLOW_TRACKING_URI", "")):
        os.environ["MLFLOW_TRACKING_URI"] = without_login(os.environ["MLFLOW_TRACKING_URI"])
        os.environ.setdefault("MLFLOW_TRACKING_USERNAME", login[0])
        os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", login[1])


def default_settings(workspace: Workspace) -> dict[str, str]:
    """Return the default settings of Prefect and MLflow for a workspace, as environment variables.

    The caller must not overwrite a variable that the user has set.

    Args:
        workspace: the workspace.
    """
    return {
        # No telemetry. MLflow knows only the literal `true`.
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Stored links are addresses of Prefect's first web interface, which also draws a run's
        # graph. Advertising is switched off.
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
        # SQLite allows one writer at a time: write events in batches, and retry when it is busy.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
        "PREFECT_CLIENT_MAX_RETRIES": "60",
        # The server of `tilewright ui` deletes runs that ended 90 days ago. Every server deletes
        # events that are older than a week.
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        # Automations are not used here, and the service for them takes processor time.
        "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
        "MLFLOW_TRACKING_URI": workspace.mlflow_address,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
