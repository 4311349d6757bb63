"""Builds a table of a workspace's tracked runs from MLflow, with one row per run of a network.

The module also defines the tags by which runs are found and compared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime

import pandas as pd
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from tilewright.core.files import Json, canonical, digest
from tilewright.core.garbage_collection import collecting_later
from tilewright.services.mlflow_server import EXPERIMENT
from tilewright.services.workspace import Workspace
from tilewright.tuning.gains import FALLBACK, RULE

QUESTION_TAG, SETTINGS_TAG = "tilewright.question", "tilewright.settings"
"""Tags with two digests: of what was tuned (network, target, space, epilogue and layers), and of
all other settings."""
_QUESTION = ("network", "target", "space", "epilogue", "layers")
_NO_SETTING = (*_QUESTION, "target_fingerprint")


def comparison_tags(params: Mapping[str, Json]) -> dict[str, str]:
    """Return the tags by which comparable runs are found.

    The version of the code that lowers and measures is not part of the tags, because a comparison
    is meant to show the effect of changes in that code.

    Args:
        params: parameters of the run of a network.

    Returns:
        Two tags with digests: the first covers the tuned workloads, such as the network and the
            target; the second covers the settings.
    """
    question = {name: params.get(name, "") for name in _QUESTION}
    settings = {name: value for name, value in params.items() if name not in _NO_SETTING}
    return {
        QUESTION_TAG: digest(canonical(question))[:24],
        SETTINGS_TAG: digest(canonical(settings))[:24],
    }


WATCH_TAG = "tilewright.watch"
"""Tag with the result of the comparison with the previous comparable run."""
REGRESSION_TAG = "tilewright.failed_as_regression"
"""Tag of a run whose flow run failed because the run is slower than the previous comparable run."""
FOLDER_TAG = "tilewright.folder"
"""Tag with the path of the output directory on the machine that made the run."""
PARAMS = {"network": str, "target": str, "tuner": str, "seed": int, "trials": int}
METRICS = (
    "fallback_cycles", "rule_cycles", "tuned_cycles", "bound_cycles",
    "fallback_ms", "rule_ms", "tuned_ms", "bound_ms", "gain", "gain_over_fallback", "valid_share",
)  # fmt: skip
COLUMNS = (
    "began", "status", "seconds", *PARAMS, *METRICS, "run_id", "flow_run_id",
)  # fmt: skip
_PAGE = 1000


def runs_table(workspace: Workspace) -> pd.DataFrame:
    """Return all tracked runs of networks in a workspace.

    The runs are read from the server in `MLFLOW_TRACKING_URI`, or else from the workspace's own
    database.

    Args:
        workspace: the workspace.

    Returns:
        One row per run with the columns `COLUMNS`, latest first. Missing figures are NaN. The table
        is empty for a workspace without runs.

    Raises:
        MlflowException: the server does not answer.
    """
    client = tracking_client(workspace)
    rows = [] if client is None else [row_of(run) for run in network_runs(client)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def tracking_client(workspace: Workspace) -> MlflowClient | None:
    """Return an MLflow client for the runs of a workspace.

    Args:
        workspace: the workspace.

    Returns:
        The client; None if the workspace has no database yet and no other server is configured.
    """
    named = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not workspace.mlflow_database.is_file() and named in ("", workspace.mlflow_address):
        return None
    return MlflowClient(tracking_uri=named or workspace.mlflow_address)


def network_runs(client: MlflowClient, also: str = "") -> list[Run]:
    """Return the finished and unfinished runs of networks in MLflow, latest first.

    Args:
        client: MLflow client.
        also: additional condition in MLflow's filter syntax, or "".

    Raises:
        MlflowException: the server fails.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return []
    runs: list[Run] = []
    token: str | None = None
    while True:
        with collecting_later():  # SQLAlchemy creates about sixty objects per run
            page = client.search_runs(
                [experiment.experiment_id],
                # Runs of workloads, of co-design and of training do not have this tag.
                filter_string=f"tags.`{QUESTION_TAG}` LIKE '%'" + (also and f" AND {also}"),
                order_by=["attributes.start_time DESC"], max_results=_PAGE, page_token=token,
            )  # fmt: skip
        runs += page
        token = page.token
        if not token:
            return runs


def delete_network_run(client: MlflowClient, run_id: str) -> None:
    """Delete the MLflow run of a network and the runs of its workloads.

    MLflow keeps deleted runs until `mlflow gc` is called. Until then, its web pages can restore
    them.

    Args:
        client: MLflow client.
        run_id: run of the network.

    Raises:
        MlflowException: the server fails, or the run does not exist.
    """
    experiment = client.get_run(run_id).info.experiment_id
    below = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}'"
    while children := client.search_runs([experiment], filter_string=below, max_results=_PAGE):
        for child in children:
            client.delete_run(child.info.run_id)
    client.delete_run(run_id)


def row_of(run: Run) -> Mapping[str, object]:
    """Convert an MLflow run of a network to a row of `runs_table`, by column name."""
    begun, ended = run.info.start_time, run.info.end_time
    params = {name: kind(run.data.params.get(name, 0)) for name, kind in PARAMS.items()}
    return {
        "began": datetime.fromtimestamp(begun / 1000, UTC),
        "status": run.info.status,
        "seconds": None if ended is None else (ended - begun) / 1000,
        **params,
        **_figures(run.data.metrics),
        "run_id": run.info.run_id,
        "flow_run_id": run.data.tags.get("prefect_flow_run_id"),
    }


def _figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the columns `METRICS` of a run; NaN for metrics that are unknown.

    Up to version 0.2, the metrics of the rule schedule were called `baseline…`, and in some runs
    `gain` was the gain over the fallback. The gains are therefore computed again from the
    latencies.

    Args:
        metrics: the MLflow metrics of a run, by name.
    """
    figures = {
        name: metrics.get(name, metrics.get(name.replace("rule", "baseline"), math.nan))
        for name in METRICS
    }
    unit = "cycles" if "tuned_cycles" in metrics else "ms"
    for gain, before in (("gain", RULE), ("gain_over_fallback", FALLBACK)):
        figures[gain] = figures[f"{before}_{unit}"] / figures[f"tuned_{unit}"]
    return figures
