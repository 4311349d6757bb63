"""The Prefect server of a command or of `tilewright ui`, and its database.

Prefect's own ephemeral server takes seconds to answer, and it is started only when the first flow
needs it. The server here starts immediately, while the command still reads its input. Its database
is a copy of a template that was migrated when Tilewright was set up. The server ends with the
command.

`python -m tilewright.services.prefect_server DESCRIPTOR` runs the server itself.
"""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.files import as_object, as_text, providing, read_json_file, write_atomically
from tilewright.core.garbage_collection import collect_beside
from tilewright.services.page_addresses import (
    DEFAULT_PORTS,
    PREFECT,
    browser_address,
    remember_addresses,
)
from tilewright.services.server_credentials import Credentials, opens_local_server, workspace_secret
from tilewright.services.server_process import (
    LOOPBACK,
    ServerProcess,
    listening_socket,
    start_server,
)
from tilewright.services.workspace import Workspace

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Login:
    """Address of a Prefect server of this workspace, and credentials that it accepts.

    Attributes:
        api_url: address of the server's API.
        credentials: credentials that the server accepts.
    """

    api_url: str
    credentials: Credentials

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables for Prefect's clients."""
        return {
            "PREFECT_API_URL": self.api_url,
            "PREFECT_API_AUTH_STRING": self.credentials.login,
        }


@dataclass(frozen=True)
class PrefectServer:
    """A Prefect server that was started and may not answer yet.

    Call `process.wait()` before the first flow, and `process.stop()` at the end.

    Attributes:
        process: process of the server.
        api_url: address of the server's API.
        credentials: credentials that the server accepts.
    """

    process: ServerProcess
    api_url: str
    credentials: Credentials

    @property
    def login(self) -> Login:
        """The login for clients of this server."""
        return Login(self.api_url, self.credentials)

    @property
    def pages(self) -> str:
        """Address of the web pages. Only servers of `start_prefect_pages` serve web pages."""
        return self.api_url.removesuffix("/api")


def start_prefect_server(workspace: Workspace) -> PrefectServer:
    """Start a server for the flows of this process, on a free port.

    The server has no web pages and does not run scheduled deployments.

    Args:
        workspace: the workspace, whose database the server uses.
    """
    return _start(workspace, LOOPBACK, 0, Credentials.for_workspace(workspace), interface=False)


def start_prefect_pages(
    workspace: Workspace,
    host: str,
    port: int = DEFAULT_PORTS[PREFECT],
    credentials: Credentials | None = None,
) -> PrefectServer:
    """Start a server that also serves the web pages and runs scheduled deployments.

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
    return _start(
        workspace, host, port, credentials or Credentials.for_workspace(workspace), interface=True
    )


def _start(
    workspace: Workspace, host: str, port: int, credentials: Credentials, *, interface: bool
) -> PrefectServer:
    _provide_database(workspace)
    with listening_socket(host, port) as listener:
        api_url = browser_address(f"http://{host}:{listener.getsockname()[1]}/api")
        login = Login(api_url, credentials)
        descriptor = listener.fileno()
        process = start_server(
            "Prefect",
            [sys.executable, "-m", "tilewright.services.prefect_server", str(descriptor)]
            + ["--interface"] * interface,
            health=_guarded_route(api_url),
            log=workspace.server_log,
            environment={
                "PREFECT_SERVER_API_AUTH_STRING": credentials.login,
                "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": api_url.removesuffix("/api"),
                # relative, so that pages send requests to the host name that the browser uses
                "PREFECT_UI_API_URL": "/api",
                **login.settings,
            },
            descriptors=[descriptor],
            headers=credentials.headers,
        )
    return PrefectServer(process, api_url, credentials)


# -- a server that is already there ------------------------------------------------------------


@contextmanager
def announce_server(workspace: Workspace, server: PrefectServer, **others: str) -> Iterator[None]:
    """Let other commands in this workspace use the server of `tilewright ui` within the context.

    The addresses of the web pages are also stored, and stay stored after the context. Links in
    later runs therefore lead to the same addresses.

    Args:
        workspace: the workspace.
        server: the Prefect server.
        others: address of the pages of each other server, by name of the server.

    Raises:
        OSError: the announcement cannot be written.
    """
    write_atomically(_announcement(workspace), json.dumps({"api_url": server.api_url}).encode())
    remember_addresses(workspace, **{PREFECT: server.pages}, **others)
    try:
        yield
    finally:
        if _announced_address(workspace) == server.api_url:
            with suppress(OSError):
                _announcement(workspace).unlink()


def find_announced_server(workspace: Workspace) -> Login | None:
    """Return the login for the server that `tilewright ui` announced, or None if none is running.

    Args:
        workspace: the workspace.

    Raises:
        SecretError: the file of the secret is not private.
        WorkspaceError: the secret cannot be stored.
    """
    api_url = _announced_address(workspace)
    return None if api_url is None else login_at(api_url, workspace)


def login_at(api_url: str, workspace: Workspace) -> Login | None:
    """Return the login for a server, or None if it is not a running server of this workspace.

    The secret is sent only to a process of the current user that requires a login.

    Args:
        api_url: address of the server's API.
        workspace: the workspace.

    Raises:
        SecretError: the file of the secret is not private.
        WorkspaceError: the secret cannot be stored.
    """
    credentials = Credentials(workspace_secret(workspace))
    opens = opens_local_server(_guarded_route(api_url), credentials)
    return Login(api_url, credentials) if opens else None


def _guarded_route(api_url: str) -> str:
    """Return an address on a Prefect server that requires a login, for checking credentials.

    `/health` is not suitable, because it answers without a login.

    Args:
        api_url: address of the server's API.
    """
    return f"{api_url.rstrip('/')}/version"


def _announced_address(workspace: Workspace) -> str | None:
    try:
        return as_text(as_object(read_json_file(_announcement(workspace)))["api_url"])
    except (OSError, ValueError, KeyError):
        return None


def _announcement(workspace: Workspace) -> Path:
    return workspace.root / "prefect" / "server.json"


# -- a database that is already migrated -------------------------------------------------------


@contextmanager
def preparing_database_template(workspace: Workspace) -> Iterator[None]:
    """Create the template of Prefect's database, while the `with` block does other work.

    A server in an empty workspace creates the database, which is then copied to a place beside the
    Python environment. New workspaces get a copy of it. If the template already exists, nothing is
    done.

    Args:
        workspace: an empty workspace.
    """
    if _template().exists():
        yield
        return
    server = start_prefect_server(workspace)
    try:
        yield
        server.process.wait()
    finally:
        server.process.stop()
    with providing(_template()) as fresh, sqlite3.connect(workspace.prefect_database) as database:
        database.execute("VACUUM INTO ?", (str(fresh),))


def _provide_database(workspace: Workspace) -> None:
    if workspace.prefect_database.exists() or not _template().exists():
        return  # without a template, the server creates the tables, which takes seconds
    with providing(workspace.prefect_database) as fresh:
        shutil.copyfile(_template(), fresh)


def _template() -> Path:
    return Path(sys.prefix) / "share" / "tilewright" / f"prefect-{version('prefect')}.db"


# -- the server --------------------------------------------------------------------------------


class RetrySoon:
    """ASGI middleware that lets clients retry quickly if the SQLite file is busy (status 503).

    The file is usually free again within milliseconds, but by default a client would wait two
    seconds.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and add a short retry time to a response with status 503."""

        async def send_with_hint(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                message["headers"] = [*message.get("headers", []), (b"retry-after", b"0.05")]
            await send(message)

        await self.app(scope, receive, send_with_hint)


def _serve(descriptor: int, *, interface: bool) -> None:
    import uvicorn
    from prefect.server.api.server import create_app

    from tilewright.services.login_middleware import OwnServerOnly

    app = create_app(ephemeral=not interface, final=True)
    app.add_middleware(RetrySoon)
    config = uvicorn.Config(
        OwnServerOnly(app), log_level="error", access_log=False, proxy_headers=False, lifespan="on",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    collect_beside()
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    _serve(int(sys.argv[1]), interface="--interface" in sys.argv)
