"""Tests the MLflow page to which `tilewright ui` links, with a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharing import free_port
from tilewright.services.mlflow_database import provide_mlflow_database
from tilewright.services.mlflow_server import mlflow_pages, mlflow_runs_page, start_mlflow_server
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace
from tilewright.tasks.mlflow_columns import VIEW_TAG

pytestmark = pytest.mark.nightly(seconds=15)

FIRST_RUN = """
import sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
client.create_experiment("another")
experiment = client.create_experiment("tilewright")
client.set_experiment_tag(experiment, sys.argv[2], "{}")
print(experiment)
"""


def test_it_is_the_list_of_runs_as_soon_as_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    workspace = Workspace(tmp_path)
    workspace.mlflow_artifacts.mkdir(parents=True)
    provide_mlflow_database(workspace.mlflow_database)
    server = start_mlflow_server(workspace, LOOPBACK, port := free_port())
    try:
        server.wait()
        pages = f"http://{LOOPBACK}:{port}"
        assert mlflow_pages(server) == pages
        assert mlflow_runs_page(server) == f"{pages}/#/experiments?workflowType=machine_learning"
        done = subprocess.run(
            [sys.executable, "-c", FIRST_RUN, f"sqlite:///{workspace.mlflow_database}", VIEW_TAG],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        experiment = done.stdout.split()[-1]
        assert mlflow_runs_page(server) == (
            f"{pages}/#/experiments/{experiment}/runs?workflowType=machine_learning"
            "&viewStateShareKey=tilewright"
        )
    finally:
        server.stop()
