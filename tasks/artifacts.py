"""The last stage: what a run tells MLflow and Prefect, and where the two point to each other."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.runtime import flow_run

from reports import convergence as plots
from search import ExplorerState
from services.urls import flow_run_url
from targets.files import Json
from tasks import tracking
from tasks.flavours import booster_of
from tasks.rounds import read_state
from tasks.stage import step
from tasks.store import CacheUse, Manifest
from tuning import folders, outputs
from tuning.outcome import TunedWorkload
from tuning.study import Study


def open_network_run(
    network: str, about: Mapping[str, Json], params: Mapping[str, Json], fresh: bool
) -> str:
    """The MLflow run of a network, linked with its flow run. `about` identifies it."""
    run_id = tracking.open_run(
        network, tracking.run_key(about), params=params, tags=_tags(params), fresh=fresh
    )
    create_link_artifact(
        link=tracking.run_url(run_id), key="mlflow-run", description="the run in MLflow"
    )
    return run_id


def open_workload_run(study: Study, parent: str, params: Mapping[str, Json], fresh: bool) -> str:
    """The child run of one workload."""
    about = {"parent": parent, "workload": study.workload.id}
    return tracking.open_run(
        str(study.workload),
        tracking.run_key(about),
        params=dict(params) | {"workload": str(study.workload), "workload_id": study.workload.id},
        tags=_tags(params),
        parent=parent,
        fresh=fresh,
    )


@step("artifacts of {tuned.workload}")
def log_artifacts(
    cache: CacheUse, tuned: TunedWorkload, folder: Path, run_id: str, state: Manifest
) -> None:
    """Trials, convergence plot, final figures and learned models of one workload, to MLflow."""
    trials = outputs.trials_of(folder, [tuned])
    row = tuned.summary()
    tracking.log_results(
        run_id, {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k != "macs"}
    )
    _log_files(run_id, trials, plots.convergence(tuned, trials))
    _log_models(run_id, read_state(cache, state), state.key)


@step("artifacts of the network")
def log_network_artifacts(
    folder: Path,
    target: outputs.TargetRow,
    summary: outputs.Summary,
    tuned: Sequence[TunedWorkload],
    run_id: str,
) -> None:
    """Write the output folder, and hand the same files to MLflow and a table to Prefect."""
    network = summary["network"]
    for path in outputs.write_outputs(folder, target, summary, tuned, plots.network_convergence):
        tracking.log_file(run_id, path)
    results = {**summary["total"], "wall_seconds": summary["wall_seconds"]}
    figures = {name: float(v) for name, v in results.items() if isinstance(v, int | float)}
    tracking.log_results(run_id, figures)
    create_table_artifact(
        key="layers", table=[dict(row) for row in summary["workloads"]], description=network
    )


def _tags(params: Mapping[str, Json]) -> dict[str, str]:
    flow_run_id = str(flow_run.id)
    tags = {
        "network": str(params["network"]),
        "target_fingerprint": str(params["target_fingerprint"]),
        "tuner": str(params["tuner"]),
        "seed": str(params["seed"]),
        "prefect_flow_run_id": flow_run_id,
        "prefect_flow_run_url": flow_run_url(flow_run_id),
    }
    return tags | tracking.commit_tag()


def _log_files(run_id: str, trials: pd.DataFrame, picture: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / folders.TRIALS
        table.write_bytes(outputs.parquet(trials))
        plot = Path(folder) / folders.CONVERGENCE
        plot.write_bytes(picture)
        tracking.log_file(run_id, table)
        tracking.log_file(run_id, plot)


def _log_models(run_id: str, state: ExplorerState, version: str) -> None:
    """Boosted trees with MLflow's flavour of them, other models as the files they save."""
    with tempfile.TemporaryDirectory() as folder:
        for role, model in sorted(state.models.items()):
            booster = booster_of(model)
            if booster is not None:
                tracking.log_booster(run_id, f"model_{role}", model.kind, booster, version)
                continue
            path = Path(folder) / f"model_{role}{model.suffix}"
            model.save(path)
            tracking.log_file(run_id, path, "models")
