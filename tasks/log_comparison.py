"""Records a comparison of tuners in MLflow: one run per output folder, with child runs.

The comparison's run has the leaderboards as its description, the numbers in them as metrics, and
`comparison.json` among its artifacts. A later command on the same folder continues this run.

In a comparison on networks, the child runs are the runs of the networks (`tasks.log_results`). In a
comparison on workloads, there is one child run per tuner and seed. Its parameters are the settings
of the tuner, and its metrics are the tuner's results, so that MLflow's compare page and its
parallel coordinates show the best settings. Such a child run is written in three calls; SQLite
manages about nine runs per second.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import (
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NAME,
    MLFLOW_RUN_NOTE,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
)
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.evaluation.compare.leaderboard import (
    Floats,
    Leaderboard,
    Results,
    workload_figures,
)
from tilewright.evaluation.compare.network_runs import NetworkRun
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.evaluation.compare.plan import ComparisonPlan, TunerConfig
from tilewright.evaluation.compare.workload_runs import TunerRun
from tilewright.reports.comparison_note import comparison_note
from tilewright.reports.markdown import Links
from tilewright.reports.number_format import count_text
from tilewright.tasks import tracking
from tilewright.tasks.tracking import KEY_TAG, commit_tag
from tilewright.tuning.output_dir import identity

_BATCH_LIMIT = 1000  # MLflow's limit of metrics per call
_TEXT_LIMIT = 500  # maximum number of characters of a parameter's value
_METRICS = {
    "regret": "final_regret",
    "within_goal": "within_1_percent",
    "trials_to_goal": "trials_to_1_percent",
    "first_within": "first_within_1_percent",
    "invalid_share": "invalid_share",
    "invalid_to_goal": "invalid_to_1_percent",
    "compiles_to_goal": "compiles_to_1_percent",
    "failed_compiles": "failed_compiles",
    "wall_seconds": "wall_seconds",
    "gain": "gain",
    "tuned_cycles": "tuned_cycles",
    "tuned_seconds": "tuned_seconds",
}
"""Name of the MLflow metric for each column of the leaderboard."""


def comparison_name(options: CompareOptions) -> str:
    """Return the name of a comparison's run."""
    return f"comparison of {options.rivals}, seeds {options.seeds}: {options.subject}"


def open_comparison(
    options: CompareOptions, runs: int, links: Links, tags: Mapping[str, str]
) -> str:
    """Create the MLflow run of a comparison's folder, or resume the run of an earlier command.

    Args:
        options: options of the comparison.
        runs: number of runs of tuners in the comparison.
        links: addresses of pages for the description, by the text of the link.
        tags: tags of the run, in addition to the tags that describe the comparison.

    Returns:
        The ID of the run. The caller must close the run.
    """
    about = {
        "networks": ",".join(options.networks),
        "targets": ",".join(options.targets),
        "tuners": options.rivals,
        "seeds": options.seeds,
        MLFLOW_SOURCE_NAME: "tilewright compare",
        MLFLOW_SOURCE_TYPE: "LOCAL",
    }
    run_id = tracking.open_run(
        comparison_name(options), tracking.run_key({"sweep": identity(options.folder)}),
        params={}, tags=about | dict(tags) | commit_tag(), reopen=True, fresh=options.fresh,
    )  # fmt: skip
    tracking.describe_run(run_id, comparison_note(options, runs, links))
    return run_id


@contextmanager
def comparison_run(options: CompareOptions, runs: int) -> Iterator[str]:
    """Open the MLflow run of a comparison's folder for a `with` block.

    If the block raises an error, the run ends as failed or stopped.

    Args:
        options: options of the comparison.
        runs: number of runs of tuners in the comparison.

    Yields:
        The ID of the run.
    """
    run_id = open_comparison(options, runs, {}, {})
    try:
        yield run_id
    except BaseException as error:
        tracking.close_run(run_id, tracking.ended_by(error))
        raise
    tracking.close_run(run_id)


def log_leaderboards(
    run_id: str,
    options: CompareOptions,
    runs: int,
    links: Links,
    boards: Sequence[Leaderboard],
    network_runs: Sequence[NetworkRun] = (),
    files: Sequence[Path] = (),
) -> None:
    """Write the leaderboards of a finished comparison to its MLflow run.

    Args:
        run_id: MLflow run of the comparison.
        options: options of the comparison.
        runs: number of runs of tuners in the comparison.
        links: addresses of pages for the description, by the text of the link.
        boards: the leaderboards.
        network_runs: the compared runs of networks, if any.
        files: files to log as artifacts.
    """
    tracking.describe_run(run_id, comparison_note(options, runs, links, boards, network_runs))
    figures = {}
    for board in boards:
        where = f"{_metric_name(f'{board.network} on {board.target}')}/" if len(boards) > 1 else ""
        for row in board.tuners:
            for field, metric in _METRICS.items():
                value = getattr(row, field)
                if value is not None:
                    figures[f"{metric}/{where}{_metric_name(row.tuner)}"] = float(value)
    _log(tracking.client(), run_id, {}, _figures(figures))
    for path in files:
        tracking.log_file(run_id, path)


def log_workload_runs(
    parent: str,
    plan: ComparisonPlan,
    results: Results,
    runs: Sequence[TunerRun],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[tuple[str, int], str]:
    """Write one child run per tuner and seed of a comparison on workloads.

    Child runs that an earlier command finished are not written again.

    Args:
        parent: MLflow run of the comparison.
        plan: plan of the comparison.
        results: results of all runs, from which curves and metrics are computed.
        runs: the runs of tuners on single workloads.
        progress: function that is called with 1 after every child run.

    Returns:
        ID of the child run, by tuner and seed.
    """
    client, seeds = tracking.client(), {}
    known = tracking.finished_below(parent)
    for k, tuner_config in enumerate(plan.tuner_configs):
        params = _params(plan, tuner_config)
        for s, seed in enumerate(plan.seeds):
            mine = [run for run in runs if run.tuner == tuner_config.label and run.seed == seed]
            key = tracking.run_key({"comparison": parent, "label": tuner_config.label, "seed": seed,
                                    **params})  # fmt: skip
            if (run_id := known.get(key)) is None:
                run_id = _open(client, parent, key, tuner_config.label, seed, plan, mine)
                figures = _seed_metrics(plan, results, k, s, mine)
                _log(client, run_id, params | {"seed": seed}, figures)
                client.set_terminated(run_id)
            seeds[tuner_config.label, seed] = run_id
            progress(1)
    return seeds


# -- what is logged ------------------------------------------------------------------------------


def _params(plan: ComparisonPlan, tuner_config: TunerConfig) -> dict[str, Json]:
    options = tuner_config.explorer.options.model_dump(mode="json")
    return {
        "tuner": tuner_config.tuner,
        "target": plan.test_bed.target,
        "space": plan.test_bed.space,
        "trials": plan.trials,
        "batch": plan.batch,
        "workloads": ", ".join(name for name, _ in plan.test_bed.workloads),
        **{f"tuner.{name}": value for name, value in options.items()},
    }


def _seed_metrics(
    plan: ComparisonPlan, results: Results, k: int, s: int, runs: Sequence[TunerRun]
) -> list[Metric]:
    steps = _steps(results)
    metrics = _curve("regret", steps, results.overall[k, s])
    metrics += _curve("invalid_trials", steps, results.invalid[k, :, s].mean(axis=0))
    own = workload_figures(results)[k * len(results.seeds) + s].figures
    figures = {
        metric: value for field, metric in _METRICS.items() if (value := own.get(field)) is not None
    }
    figures["lowered"] = float(results.lowered[k, :, s].mean())
    for w, (name, workload) in enumerate(plan.test_bed.workloads):
        figures[f"final_regret/{_metric_name(name, workload.id)}"] = float(
            results.regret[k, w, s, -1]
        )
    errors = {name for run in runs for name in run.model_errors}
    for name in sorted(errors):
        known = [run.model_errors[name] for run in runs if name in run.model_errors]
        figures[name] = float(np.mean(known))
    return metrics + _figures(figures)


# -- MLflow ----------------------------------------------------------------------------------------


def _open(
    client: MlflowClient, parent: str, key: str, tuner: str, seed: int, plan: ComparisonPlan,
    runs: Sequence[TunerRun],
) -> str:  # fmt: skip
    """Create the MLflow run of one tuner and seed.

    The start time is set to now minus the total duration of `runs`. MLflow then shows that total as
    the duration of the MLflow run.

    Args:
        client: MLflow client.
        parent: MLflow run of the comparison.
        key: digest that identifies the run.
        tuner: name of the tuner.
        seed: the seed.
        plan: plan of the comparison.
        runs: the tuner's runs with this seed, one per workload.

    Returns:
        The ID of the run.
    """
    begun = int((time.time() - sum(run.wall_seconds for run in runs)) * 1000)
    workloads = count_text(len(plan.test_bed.workloads), "workload")
    note = (
        f"Tuner `{tuner}`, seed {seed}, on {workloads}: {count_text(plan.trials, 'trial')} each, "
        f"in [this comparison]({tracking.run_url(parent)})."
    )
    tags = {
        MLFLOW_RUN_NAME: f"{tuner}, seed {seed}",
        MLFLOW_PARENT_RUN_ID: parent,
        MLFLOW_RUN_NOTE: note,
        KEY_TAG: key,
        **commit_tag(),
    }
    experiment = tracking.experiment_id()
    return str(client.create_run(experiment, start_time=begun, tags=tags).info.run_id)


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
    """Return the trial numbers at which a point is logged: at most 40, dense at the beginning."""
    spaced = np.geomspace(1, results.trials, min(results.trials, 40))
    return np.unique(spaced.round().astype(np.int64))


def _metric_name(name: str, otherwise: str = "-") -> str:
    """Return a name with only the characters that MLflow allows in the name of a metric.

    Args:
        name: the name.
        otherwise: name to return if no allowed character is left.
    """
    return re.sub(r"[^A-Za-z0-9_\-. :/]", " ", name).strip() or otherwise
