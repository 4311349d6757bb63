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
from targets.files import Json, write_atomically
from tasks import tracking
from tasks.outcome import Outcome
from tasks.rounds import read_state
from tasks.stage import stage
from tasks.store import Manifest
from tuning import outputs
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


@stage("artifacts of {outcome.study.workload}")
def log_artifacts(outcome: Outcome, folder: Path, run_id: str, state: Manifest) -> None:
    """Trials, convergence plot, final figures and learned models of one workload, to MLflow."""
    trials = outputs.trials_of(folder, [outcome])
    row = outcome.summary()
    tracking.log_results(
        run_id, {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k != "macs"}
    )
    _log_files(run_id, trials, plots.convergence(outcome, trials))
    _log_models(run_id, read_state(state), state.key)


@stage("artifacts of the network")
def log_network_artifacts(
    folder: Path,
    target: dict[str, Json],
    summary: dict[str, Json],
    outcomes: Sequence[Outcome],
    run_id: str,
) -> None:
    """Write the output folder, and hand the same files to MLflow and a table to Prefect."""
    network = str(summary["network"])
    trials = outputs.trials_of(folder, outcomes)
    picture = plots.network_convergence(network, outcomes, trials)
    outputs.write_schedules(folder, network, target, outcomes)
    outputs.write_trials(folder, outcomes)
    write_atomically(folder / outputs.CONVERGENCE, picture)
    outputs.write_summary(folder, summary)
    for name in (outputs.SUMMARY, outputs.SCHEDULES, outputs.TRIALS, outputs.CONVERGENCE):
        tracking.log_file(run_id, folder / name)
    results = {**summary["total"], "wall_seconds": summary["wall_seconds"]}
    tracking.log_results(run_id, {name: float(value) for name, value in results.items()})
    create_table_artifact(key="layers", table=summary["workloads"], description=network)


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
        table = Path(folder) / outputs.TRIALS
        table.write_bytes(outputs.parquet(trials))
        plot = Path(folder) / outputs.CONVERGENCE
        plot.write_bytes(picture)
        tracking.log_file(run_id, table)
        tracking.log_file(run_id, plot)


def _log_models(run_id: str, state: ExplorerState, version: str) -> None:
    """Boosted trees with MLflow's flavour of them, other models as the files they save."""
    with tempfile.TemporaryDirectory() as folder:
        for role, model in sorted(state.models.items()):
            booster = getattr(model, "booster", None)
            if booster is not None:
                tracking.log_booster(run_id, f"model_{role}", model.kind, booster, version)
                continue
            path = Path(folder) / f"model_{role}{model.suffix}"
            model.save(path)
            tracking.log_file(run_id, path, "models")
