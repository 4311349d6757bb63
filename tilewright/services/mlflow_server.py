"""The MLflow server of `tilewright ui`.

`python -m tilewright.services.mlflow_server DESCRIPTOR DATABASE ARTIFACTS` runs the server itself:
MLflow's own application behind `login_middleware.Guard`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Mapping
from typing import NotRequired, TypedDict, cast
from urllib.parse import quote

from tilewright.services.page_addresses import (
    ANY_INTERFACE,
    DEFAULT_PORTS,
    LOCAL,
    MLFLOW,
    browser_address,
    is_local,
    page_address,
    runs_url,
)
from tilewright.services.server_credentials import (
    USER,
    Credentials,
    opens_local_server,
    workspace_secret,
)
from tilewright.services.server_process import ServerProcess, listening_socket, start_server
from tilewright.services.workspace import Workspace

EXPERIMENT = "tilewright"
"""Name of the MLflow experiment with the runs of `tilewright tune`."""
VIEW_KEY = "tilewright"
"""Name of the saved view of the experiment `EXPERIMENT` in MLflow's pages."""
TRACKING_URI, USERNAME = "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME"


def start_mlflow_server(
    workspace: Workspace,
    host: str,
    port: int = DEFAULT_PORTS[MLFLOW],
    credentials: Credentials | None = None,
) -> ServerProcess:
    """Start an MLflow server for the runs of a workspace.

    Args:
        workspace: the workspace.
        host: address on which the server listens.
        port: port on which the server listens.
        credentials: credentials that the server requires; by default the secret of the workspace
            with a new key.

    Returns:
        The server, which is still starting.

    Raises:
        ServerError: the port is in use.
    """
    credentials = credentials or Credentials.for_workspace(workspace)
    with listening_socket(host, port) as listener:
        descriptor = listener.fileno()
        return start_server(
            "MLflow",
            [
                sys.executable, "-m", "tilewright.services.mlflow_server", str(descriptor),
                workspace.mlflow_address, workspace.mlflow_artifacts.as_uri(),
            ],
            health=browser_address(f"http://{host}:{port}/health"),
            log=workspace.root / "mlflow" / "server.log",
            environment=credentials.environment | _security(host, port),
            descriptors=[descriptor],
            headers=credentials.headers,
        )  # fmt: skip


def _security(host: str, port: int) -> dict[str, str]:
    """Return MLflow's settings for the host names and origins from which it accepts requests.

    Args:
        host: address on which the server listens.
        port: port on which the server listens.

    Returns:
        Environment variables by name.
    """
    names = [host, "localhost"]
    if host not in LOCAL or host == ANY_INTERFACE:
        # A browser may use any address of this machine, so accept those of private networks.
        names += [socket.gethostname(), socket.getfqdn(), "192.168.*", "10.*", "172.*"]
    return {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{name},{name}:{port}" for name in names),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{port}" for name in names),
    }


def mlflow_login(workspace: Workspace) -> dict[str, str]:
    """Return the login for the workspace's MLflow server, as environment variables for clients.

    The result is empty unless `MLFLOW_TRACKING_URI` names a running server of this workspace. It is
    also empty if the user has set a login.

    Args:
        workspace: the workspace.

    Raises:
        SecretError: the file of the secret is not private.
        WorkspaceError: the secret cannot be stored.
    """
    named = os.environ.get(TRACKING_URI, "").rstrip("/")
    if not is_local(named) or any(map(os.environ.get, (USERNAME, "MLFLOW_TRACKING_TOKEN"))):
        return {}
    return _login_at(named, workspace)


def _login_at(address: str, workspace: Workspace) -> dict[str, str]:
    """Return the login for an MLflow server, as environment variables.

    The result is empty if the address does not belong to a running server of this workspace.

    Args:
        address: address of the server.
        workspace: the workspace.
    """
    credentials = Credentials(workspace_secret(workspace))
    if not opens_local_server(f"{address}/health", credentials):
        return {}
    return {USERNAME: USER, "MLFLOW_TRACKING_PASSWORD": credentials.secret}


def running_mlflow(workspace: Workspace) -> dict[str, str]:
    """Return the environment variables with which MLflow's clients use this workspace's server.

    The result is empty if the server is not running.

    Args:
        workspace: the workspace.

    Raises:
        SecretError: the file of the secret is not private.
        WorkspaceError: the secret cannot be stored.
    """
    address = page_address(MLFLOW)
    login = _login_at(address, workspace)
    return {TRACKING_URI: address} | login if login else {}


def mlflow_pages(server: ServerProcess) -> str:
    """Return the address of the web pages of an MLflow server."""
    return server.health.removesuffix("/health")


def mlflow_runs_page(server: ServerProcess) -> str:
    """Return the address of the MLflow page that lists the runs of `tilewright tune`.

    Before the first run, this is the page with all experiments. The server must be running.

    Args:
        server: the MLflow server.
    """
    pages = mlflow_pages(server)
    experiment = _experiment(pages, server.headers)
    if experiment is None:
        return runs_url(pages, None)
    shared = any(tag["key"].endswith(f".{VIEW_KEY}") for tag in experiment.get("tags", []))
    return runs_url(pages, experiment["experiment_id"]) + f"&viewStateShareKey={VIEW_KEY}" * shared


class _Tag(TypedDict):
    """A tag of an experiment in an answer of MLflow's API."""

    key: str
    value: str


class _Experiment(TypedDict):
    """Fields of an MLflow experiment that we use."""

    experiment_id: str
    tags: NotRequired[list[_Tag]]


def _experiment(pages: str, headers: Mapping[str, str]) -> _Experiment | None:
    asked = "api/2.0/mlflow/experiments/get-by-name?experiment_name=" + quote(EXPERIMENT)
    request = urllib.request.Request(f"{pages}/{asked}", headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return cast(_Experiment, json.loads(reply.read())["experiment"])
    except (OSError, ValueError, KeyError):
        return None


# -- the server --------------------------------------------------------------------------------


def _serve(descriptor: int, database: str, artifacts: str) -> None:
    """Run the same server as `mlflow server`, on a socket that is already open.

    Args:
        descriptor: file descriptor of the socket.
        database: URL of MLflow's database.
        artifacts: folder of the artifacts.
    """
    credentials = Credentials.from_environment()
    os.environ.update({
        "_MLFLOW_SERVER_FILE_STORE": database,
        "_MLFLOW_SERVER_REGISTRY_STORE": database,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": artifacts,
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artifacts,
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
    })  # fmt: skip

    import uvicorn
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    from tilewright.services.login_middleware import Guard

    initialize_backend_stores(database, database, artifacts)
    config = uvicorn.Config(
        Guard(app, credentials), log_level="warning", access_log=False, proxy_headers=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *sys.argv[2:])
