"""Records the results of a tuning run in MLflow and Prefect, with links between the two.

This is the last stage of a run. Plots are cached stages: if nothing changed since the last run, no
plot is drawn, and matplotlib is not loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache as once
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import pandas as pd
from mlflow.entities import Dataset
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run

from tilewright import reports
from tilewright.core.files import Json, digest, write_atomically
from tilewright.core.user_text import printable
from tilewright.reports import run_results as run_description
from tilewright.reports.markdown import escape_text
from tilewright.reports.run_pictures import write_fusion_page
from tilewright.reports.run_results import results_rows
from tilewright.search import Session
from tilewright.services.page_addresses import flow_run_url
from tilewright.targets.display_names import layer
from tilewright.tasks import tracking
from tilewright.tasks.cached_task import Key, Stage, step
from tilewright.tasks.logged_models import (
    LearnedModel,
    ModelEntry,
    learned_models,
    log_model,
    model_name,
)
from tilewright.tasks.metrics import network_curves
from tilewright.tasks.runs_table import FOLDER_TAG, comparison_tags
from tilewright.tasks.steps_prefect import NO_TARGET
from tilewright.tuning import output_dir, outputs
from tilewright.tuning.gains import FALLBACK, FIGURES, RULE, Total, four_figures
from tilewright.tuning.network import Model
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.results import TunedWorkload, WorkloadRow, cycles_of, seconds_of
from tilewright.tuning.run_figures import above_limit, milliseconds_of, valid_share
from tilewright.tuning.tuning_task import TuningTask

_DIGITS = 6  # significant digits of metrics that are not integers
PREFECT_LINK = "the flow run in Prefect"


def open_network_run(
    options: TuningOptions, about: Mapping[str, Json], params: Mapping[str, Json], workloads: int,
    parent: str | None = None,
) -> str:  # fmt: skip
    """Open the MLflow run of a network, and link it with the Prefect flow run.

    Args:
        options: options of the run.
        about: values by name whose digest identifies the run. A stopped run with the same values is
            resumed.
        params: parameters that MLflow shows.
        workloads: number of workloads.
        parent: MLflow run of the comparison that the run belongs to, if any.

    Returns:
        The ID of the run.
    """
    title = title_of(params)
    name = run_description.run_name(title, options.tuner, options.seed, options.trials)
    run_id = tracking.open_run(
        name, tracking.run_key(about), params=params, tags=_tags(params) | comparison_tags(params)
        | {FOLDER_TAG: printable(str(options.folder.absolute()))},
        parent=parent, fresh=options.fresh,
    )  # fmt: skip
    links = {PREFECT_LINK: flow_run_url(str(flow_run.id))}
    if parent is not None:
        links["the comparison"] = tracking.run_url(parent)
    if (first := tracking.repeated_run(run_id)) is not None:
        links["the first run of this command"] = tracking.run_url(first)
    command = options.command_line("tune")
    shared = options.stop_gain is not None
    tracking.describe_run(
        run_id,
        run_description.network_note(title, workloads, options.trials, command, links, shared),
    )
    create_link_artifact(
        link=tracking.run_url(run_id),
        key="mlflow-run",
        description=f"{escape_text(title)}: the run in MLflow",
    )
    return run_id


def log_network_dataset(run_id: str, model: Model) -> None:
    """Log the tuned network or workload as a dataset of the run, with a digest of its contents.

    Args:
        run_id: MLflow run of the network.
        model: the imported model.
    """
    read = tracking.source_dataset(model.name, model.source, model.digest)
    tracking.log_dataset(run_id, read, "network")


def open_workload_run(
    options: TuningOptions, task: TuningTask, parent: str, params: Mapping[str, Json]
) -> str:
    """Open the MLflow run of one workload, as a child of the network's run.

    Args:
        options: options of the run.
        task: task of the workload.
        parent: MLflow run of the network.
        params: parameters that MLflow shows.

    Returns:
        The ID of the run.
    """
    workload, names = task.workload, task.names
    about = {"parent": parent, "workload": workload.id}
    name = layer(names, workload)
    run_id = tracking.open_run(
        name,
        tracking.run_key(about),
        params=dict(params)
        | {"layer": name, "workload": str(workload), "workload_id": workload.id},
        tags=_tags(params),
        parent=parent,
        fresh=options.fresh,
    )
    title = title_of(params)
    links = {title: tracking.run_url(parent), PREFECT_LINK: flow_run_url(str(flow_run.id))}
    note = run_description.workload_note(
        names, workload, task.count, title, options.command_line("tune"), links
    )
    tracking.describe_run(run_id, note)
    return run_id


def title_of(params: Mapping[str, Json]) -> str:
    """Return the title of a network's run, from the parameters `network`, `target` and `tuner`."""
    return run_description.network_title(
        *(str(params[name]) for name in ("network", "target", "tuner"))
    )


@step("{layer}: artifacts")
def log_artifacts(
    layer: str,
    tuned: TunedWorkload,
    folder: Path,
    run_id: str,
    version: str,
    session: Session,
) -> None:
    """Log the trials, convergence plot, final metrics and learned models of one workload to MLflow.

    Args:
        layer: display name of the workload.
        tuned: the tuned workload.
        folder: output directory of the run.
        run_id: MLflow run of the workload.
        version: digest that identifies the data on which the models of `session` were trained.
        session: final session of the workload, which holds its trials and models.
    """
    trials = outputs.trials_of(folder, [tuned])
    row = tuned.summary()
    known = {
        "count": row["count"],
        "trials": row["trials"],
        "invalid_trials": row["invalid_trials"],
        "lowered": row["lowered"],
        "failed_compiles": row["failed_compiles"],
        "reused_trials": row["reused_trials"],
        "timed_again": row["timed_again"],
        "wall_seconds": row["wall_seconds"],
    }
    if "validation" in row:
        known["validation_measurements"] = row["validation"]["measurements"]
        known["validation_seconds"] = row["validation"]["seconds"]
    tracking.log_results(run_id, metrics_of(row) | known)
    _say_outcome(run_id, run_description.outcome_line(row))
    read = _log_files(run_id, layer, trials, workload_picture(layer, tuned, trials))
    _log_models(run_id, tuned, read, version, learned_models(tuned.task, session))


@step("artifacts of the network")
def log_network_artifacts(
    folder: Path,
    target: outputs.TargetRow,
    found: outputs.TunedNetwork,
    run_id: str,
    remark: str,
) -> None:
    """Write the output directory, log its files to MLflow, and create Prefect artifacts.

    Args:
        folder: the output directory.
        target: entry about the target for `schedules.json`.
        found: the tuned network.
        run_id: MLflow run of the network.
        remark: sentence with which the Prefect summary begins, or "".
    """
    summary, tuned = found.summary, found.workloads
    written = outputs.write_outputs(folder, target, found)
    picture = network_picture(summary["network"], tuned, outputs.trials_of(folder, tuned))
    write_atomically(folder / output_dir.CONVERGENCE, picture)
    pictures = [folder / output_dir.CONVERGENCE, *write_fusion_page(folder, found)]
    for path in (*written, *pictures):
        tracking.log_file(run_id, path)
    tracking.link_models(run_id, tracking.models_below(run_id))
    known, total = _network_figures(summary), summary["total"]
    # MLflow's page that compares runs shows the metric first that was logged first: the gain.
    tracking.log_results(run_id, metrics_of(total) | known)
    curves = network_curves(outputs.trials_of(folder, tuned), tuned, total)
    with tracking.StepLog(run_id) as log:
        for values in curves:
            log.add(int(values[tracking.STEP_METRIC]), values)
    _say_outcome(run_id, run_description.outcome_line(total))
    title = run_description.network_title(summary["network"], summary["target"], summary["tuner"])
    create_table_artifact(key="layers", table=results_rows(summary), description=escape_text(title))
    links = {"this run in MLflow": tracking.run_url(run_id)}
    create_markdown_artifact(
        key="summary",
        markdown=run_description.network_summary(title, summary, links, remark, picture),
        description=escape_text(title),
    )


def _network_figures(summary: outputs.Summary) -> dict[str, float]:
    """Return metrics of the whole network, computed from those of its workloads.

    They are the fraction of valid trials over all workloads and the mean errors of the models.
    """
    rows = summary["workloads"]
    trials, invalid = (sum(row[name] for row in rows) for name in ("trials", "invalid_trials"))
    errors = [row["model_errors"] for row in rows if "model_errors" in row]
    names = sorted({name for error in errors for name in error})
    return {
        "wall_seconds": summary["wall_seconds"],
        "valid_share": valid_share(invalid, trials),
        "invalid_trials": float(invalid),
        "reused_trials": float(sum(row["reused_trials"] for row in rows)),
        **{name: fmean(error[name] for error in errors if name in error) for name in names},
    }


def metrics_of(row: WorkloadRow | Total) -> dict[str, float]:
    """Return the latencies and gains of a run as MLflow metrics.

    These are the metrics:

    - the gains over the rule (the schedule used without tuning) and over the fallback (the stock
      compiler's schedule),
    - the fraction by which the tuned latency exceeds the bound,
    - the latencies of fallback, rule, tuned schedule and bound, in cycles and milliseconds,
    - the roofline in cycles,
    - the ends of confidence intervals, if the target's measurements vary.

    Args:
        row: entry of a workload, or the total, in `summary.json`.

    Returns:
        Values by metric name. Unknown values are left out.
    """
    figures = four_figures(row)
    known = {name: getattr(figures, name) for name in FIGURES}
    limit, above = above_limit(row)
    metrics = {
        "gain": figures.gain_over(RULE),
        "gain_over_fallback": figures.gain_over(FALLBACK),
        "above_bound": above if limit == "bound" else None,
        **{f"{name}_ms": milliseconds_of(seconds_of(item)) for name, item in known.items()},
        **{f"{name}_cycles": cycles_of(item) for name, item in known.items()},
        "roofline_cycles": row["roofline_cycles"],
        **_ends(row),
    }
    # Values are rounded, because MLflow's tables show all digits.
    return {
        name: float(value) if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")
        for name, value in metrics.items()
        if value is not None
    }


def _ends(row: WorkloadRow | Total) -> dict[str, float]:
    """Return the ends of the 95 % confidence intervals of the tuned latency and of the gain.

    Returns:
        Milliseconds and gains by metric name; empty if the target's measurements do not vary.
    """
    if "validation" not in row:
        return {}
    time, gain = row["validation"]["tuned_interval"], row["validation"]["gain_interval"]
    result = (
        {} if time is None else {"tuned_ms_low": 1e3 * time.low, "tuned_ms_high": 1e3 * time.high}
    )
    return result if gain is None else result | {"gain_low": gain.low, "gain_high": gain.high}


def _say_outcome(run_id: str, outcome: str) -> None:
    note = tracking.note_of(run_id)
    if outcome not in note:
        tracking.describe_run(run_id, run_description.with_outcome(note, outcome))


def _tags(params: Mapping[str, Json]) -> dict[str, str]:
    flow_run_id = str(flow_run.id)
    named = ("network", "target", "target_fingerprint", "tuner", "seed")
    tags = {name: str(params[name]) for name in named} | {
        MLFLOW_SOURCE_NAME: "tilewright tune",
        MLFLOW_SOURCE_TYPE: "LOCAL",
        "prefect_flow_run_id": flow_run_id,
        "prefect_flow_run_url": flow_run_url(flow_run_id),
    }
    return tags | tracking.commit_tag()


def _log_files(run_id: str, layer: str, trials: pd.DataFrame, picture: bytes) -> Dataset:
    """Log the convergence plot and the table of trials of a workload to MLflow.

    Args:
        run_id: MLflow run of the workload.
        layer: display name of the workload.
        trials: table with one row per trial.
        picture: the plot as PNG.

    Returns:
        An MLflow dataset that describes the table. It is also logged as the run's training data.
    """
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / output_dir.TRIALS
        table.write_bytes(outputs.parquet(trials))
        plot = Path(folder) / output_dir.CONVERGENCE
        plot.write_bytes(picture)
        tracking.log_file(run_id, table)
        tracking.log_file(run_id, plot)
        dataset = tracking.table_dataset(run_id, f"trials of {layer}", table, trials)
    tracking.log_dataset(run_id, dataset, "training")
    return dataset


def _log_models(
    run_id: str, tuned: TunedWorkload, read: Dataset, version: str, models: Sequence[LearnedModel]
) -> None:
    """Log each learned model of a workload in the MLflow flavour of its library.

    The held-out error of each model is logged too. It is the model's error on each batch of trials
    before the model was trained on that batch, averaged over the rounds.

    Args:
        run_id: MLflow run of the workload.
        tuned: the tuned workload.
        read: MLflow dataset of the trials on which the models were trained.
        version: digest that identifies the training data.
        models: the models.
    """
    workload = tuned.workload
    tags = {"workload": str(workload), "workload_id": workload.id, "tuner": tuned.task.tuner,
            "target": tuned.task.target.name, "dataset_digest": read.digest}  # fmt: skip
    for model in models:
        name = model_name(model.role, tuned.names, workload)
        entry = ModelEntry(name, run_id, version, tags)
        model_id = log_model(tracking.client(), entry, model)
        for error in (f"{model.role}_rmse", f"{model.role}_brier"):
            if error in tuned.model_errors:
                value = tuned.model_errors[error]
                tracking.log_model_error(run_id, model_id, read, f"{error}_before", value)


_SOURCES = ("run_pictures.py", "plot_style.py")
_OF_THE_RUN = ("wall_seconds", "reused_trials", "timed_again", "model_errors")
"""Fields of a workload's row that do not influence the picture of the workload."""


def workload_picture(layer: str, tuned: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """Return the convergence plot of a workload as PNG, from the cache if nothing changed.

    Args:
        layer: display name of the workload.
        tuned: the tuned workload.
        trials: table with one row per trial of the workload.
    """
    return _WORKLOAD.run([], {"layer": layer}, tuned, trials).value


def network_picture(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> bytes:
    """Return the convergence plot of a network as PNG, from the cache if nothing changed.

    Args:
        network: name of the network.
        tuned: the tuned workloads.
        trials: trials of all workloads.
    """
    return _NETWORK.run([], {}, network, tuned, trials).value


def draw_workload(tuned: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """Draw the convergence plot of a workload as PNG."""
    from tilewright.reports.run_pictures import convergence

    return convergence(tuned, trials)


def draw_network(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> bytes:
    """Draw the convergence plot of a network as PNG."""
    from tilewright.reports.run_pictures import network_convergence

    return network_convergence(network, tuned, trials)


def _workload_key(tuned: TunedWorkload, trials: pd.DataFrame) -> Key:
    return _network_key("workload", [tuned], trials)


def _network_key(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> Key:
    inputs: dict[str, Json] = {
        "what": network,
        "target": tuned[0].task.target.name,
        "trials": digest(outputs.parquet(trials)),
        "rows": [_workload_row(workload_result) for workload_result in tuned],
        "code": _code(),
    }
    return Key("picture", 1, NO_TARGET, inputs)


_WORKLOAD = Stage(draw_workload, "{layer}: picture", _workload_key)
_NETWORK = Stage(draw_network, "picture of {network}", _network_key)


def _workload_row(tuned: TunedWorkload) -> Json:
    row: dict[str, Json] = {**tuned.summary()}  # type: ignore[dict-item]
    return {name: value for name, value in row.items() if name not in _OF_THE_RUN}


@once
def _code() -> str:
    """Return a digest of the code that draws plots and of Matplotlib's version, for cache keys."""
    here = Path(str(reports.__file__)).parent
    return digest(
        version("matplotlib").encode() + b"".join((here / f).read_bytes() for f in _SOURCES)
    )
