"""Trains a transfer model with Prefect tasks, and registers it in MLflow.

A transfer model is a cost model that can also be used on hardware other than that of its training
data. The MLflow run of a training has parameters, metrics and files. The model becomes a version of
the registered model `tilewright.transfer.<kind>`. It is stored as the model's own folder
(`models.transfer.files`). No pickle is involved.

The alias `newest` marks the latest version. The alias `champion` marks the version with the best
ranking accuracy among all versions that were evaluated on the same rows. A version that was
evaluated on other rows replaces the champion only if it has learned from more rows. A fine-tuned
version never becomes champion, because it may be better only on some hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlflow.pyfunc
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from tilewright.core.files import Json
from tilewright.evaluation.datasets.options import TrainingOptions
from tilewright.evaluation.datasets.training import (
    METRICS,
    START,
    fit_model,
    judge_model,
    log_model,
    read_dataset,
    store_model,
)
from tilewright.reports.markdown import code, escape_text, list_links, markdown_table, paragraphs
from tilewright.search.events import Listener
from tilewright.services.page_addresses import flow_run_url
from tilewright.tasks import tracking
from tilewright.tasks.champion_registry import ALIAS, PREFIX
from tilewright.tasks.logged_models import Flavoured, upload_model
from tilewright.tasks.register_champion import provide
from tilewright.tasks.tracked_runner import Step, TrackedRunner, as_task

NEWEST = "newest"
_SCORE, _SPLIT, _DATASET, _ROWS = "pairwise_accuracy", "split", "dataset", "rows"
_JUDGED_ON = ("dataset", "split", "split_seed", "split_rows", "held_out")
"""Tags that identify the evaluation rows. Two versions with equal tags were evaluated on the same
rows."""


@dataclass(frozen=True)
class Registered:
    """A version of a registered model in MLflow.

    Attributes:
        name: name of the registered model.
        version: the version.
        aliases: aliases of the version, such as `newest`.
        run_id: MLflow run that trained it.
        flow_run_id: Prefect flow run that trained it.
    """

    name: str
    version: str
    aliases: tuple[str, ...]
    run_id: str
    flow_run_id: str


class TrainingRunner(TrackedRunner):
    """Runner that executes the steps of training a transfer model as Prefect tasks.

    Attributes:
        registered: the registered version of the model; None until the last step.
    """

    def __init__(self, emit: Listener) -> None:
        names: dict[Step, str] = {
            read_dataset: "rows of {options.dataset}", fit_model: "{options.kind}",
            judge_model: "{options.split}", store_model: "{options.out}",
        }  # fmt: skip
        matching: dict[Step, Step] = {item: as_task(item, name) for item, name in names.items()}
        matching[log_model] = as_task(log_model, "{options.kind} in the registry", self._log_model)
        super().__init__(emit, matching)
        self.registered: Registered | None = None

    def _log_model(
        self, options: TrainingOptions, folder: Path, metrics: Mapping[str, Json]
    ) -> None:
        """Write `metrics.json`, log the model to MLflow, and add it to the registry.

        Args:
            options: options of the training.
            folder: folder of the trained model.
            metrics: content of `metrics.json`.
        """
        log_model(options, folder, metrics)
        self.registered = _register_model(options, folder, metrics)
        say_trained(options, metrics, self.registered)


def _register_model(
    options: TrainingOptions, folder: Path, metrics: Mapping[str, Json]
) -> Registered:
    run_id = _open(options, metrics)
    try:
        held = str(metrics[_DATASET])
        read = tracking.source_dataset(Path(options.dataset).name, options.dataset, held)
        tracking.log_dataset(run_id, read, "training")
        tracking.log_results(run_id, _numbers(metrics))
        tracking.log_file(run_id, folder / METRICS)
        result = _register(options, folder, metrics, run_id)
    except BaseException as error:
        tracking.close_run(run_id, tracking.ended_by(error))
        raise
    tracking.close_run(run_id)
    return result


def say_trained(
    options: TrainingOptions, metrics: Mapping[str, Json], registered: Registered
) -> None:
    """Create a Prefect artifact that reports the model's accuracy, registered version and folder.

    Args:
        options: options of the training.
        metrics: content of `metrics.json`.
        registered: the registered version.
    """
    figures = {k: v for k, v in sorted(_numbers(metrics).items()) if not k.startswith("visible_")}
    title = f"{options.kind}, {options.split}"
    note = paragraphs(
        f"# {escape_text(title)}",
        f"{escape_text(registered.name)} version {escape_text(registered.version)} "
        f"({escape_text(', '.join(registered.aliases))}), kept in {code(options.out)}.",
        list_links({"this run in MLflow": tracking.run_url(registered.run_id)}),
        markdown_table([{"figure": k, "value": f"{v:.6g}"} for k, v in figures.items()]),
    )
    create_markdown_artifact(key="model", markdown=note, description=escape_text(title))


def _open(options: TrainingOptions, metrics: Mapping[str, Json]) -> str:
    params = {k: v for k, v in options.model_dump(mode="json").items() if k != "options"}
    params |= {f"option.{name}": value for name, value in options.options.items()}
    params["dataset_digest"] = metrics[_DATASET]
    tags = {
        MLFLOW_SOURCE_NAME: "tilewright model train",
        MLFLOW_SOURCE_TYPE: "LOCAL",
        "dataset_digest": str(metrics[_DATASET]),
        **_start(metrics),
        "prefect_flow_run_id": str(flow_run.id),
        "prefect_flow_run_url": flow_run_url(str(flow_run.id)),
    }
    return tracking.open_run(
        f"transfer {options.kind} {options.split}", tracking.run_key(params), params=params,
        tags=tags | tracking.commit_tag(), fresh=True,
    )  # fmt: skip


def _start(metrics: Mapping[str, Json]) -> dict[str, str]:
    """Return a tag that names the model from which fine-tuning started; empty without fine-tuning.

    Args:
        metrics: content of `metrics.json`.
    """
    result = metrics.get(START)
    return {"start_model": str(result)} if result else {}


def _numbers(metrics: Mapping[str, Json]) -> dict[str, float]:
    numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
    interval, visible = metrics["interval"], metrics["visible"]
    assert isinstance(interval, list)
    assert isinstance(visible, dict)
    low, high = interval
    numbers |= {"pairwise_accuracy_low": low, "pairwise_accuracy_high": high}
    known = {k: v for k, v in visible.items() if isinstance(v, int | float)}
    return numbers | {f"visible_{k}": float(v) for k, v in known.items()}


def _register(
    options: TrainingOptions, folder: Path, metrics: Mapping[str, Json], run_id: str
) -> Registered:
    client, name = MlflowClient(), f"{PREFIX}.transfer.{options.kind}"
    provide(
        client, name,
        f"Ranks schedules on hardware that the model may not have seen; {options.kind}.",
        {"kind": options.kind},
    )  # fmt: skip
    model_id = _log_model_folder(client, folder, f"transfer {options.kind}", run_id)
    tags = {
        _DATASET: str(metrics[_DATASET]),
        _SPLIT: options.split,
        "split_seed": str(options.seed),
        "split_rows": str(options.rows or "all"),
        "held_out": repr(options.held_out),
        _ROWS: str(metrics[_ROWS]),
        _SCORE: repr(metrics[_SCORE]),
        **_start(metrics),
    }
    made = client.create_model_version(
        name, f"models:/{model_id}", run_id=run_id, model_id=model_id, tags=tags
    )
    best = not _start(metrics) and _is_best(client, name, tags)
    aliases = (NEWEST, ALIAS) if best else (NEWEST,)
    for alias in aliases:
        client.set_registered_model_alias(name, alias, made.version)
    return Registered(name, str(made.version), aliases, run_id, str(flow_run.id))


def _log_model_folder(client: MlflowClient, folder: Path, name: str, run_id: str) -> str:
    """Log a copy of the model's folder and its loader, and return the ID of the logged model."""
    experiment = client.get_run(run_id).info.experiment_id
    entry = client.create_logged_model(experiment, name=name, source_run_id=run_id)
    what = Flavoured(
        mlflow.pyfunc,
        {
            "loader_module": "tilewright.tasks.transfer_flavor", "data_path": str(folder),
            "pip_requirements": [],
        },
    )  # fmt: skip
    upload_model(client, entry, what)
    return str(entry.model_id)


def _is_best(client: MlflowClient, name: str, tags: Mapping[str, str]) -> bool:
    """Return whether a version of a registered model should become the champion.

    It should in three cases: there is no champion, the version is at least as accurate as the
    champion on the same rows, or the champion was evaluated on other rows and has learned from
    fewer rows. It also should if a tag of either version is missing or is not a number.

    Args:
        client: MLflow client.
        name: name of the registered model.
        tags: tags of the version, with its accuracy and the digest of the rows.
    """
    try:
        champion = client.get_model_version_by_alias(name, ALIAS)
    except MlflowException:
        return True
    same = all(champion.tags.get(item) == tags[item] for item in _JUDGED_ON)
    by = _SCORE if same else _ROWS
    try:
        mine, its = float(tags[by]), float(champion.tags[by])
    except (KeyError, ValueError):  # tags of an earlier version, or changed by hand
        return True
    return mine >= its if same else mine > its
