"""The MLflow server behind `tilewright ui`."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import NotRequired, TypedDict, cast
from urllib.parse import quote

from services.addresses import DEFAULT_PORTS, MLFLOW, reachable
from services.home import Home
from services.server_process import ServerProcess, listening_socket, start
from services.urls import runs_url

EXPERIMENT = "tilewright"
"""Where runs of `tilewright tune` are."""
VIEW_KEY = "tilewright"
"""The name of the view in which they are shown."""


def start_mlflow_server(home: Home, host: str, port: int = DEFAULT_PORTS[MLFLOW]) -> ServerProcess:
    """Start MLflow's pages on this home's runs. Raises `ServerError` when the port is taken."""
    listening_socket(host, port).close()
    return start(
        "MLflow",
        [
            sys.executable, "-m", "mlflow", "server",
            "--backend-store-uri", home.mlflow_address,
            "--default-artifact-root", home.mlflow_artifacts.as_uri(),
            "--serve-artifacts",
            "--artifacts-destination", home.mlflow_artifacts.as_uri(),
            "--host", host, "--port", str(port), "--workers", "1",
        ],
        health=reachable(f"http://{host}:{port}/health"),
        log=home.root / "mlflow" / "server.log",
    )  # fmt: skip


def mlflow_pages(server: ServerProcess) -> str:
    """The address of a server's pages."""
    return server.health.removesuffix("/health")


def mlflow_runs_page(server: ServerProcess) -> str:
    """The page with the runs of `tilewright tune`, on a server that is up; before the first run
    that with all experiments."""
    pages = mlflow_pages(server)
    found = _experiment(pages)
    if found is None:
        return runs_url(pages, None)
    shared = any(tag["key"].endswith(f".{VIEW_KEY}") for tag in found.get("tags", []))
    return runs_url(pages, found["experiment_id"]) + f"&viewStateShareKey={VIEW_KEY}" * shared


class _Tag(TypedDict):
    """A tag as MLflow sends it."""

    key: str
    value: str


class _Experiment(TypedDict):
    """What is read of an experiment."""

    experiment_id: str
    tags: NotRequired[list[_Tag]]


def _experiment(pages: str) -> _Experiment | None:
    asked = "api/2.0/mlflow/experiments/get-by-name?experiment_name=" + quote(EXPERIMENT)
    try:
        with urllib.request.urlopen(f"{pages}/{asked}", timeout=30) as reply:
            return cast(_Experiment, json.loads(reply.read())["experiment"])
    except (OSError, ValueError, KeyError):
        return None
