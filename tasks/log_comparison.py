"""Records a comparison in MLflow: an experiment, a run a tuner, below it a run a seed.

Settings are parameters and figures are metrics, so that the compare page and its parallel
coordinates show which settings won. A seed's run is written in three calls: SQLite takes about
nine such runs a second.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from numpy.typing import NDArray

from tilewright.core.database_url import is_sqlite
from tilewright.core.files import Json
from tilewright.evaluation.compare.leaderboard import Floats, Results
from tilewright.evaluation.compare.plan import ComparisonPlan, TunerConfig
from tilewright.evaluation.compare.runs import TunerRun
from tilewright.reports.number_format import counted
from tilewright.services.page_addresses import mlflow_run_url
from tilewright.services.workspace import current_workspace
from tilewright.tasks.tracking import PAGE_KIND, commit_tag

_BATCH_LIMIT = 1000  # metrics MLflow takes in a call
_TEXT_LIMIT = 500  # characters of a parameter


@dataclass(frozen=True)
class LoggedComparison:
    """Where a comparison is in MLflow: the experiment, and the run of each tuner and seed."""

    experiment_id: str
    name: str
    seeds: Mapping[tuple[str, int], str]


def log_runs(
    plan: ComparisonPlan,
    results: Results,
    runs: list[TunerRun],
    files: list[Path],
    progress: Callable[[int], None] = lambda done: None,
) -> LoggedComparison:
    """Write all runs; `files` become artifacts of each tuner's run. `progress` is told of every
    finished run."""
    client = MlflowClient()
    experiment_id, name = _experiment(client, plan)
    seeds = {}
    for k, tuner_config in enumerate(plan.tuner_configs):
        params = _params(plan, tuner_config)
        over = counted(len(plan.seeds), "seed")
        note = f"Tuner `{tuner_config.label}` in {name}: medians over {over}."
        parent = _open(client, experiment_id, tuner_config.label, {MLFLOW_RUN_NOTE: note})
        _log(client, parent, params, _tuner_metrics(results, k))
        for path in files:
            client.log_artifact(parent, str(path))
        for s, seed in enumerate(plan.seeds):
            mine = [run for run in runs if run.tuner == tuner_config.label and run.seed == seed]
            seconds = sum(run.wall_seconds for run in mine)
            of = f"[{tuner_config.label}]({mlflow_run_url(experiment_id, parent)})"
            note = f"Seed {seed} of {of}: {counted(plan.trials, 'trial')} on each workload."
            tags = {MLFLOW_PARENT_RUN_ID: parent, MLFLOW_RUN_NOTE: note}
            run_id = _open(client, experiment_id, f"seed {seed}", tags, seconds)
            figures = _seed_metrics(plan, results, k, s, mine)
            _log(client, run_id, params | {"seed": seed}, figures)
            client.set_terminated(run_id)
            seeds[tuner_config.label, seed] = run_id
            progress(1)
        client.set_terminated(parent)
    return LoggedComparison(experiment_id, name, seeds)


# -- what is logged ------------------------------------------------------------------------------


def _params(plan: ComparisonPlan, tuner_config: TunerConfig) -> dict[str, Json]:
    options = tuner_config.explorer.options.model_dump(mode="json")
    return {
        "tuner": tuner_config.tuner,
        "target": plan.test_bed.target,
        "space": plan.test_bed.space,
        "trials": plan.trials,
        "batch": plan.batch,
        **{f"tuner.{name}": value for name, value in options.items()},
    }


def _tuner_metrics(results: Results, k: int) -> list[Metric]:
    """Medians over seeds."""
    steps = _steps(results)
    metrics = _curve("regret", steps, np.median(results.overall[k], axis=0))
    invalid = np.median(results.invalid[k].mean(axis=0), axis=0)
    metrics += _curve("invalid_trials", steps, invalid)
    return metrics + _figures(
        {name: float(np.median(each)) for name, each in _per_seed(results, k).items()}
    )


def _seed_metrics(
    plan: ComparisonPlan, results: Results, k: int, s: int, runs: list[TunerRun]
) -> list[Metric]:
    steps = _steps(results)
    metrics = _curve("regret", steps, results.overall[k, s])
    metrics += _curve("invalid_trials", steps, results.invalid[k, :, s].mean(axis=0))
    figures = {name: float(each[s]) for name, each in _per_seed(results, k).items()}
    for w, (name, workload) in enumerate(plan.test_bed.workloads):
        figures[f"final_regret/{_plain(name, workload.id)}"] = float(results.regret[k, w, s, -1])
    errors = {name for run in runs for name in run.model_errors}
    for name in sorted(errors):
        known = [run.model_errors[name] for run in runs if name in run.model_errors]
        figures[name] = float(np.mean(known))
    return metrics + _figures(figures)


def _per_seed(results: Results, k: int) -> dict[str, Floats]:
    """Figures of a tuner, one a seed, means over workloads."""
    figures = {
        "final_regret": results.overall[k, :, -1],
        "within_1_percent": results.reached[k].mean(axis=0),
        "trials_to_1_percent": results.trials_to_goal[k].mean(axis=0),
        "invalid_to_1_percent": results.at_goal(results.invalid)[k].mean(axis=0),
        "invalid_share": results.invalid[k, :, :, -1].sum(axis=0) / results.spent[k].sum(axis=0),
        "first_within_1_percent": results.first_within[k].mean(axis=0),
        "compiles_to_1_percent": results.at_goal(results.compiled)[k].mean(axis=0),
        "lowered": results.lowered[k].mean(axis=0),
        "failed_compiles": results.failed[k].mean(axis=0),
        "wall_seconds": results.seconds[k].mean(axis=0),
    }
    return {name: np.asarray(each, np.float64) for name, each in figures.items()}


# -- MLflow ----------------------------------------------------------------------------------------


def _experiment(client: MlflowClient, plan: ComparisonPlan) -> tuple[str, str]:
    test_bed = plan.test_bed
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    base = " ".join(filter(None, ["compare", test_bed.target, test_bed.space, when]))
    name, number = base, 1
    while client.get_experiment_by_name(name) is not None:
        number += 1
        name = f"{base} ({number})"
    local = is_sqlite(str(client.tracking_uri))
    folder = current_workspace().mlflow_artifacts.as_uri() if local else None
    workloads = "\n".join(f"- {name}" for name, _ in test_bed.workloads)
    seeds, trials = counted(len(plan.seeds), "seed"), counted(plan.trials, "trial")
    note = f"{seeds}, {trials} a run, on\n{workloads}"
    return str(
        client.create_experiment(
            name, artifact_location=folder, tags={MLFLOW_RUN_NOTE: note, **PAGE_KIND}
        )
    ), name


def _open(
    client: MlflowClient,
    experiment_id: str,
    name: str,
    tags: Mapping[str, str],
    seconds: float = 0.0,
) -> str:
    """A new run that says it began so many seconds ago."""
    begun = int((time.time() - seconds) * 1000)
    links = {MLFLOW_RUN_NAME: name, **commit_tag(), **tags}
    return str(client.create_run(experiment_id, start_time=begun, tags=links).info.run_id)


def _log(
    client: MlflowClient, run_id: str, params: Mapping[str, Json], metrics: list[Metric]
) -> None:
    entries = [Param(name, str(value)[:_TEXT_LIMIT]) for name, value in params.items()]
    client.log_batch(run_id, params=entries, metrics=metrics[:_BATCH_LIMIT])
    for start in range(_BATCH_LIMIT, len(metrics), _BATCH_LIMIT):
        client.log_batch(run_id, metrics=metrics[start : start + _BATCH_LIMIT])


def _curve(name: str, steps: NDArray[np.int64], values: Floats) -> list[Metric]:
    now = int(time.time() * 1000)
    return [
        Metric(name, float(values[step - 1]), now, int(step))
        for step in steps
        if math.isfinite(values[step - 1])
    ]


def _figures(values: Mapping[str, float]) -> list[Metric]:
    now = int(time.time() * 1000)
    return [Metric(name, value, now, 0) for name, value in values.items() if math.isfinite(value)]


def _steps(results: Results) -> NDArray[np.int64]:
    """Trials at which a point is logged: 40 of a run, dense at its beginning."""
    spaced = np.geomspace(1, results.trials, min(results.trials, 40))
    return np.unique(spaced.round().astype(np.int64))


def _plain(name: str, workload_id: str) -> str:
    """A workload's name with the characters MLflow allows in the name of a metric."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", " ", name).strip() or workload_id
