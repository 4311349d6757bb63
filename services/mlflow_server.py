"""The MLflow server behind `tilewright ui`."""

from __future__ import annotations

import sys

from services.home import Home
from services.server_process import ServerProcess, listening_socket, start
from services.urls import MLFLOW_PORT


def start_mlflow_server(home: Home, host: str, port: int = MLFLOW_PORT) -> ServerProcess:
    """Start MLflow's pages on this home's runs. Raises `ServerError` when the port is taken."""
    listening_socket(host, port).close()
    return start(
        "MLflow",
        [
            sys.executable, "-m", "mlflow", "server",
            "--backend-store-uri", f"sqlite:///{home.mlflow_database}",
            "--default-artifact-root", home.mlflow_artifacts.as_uri(),
            "--serve-artifacts",
            "--artifacts-destination", home.mlflow_artifacts.as_uri(),
            "--host", host, "--port", str(port), "--workers", "1",
        ],
        health=f"http://{host}:{port}/health",
        log=home.root / "mlflow" / "server.log",
    )  # fmt: skip
