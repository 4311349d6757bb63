"""Starts the server of the start page (`dashboard.server`) in a separate process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tilewright.services.page_addresses import browser_address
from tilewright.services.server_credentials import Credentials
from tilewright.services.server_process import ServerProcess, listening_socket, start_server
from tilewright.services.workspace import Workspace


def start_dashboard(
    workspace: Workspace,
    host: str,
    port: int,
    credentials: Credentials,
    servers: Mapping[str, str],
    *,
    folder: Path,
) -> ServerProcess:
    """Start the server of the start page, which shows the runs of a workspace.

    Args:
        workspace: the workspace.
        host: address on which the server listens.
        port: port on which the server listens.
        credentials: credentials that the server requires.
        servers: environment variables with the addresses of the other servers' pages and with the
            login of Prefect.
        folder: folder below which output directories are searched. Their runs are also shown.

    Returns:
        The server, which is still starting.

    Raises:
        ServerError: the port is in use.
    """
    with listening_socket(host, port) as listener:
        descriptor = listener.fileno()
        return start_server(
            "start page's",
            [
                sys.executable, "-m", "tilewright.dashboard.server", str(descriptor), str(folder),
            ],
            health=browser_address(f"http://{host}:{port}/health"),
            log=workspace.root / "mlflow" / "dashboard.log",
            environment=credentials.environment | dict(servers),
            descriptors=[descriptor],
            headers=credentials.headers,
        )  # fmt: skip
