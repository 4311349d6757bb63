"""Serves the start page and the pages of Prefect and MLflow on this workspace's records, as long as
the command runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tilewright.services.addresses import MLFLOW, PREFECT, RUNS
from tilewright.services.credentials import Credentials
from tilewright.services.mlflow_server import (
    TRACKING_URI,
    mlflow_pages,
    mlflow_runs_page,
    start_mlflow_server,
)
from tilewright.services.prefect_server import announcing, start_prefect_pages
from tilewright.services.server_process import ServerError, ServerProcess
from tilewright.services.urls import MLFLOW_PAGES, PREFECT_PAGES
from tilewright.services.workspace import Workspace, use_workspace

POLL_SECONDS = 0.2


class ServiceUrls(dict[str, str]):
    """Addresses of the pages by name.

    The links to the start page and to MLflow log a browser in. Prefect's pages ask each browser
    once for `prefect_password`.
    """

    def __init__(
        self, values: dict[str, str], servers: list[ServerProcess], prefect_password: str
    ) -> None:
        super().__init__(values)
        self.prefect_password = prefect_password
        self._servers = servers

    def wait(self) -> None:
        """Until a `KeyboardInterrupt`. Raises `ServerError` if a server ends by itself."""
        while True:
            for process in self._servers:
                if process.process.poll() is not None:
                    raise ServerError(f"the {process.name} server ended; see {process.log}")
            time.sleep(POLL_SECONDS)


StartPage = Callable[[Workspace, str, int, Credentials, Mapping[str, str]], ServerProcess]
"""Starts the start page: of this workspace, on a host and port. The last are variables that name
the other servers' pages, where its links are to lead there."""


@contextmanager
def show_pages(
    host: str, ports: Mapping[str, int], start_page: StartPage, tell: Callable[[str], None]
) -> Iterator[ServiceUrls]:
    """All three servers, up; `tell` hears how long that takes. A `KeyboardInterrupt` ends the block
    quietly, and the servers with it."""
    workspace = use_workspace()
    credentials = Credentials.of(workspace)
    with ExitStack() as stack:
        prefect = start_prefect_pages(workspace, host, ports[PREFECT], credentials)
        stack.callback(prefect.process.stop)
        mlflow = start_mlflow_server(workspace, host, ports[MLFLOW], credentials)
        stack.callback(mlflow.stop)
        named = _names_of(workspace, prefect.pages, mlflow_pages(mlflow))
        runs = start_page(workspace, host, ports[RUNS], credentials, named)
        stack.callback(runs.stop)
        servers = [runs, prefect.process, mlflow]
        try:
            for process in servers:
                process.wait(tell)
            start = runs.health.removesuffix("/health")
            others = {MLFLOW: mlflow_pages(mlflow), RUNS: start}
            stack.enter_context(announcing(workspace, prefect, **others))
            links = {
                "Runs": credentials.link(start), "Prefect": prefect.pages,
                "MLflow": credentials.link(mlflow_runs_page(mlflow)),
            }  # fmt: skip
            yield ServiceUrls(links, servers, credentials.login)
        except KeyboardInterrupt:
            return


def _names_of(workspace: Workspace, prefect: str, mlflow: str) -> dict[str, str]:
    """Variables that lead the start page's links to these pages; not where the user has servers,
    whose runs it then shows."""
    named = {}
    if not os.environ.get("PREFECT_API_URL"):
        named[PREFECT_PAGES] = prefect
    if os.environ.get(TRACKING_URI) == workspace.mlflow_address:
        named[MLFLOW_PAGES] = mlflow
    return {name: address for name, address in named.items() if not os.environ.get(name)}
