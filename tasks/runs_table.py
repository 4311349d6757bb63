"""Lists the tracked runs of a workspace: a row a network's run, from MLflow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime

import pandas as pd
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from tilewright.services.mlflow_server import EXPERIMENT
from tilewright.services.workspace import Home
from tilewright.tasks.log_results import GAIN_OVER

PARAMS = {"network": str, "target": str, "tuner": str, "seed": int, "trials": int}
METRICS = (
    "baseline_cycles", "fallback_cycles", "tuned_cycles", "bound_cycles",
    "baseline_ms", "tuned_ms", "bound_ms", "gain", "valid_share",
)  # fmt: skip
COLUMNS = (
    "began", "status", "seconds", *PARAMS, *METRICS, GAIN_OVER, "run_id", "flow_run_id",
)  # fmt: skip
_PAGE = 1000


def runs_table(home: Home) -> pd.DataFrame:
    """All tracked runs of networks, the latest first, with the columns of `COLUMNS`; empty for a
    workspace without any. Figures that a run does not have are NaN. Reads the server that
    `MLFLOW_TRACKING_URI` names, else the workspace's own database. Raises `MlflowException` if
    the server does not answer."""
    named = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not named and not home.mlflow_database.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    client = MlflowClient(tracking_uri=named or f"sqlite:///{home.mlflow_database}")
    rows = [_row(run) for run in _runs(client)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _runs(client: MlflowClient) -> list[Run]:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return []
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id], order_by=["attributes.start_time DESC"],
            max_results=_PAGE, page_token=token,
        )  # fmt: skip
        found += [run for run in page if _is_network(run)]
        token = page.token
        if not token:
            return found


def _is_network(run: Run) -> bool:
    """Not a workload's run, nor one of co-design, of training or a sweep as a whole."""
    return "workload_id" not in run.data.params and "network" in run.data.params


def _row(run: Run) -> Mapping[str, object]:
    begun, ended = run.info.start_time, run.info.end_time
    params = {name: kind(run.data.params.get(name, 0)) for name, kind in PARAMS.items()}
    return {
        "began": datetime.fromtimestamp(begun / 1000, UTC),
        "status": run.info.status,
        "seconds": None if ended is None else (ended - begun) / 1000,
        **params,
        **{name: run.data.metrics.get(name, math.nan) for name in METRICS},
        GAIN_OVER: run.data.tags.get(GAIN_OVER),
        "run_id": run.info.run_id,
        "flow_run_id": run.data.tags.get("prefect_flow_run_id"),
    }
