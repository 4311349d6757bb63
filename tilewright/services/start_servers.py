"""Starts the servers of Prefect and MLflow, for the flows of a command or for `tilewright ui`.

`embedded` is the context in which a command runs its flows. It uses the server in `PREFECT_API_URL`
or the server of `tilewright ui`. If there is neither, it starts a Prefect server for the duration
of the context. `show_pages` serves the start page and the pages of Prefect and MLflow until it is
interrupted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tilewright.services.mlflow_server import (
    TRACKING_URI,
    mlflow_login,
    mlflow_pages,
    mlflow_runs_page,
    running_mlflow,
    start_mlflow_server,
)
from tilewright.services.page_addresses import (
    MLFLOW,
    MLFLOW_PAGES,
    PREFECT,
    PREFECT_PAGES,
    RUNS,
    free_port_above,
    is_taken,
    name_prefect_pages,
    port_or_last,
)
from tilewright.services.prefect_server import (
    Login,
    announce_server,
    find_announced_server,
    login_at,
    start_prefect_pages,
    start_prefect_server,
)
from tilewright.services.retention import prune_daily
from tilewright.services.server_credentials import (
    Credentials,
    opens_local_server,
    secret_path,
    workspace_secret,
)
from tilewright.services.server_process import LOOPBACK, ServerError, ServerProcess
from tilewright.services.workspace import Workspace, current_workspace, use_workspace

API_URL, AUTH_STRING = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"
POLL_SECONDS = 0.2
StartPage = Callable[[Workspace, str, int, Credentials, Mapping[str, str]], ServerProcess]
"""Function that starts the server of the start page. Its arguments are the workspace, the host, the
port, the credentials, and environment variables with the addresses of the other servers and the
login of Prefect."""


@contextmanager
def embedded(
    prepare: Callable[[], None] = lambda: None, *, prune: bool = True
) -> Iterator[Workspace]:
    """Provide Prefect and MLflow within the context, so that flows can run.

    The context uses the server in `PREFECT_API_URL` or the server of `tilewright ui`. If there is
    neither, it starts a server for the duration of the context.

    Args:
        prepare: called while the server starts, for example to import slow modules.
        prune: whether to remove cached stages that were not used for a long time.

    Yields:
        The workspace.

    Raises:
        ServerError: the server does not start.
        SecretError: the file of the secret is not private.
        WorkspaceError: the workspace cannot be used.
    """
    workspace = use_workspace()
    if prune:
        prune_daily(workspace)
    mlflow = mlflow_login(workspace)
    changed = (API_URL, AUTH_STRING, PREFECT_PAGES, *mlflow)
    before = {name: os.environ.get(name) for name in changed}
    named = before[API_URL]
    if named:
        name_prefect_pages(named)
    login = login_for(named, workspace)
    own = None
    if login is None and not named:
        own = start_prefect_server(workspace)
        login = own.login
    try:
        if login is not None:
            os.environ |= login.settings
        os.environ |= mlflow
        prepare()
        if own is not None:
            own.process.wait()
        with _settings():
            _log_to_file(workspace)
            try:
                yield workspace
            finally:
                send_pending_records()
    finally:
        _restore(before)
        if own is not None:
            own.process.stop()


def login_for(named: str | None, workspace: Workspace) -> Login | None:
    """Return the login for the Prefect server to use, if it runs and belongs to this workspace.

    Args:
        named: address of the API that the user has set. If it is empty or None, the server of
            `tilewright ui` is used.
        workspace: the workspace.

    Returns:
        The login. None if no such server is running, or if the user has set both an address and a
        login.

    Raises:
        SecretError: the file of the secret is not private.
        WorkspaceError: the secret cannot be stored.
    """
    if not named:
        return find_announced_server(workspace)
    return None if os.environ.get(AUTH_STRING) else login_at(named, workspace)


def server_variables() -> dict[str, str]:
    """Return the environment variables with which other programs use this workspace's servers.

    The variables are for Prefect's and MLflow's own commands. Only running servers are included.

    Raises:
        ServerError: no Prefect server of this workspace is running.
        SecretError: the file of the secret is not private.
        WorkspaceError: the workspace cannot be used.
    """
    workspace = current_workspace()
    login = find_announced_server(workspace) if workspace.version_file.exists() else None
    if login is None:
        raise ServerError(
            f"no server of {workspace.root} is running; start one with 'tilewright ui' or "
            "'tilewright serve' in this folder, and repeat this command in a second terminal"
        )
    return login.settings | running_mlflow(workspace)


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _settings() -> Iterator[None]:
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    # At the end of each flow, Prefect would wait about a second for its heartbeat thread.
    changed = {PREFECT_API_URL: os.environ[API_URL], PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    if login := os.environ.get(AUTH_STRING):
        changed[PREFECT_API_AUTH_STRING] = login
    with temporary_settings(changed):
        yield


def _log_to_file(workspace: Workspace) -> None:
    """Write log messages of libraries to a file, because the command uses the terminal."""
    handler = logging.FileHandler(workspace.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("", "prefect", "mlflow", "alembic", "uvicorn", "fastapi"):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            if isinstance(old, logging.StreamHandler) and not isinstance(old, logging.FileHandler):
                logger.removeHandler(old)
        if not name or not logger.propagate:
            logger.addHandler(handler)


def send_pending_records() -> None:
    """Send logs and events that Prefect's clients have not sent yet, before the server stops."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=5)
    EventsWorker.drain_all(timeout=5)


def choose_ports(asked: Mapping[str, int | None], tell: Callable[[str], None]) -> dict[str, int]:
    """Choose the ports of servers.

    A requested port is used unchanged. Any other server gets the port of `page_address`. If another
    program uses that port, the server gets a free port instead. If a server of this workspace is
    still running there, the port is kept.

    Args:
        asked: requested port of each server, by name; None if the user requested none.
        tell: function that is called with a message about each port that had to change.

    Returns:
        The port of each server in `asked`.

    Raises:
        SecretError: the file of the secret is not private.
        WorkspaceError: the workspace cannot be used.
    """
    ports = {server: port_or_last(port, server) for server, port in asked.items()}
    for server, port in ports.items():
        if asked[server] is None and is_taken(port) and not _is_own(server, port):
            ports[server] = free_port_above(port)
            tell(
                f"port {port} is in use by another program; the pages of {server} use port "
                f"{ports[server]} instead"
            )
    return ports


def _is_own(server: str, port: int) -> bool:
    """Return whether a server of this workspace listens on a port.

    Args:
        server: name of the server.
        port: the port.
    """
    workspace = current_workspace()
    if not secret_path(workspace).exists():
        return False
    route = "api/version" if server == PREFECT else "health"
    credentials = Credentials(workspace_secret(workspace))
    return opens_local_server(f"http://{LOOPBACK}:{port}/{route}", credentials)


class ServiceUrls(dict[str, str]):
    """Addresses of the web pages of running servers, by name of the server.

    The links to the start page and to MLflow contain a key that logs a browser in. Prefect's pages
    ask each browser once for a password.

    Args:
        values: addresses by name.
        servers: the running servers.
        prefect_password: password for Prefect's pages.
    """

    def __init__(
        self, values: dict[str, str], servers: list[ServerProcess], prefect_password: str
    ) -> None:
        super().__init__(values)
        self.prefect_password = prefect_password
        self._servers = servers

    def wait(self) -> None:
        """Block until a `KeyboardInterrupt`. Raise `ServerError` if a server ends by itself."""
        while True:
            for process in self._servers:
                if process.process.poll() is not None:
                    raise ServerError(
                        f"the {process.name} server stopped unexpectedly; see {process.log}"
                    )
            time.sleep(POLL_SECONDS)


@contextmanager
def show_pages(
    host: str, ports: Mapping[str, int], start_page: StartPage, tell: Callable[[str], None]
) -> Iterator[ServiceUrls]:
    """Run the start page and the servers of Prefect and MLflow within the context.

    A `KeyboardInterrupt` ends the context without an error. All servers are stopped at the end.

    Args:
        host: address on which the servers listen.
        ports: port of each server, by name.
        start_page: function that starts the server of the start page.
        tell: function that is called with progress messages while the servers start.

    Yields:
        The addresses of the web pages.

    Raises:
        ServerError: a port is in use, or a server does not start.
    """
    workspace = use_workspace()
    credentials = Credentials.for_workspace(workspace)
    with ExitStack() as stack:
        prefect = start_prefect_pages(workspace, host, ports[PREFECT], credentials)
        stack.callback(prefect.process.stop)
        mlflow = start_mlflow_server(workspace, host, ports[MLFLOW], credentials)
        stack.callback(mlflow.stop)
        login = login_for(api, workspace) if (api := os.environ.get(API_URL)) else prefect.login
        named = _names_of(workspace, prefect.pages, mlflow_pages(mlflow))
        named |= login.settings if login else {}
        runs = start_page(workspace, host, ports[RUNS], credentials, named)
        stack.callback(runs.stop)
        servers = [runs, prefect.process, mlflow]
        try:
            for process in servers:
                process.wait(tell)
            start = runs.health.removesuffix("/health")
            others = {MLFLOW: mlflow_pages(mlflow), RUNS: start}
            stack.enter_context(announce_server(workspace, prefect, **others))
            links = {
                "Runs": credentials.link(start), "Prefect": prefect.pages,
                "MLflow": credentials.link(mlflow_runs_page(mlflow)),
            }  # fmt: skip
            yield ServiceUrls(links, servers, credentials.login)
        except KeyboardInterrupt:
            return


def _names_of(workspace: Workspace, prefect: str, mlflow: str) -> dict[str, str]:
    """Return environment variables with the addresses to which the start page links.

    They are the pages of this command's servers. A variable is omitted if the user has set it or
    uses another server. The start page then links to the user's own server.

    Args:
        workspace: the workspace.
        prefect: address of Prefect's pages.
        mlflow: address of MLflow's pages.
    """
    named = {}
    if not os.environ.get("PREFECT_API_URL"):
        named[PREFECT_PAGES] = prefect
    if os.environ.get(TRACKING_URI) == workspace.mlflow_address:
        named[MLFLOW_PAGES] = mlflow
    return {name: address for name, address in named.items() if not os.environ.get(name)}
