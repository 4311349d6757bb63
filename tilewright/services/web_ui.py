"""Serves the web pages of Prefect and MLflow on this workspace's records, as long as the command
runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tilewright.services.addresses import MLFLOW
from tilewright.services.credentials import Credentials
from tilewright.services.mlflow_server import mlflow_pages, mlflow_runs_page, start_mlflow_server
from tilewright.services.prefect_server import announcing, start_prefect_pages
from tilewright.services.server_process import ServerError, ServerProcess
from tilewright.services.workspace import use_home

POLL_SECONDS = 0.2


class ServiceUrls(dict[str, str]):
    """Where the pages are, by name, as links that log a browser in."""

    def __init__(self, values: dict[str, str], servers: list[ServerProcess]) -> None:
        super().__init__(values)
        self._servers = servers

    def wait(self) -> None:
        """Until a `KeyboardInterrupt`. Raises `ServerError` if a server ends by itself."""
        while True:
            for process in self._servers:
                if process.process.poll() is not None:
                    raise ServerError(f"the {process.name} server ended; see {process.log}")
            time.sleep(POLL_SECONDS)


@contextmanager
def show_pages(host: str, prefect_port: int, mlflow_port: int) -> Iterator[ServiceUrls]:
    """Both servers, up. A `KeyboardInterrupt` ends the block quietly, and the servers with it."""
    home = use_home()
    credentials = Credentials.of(home)  # for both: one click opens the two
    with ExitStack() as stack:
        prefect = start_prefect_pages(home, host, prefect_port, credentials)
        stack.callback(prefect.process.stop)
        mlflow = start_mlflow_server(home, host, mlflow_port, credentials)
        stack.callback(mlflow.stop)
        servers = [prefect.process, mlflow]
        try:
            for process in servers:
                process.wait()
            stack.enter_context(announcing(home, prefect, **{MLFLOW: mlflow_pages(mlflow)}))
            addresses = {"Prefect": prefect.pages, "MLflow": mlflow_runs_page(mlflow)}
            links = {name: credentials.link(address) for name, address in addresses.items()}
            yield ServiceUrls(links, servers)
        except KeyboardInterrupt:
            return
