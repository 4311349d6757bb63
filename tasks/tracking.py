"""Records runs in MLflow, through MLflow's client with explicit run IDs.

There is one run per network, with one child run per workload. Each run has a tag with its key, a
digest of what it tunes and how. If a command was killed and is called again, it finds its run by
the key, resumes it, and logs only the missing steps. If a command is repeated after it finished, it
gets a new run, which refers to the first one.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import pandas as pd
from mlflow.entities import (
    Dataset,
    DatasetInput,
    Experiment,
    InputTag,
    LoggedModelInput,
    Metric,
    Param,
    Run,
    RunTag,
)
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import (
    MLFLOW_DATASET_CONTEXT,
    MLFLOW_GIT_COMMIT,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NAME,
    MLFLOW_RUN_NOTE,
)

from tilewright.core.database_url import is_sqlite
from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, canonical, digest
from tilewright.services.mlflow_server import EXPERIMENT, VIEW_KEY
from tilewright.services.page_addresses import mlflow_run_url, runs_url
from tilewright.services.workspace import current_workspace
from tilewright.tasks.mlflow_columns import VIEW_TAG, description, runs_view

KEY_TAG = "tilewright.key"
REPEATS_TAG = "tilewright.repeats"
"""Tag with the ID of the first run of the same command, if that run finished."""
PAGE_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag that makes MLflow open the experiment on the page of training runs rather than on the page of
traces of language models."""
STEP_METRIC = "trials"
"""Metric that is logged at every step and numbers the steps, so that runs with different batch
sizes are comparable."""
KEPT_SECONDS = 1.0
_DIGEST = 12  # number of characters of a dataset's digest that MLflow shows
FULL_BATCH = 500  # number of collected metrics that is logged at once; MLflow's limit is 1000


class TrackingError(TilewrightError):
    """Raised if a setting of MLflow cannot be read."""


def connect() -> None:
    """Open MLflow's tracking store in advance, because this takes a second."""
    _client()


def run_key(about: Mapping[str, Json]) -> str:
    """Return the key of a run: a digest of the values that identify it.

    Args:
        about: the values by name, such as the network, the target and the options.
    """
    return digest(canonical(dict(about)))[:24]


def open_run(
    name: str,
    key: str,
    *,
    params: Mapping[str, Json],
    tags: Mapping[str, str],
    parent: str | None = None,
    reopen: bool = False,
    fresh: bool = False,
) -> str:
    """Resume the unfinished run with the given key, or create a new run.

    The tags of a resumed run are updated. Parameters are only written when a run is created.

    Args:
        name: name of the run.
        key: digest that identifies the run, as `run_key` returns it.
        params: parameters of the run.
        tags: tags of the run.
        parent: parent run, if any. A run with a parent is resumed even if it has finished.
        reopen: whether to resume the run even if it has finished.
        fresh: whether to create a new run in any case.

    Returns:
        The ID of the run.
    """
    client = _client()
    held = None if fresh else _latest(key)
    if held is not None and (reopen or parent or held.info.status != "FINISHED"):
        run_id = str(held.info.run_id)
    else:
        if held is None:
            _retire(key)
        run_id = _create(name, key, params, parent, held)
    client.update_run(run_id, status="RUNNING")
    client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])
    return run_id


def _create(
    name: str, key: str, params: Mapping[str, Json], parent: str | None, held: Run | None
) -> str:
    """Create an MLflow run and return its ID.

    Args:
        name: name of the run.
        key: digest that identifies the run.
        params: parameters of the run.
        parent: parent run, if any.
        held: finished run of the same command, to which the new run refers, if there is one.
    """
    links = {MLFLOW_RUN_NAME: name, KEY_TAG: key}
    if parent:
        links[MLFLOW_PARENT_RUN_ID] = parent
    if held is not None:
        links[REPEATS_TAG] = held.data.tags.get(REPEATS_TAG, held.info.run_id)
    run_id = str(_client().create_run(_experiment(), tags=links).info.run_id)
    _client().log_batch(run_id, params=[Param(k, str(v)) for k, v in params.items()])
    return run_id


def repeated_run(run_id: str) -> str | None:
    """Return the ID of the first run of the command that a run repeats.

    Args:
        run_id: ID of the run.

    Returns:
        The ID of the first run; None if this run is the first one.
    """
    result = _client().get_run(run_id).data.tags.get(REPEATS_TAG)
    return None if result is None else str(result)


def describe_run(run_id: str, note: str) -> None:
    """Set the description that MLflow shows for a run.

    Args:
        run_id: ID of the run.
        note: the description in Markdown.
    """
    _client().set_tag(run_id, MLFLOW_RUN_NOTE, note)


def note_of(run_id: str) -> str:
    """Return the description of a run; "" if it has none."""
    return str(_client().get_run(run_id).data.tags.get(MLFLOW_RUN_NOTE, ""))


def tags_of(run_id: str) -> dict[str, str]:
    """Return all tags of a run."""
    return dict(_client().get_run(run_id).data.tags)


def tag_run(run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run, or change their values.

    Args:
        run_id: ID of the run.
        tags: values of the tags by name.
    """
    _client().log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def last_like(before: datetime, like: Mapping[str, str], rather: Mapping[str, str]) -> str | None:
    """Return the ID of the last run with certain tags that finished successfully.

    Args:
        before: time before which the run must have ended.
        like: tags that the run must have. Their values are digests, so they need no escaping.
        rather: preferred tags. If any run also has these tags, the last such run is returned, even
            if a run without them ended later.

    Returns:
        The ID; None if there is no such run.
    """
    ended = f"attributes.end_time < {int(before.timestamp() * 1000)}"
    for wanted in (dict(like) | dict(rather), like):
        asked = " and ".join(f"tags.`{name}` = '{value}'" for name, value in wanted.items())
        runs = _client().search_runs(
            [_experiment()],
            filter_string=f"attributes.status = 'FINISHED' and {ended} and {asked}",
            order_by=["attributes.end_time DESC"],
            max_results=1,
        )
        if runs:
            return str(runs[0].info.run_id)
    return None


def _latest(key: str) -> Run | None:
    """Return the latest run with a key that has not finished successfully, else the latest run.

    The result is None if no run has the key.
    """
    runs = _client().search_runs(
        [_experiment()],
        filter_string=f"tags.`{KEY_TAG}` = '{key}'",
        order_by=["attributes.start_time DESC"],
    )
    unfinished = [run for run in runs if run.info.status != "FINISHED"]
    return next(iter([*unfinished, *runs]), None)


def close_run(run_id: str, status: str = "FINISHED") -> None:
    """End an MLflow run.

    Args:
        run_id: ID of the run.
        status: its final status, as `ended_by` returns it.
    """
    client = _client()
    begun = client.get_run(run_id).info.start_time
    # The clock may have been set back meanwhile, but no run may end before it began.
    ended = max(int(time.time() * 1000), begun)
    client.set_terminated(run_id, status=status, end_time=ended)


def ended_by(error: BaseException | None) -> str:
    """Return the MLflow status of a run that ended with an error or successfully.

    Args:
        error: the exception that ended the run; None if it was successful.

    Returns:
        `FINISHED` without an error, `KILLED` if the user stopped the run, otherwise `FAILED`.
    """
    if error is None:
        return "FINISHED"
    return "FAILED" if isinstance(error, Exception) else "KILLED"


class StepLog:
    """Context manager that logs metrics of one MLflow run by step.

    Steps that the run already has are not logged again. A call of MLflow costs about the same
    whatever its size, so steps are collected for up to a second. At the end of the context, the
    steps that are still collected are logged.

    Args:
        run_id: ID of the run.
        every: name of a metric that every step has. A resumed run reads this metric to find the
            steps that are missing.
    """

    def __init__(self, run_id: str, every: str = STEP_METRIC) -> None:
        self.run_id = run_id
        history = _client().get_metric_history(run_id, every)
        self._next = max((point.step for point in history), default=-1) + 1
        self._kept: list[Metric] = []
        self._logged = time.monotonic()

    def __enter__(self) -> StepLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step, with a short delay.

        Args:
            step: number of the step.
            values: values by metric name. Values that are not finite are left out.
        """
        if step < self._next:
            return
        now = int(time.time() * 1000)
        self._kept += [
            Metric(name, float(value), now, step)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        self._next = step + 1
        if len(self._kept) > FULL_BATCH or time.monotonic() - self._logged > KEPT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Log all collected steps."""
        if self._kept:
            _client().log_batch(self.run_id, metrics=self._kept)
        self._kept = []
        self._logged = time.monotonic()


def log_results(run_id: str, values: Mapping[str, float]) -> None:
    """Log final metrics, which have no curve over the steps of a run.

    Metrics that the run already has are not logged again.

    Args:
        run_id: ID of the run.
        values: values by metric name. Values that are not finite are left out.
    """
    now = int(time.time() * 1000)
    known = _client().get_run(run_id).data.metrics
    metrics = [
        Metric(name, float(value), now, 0)
        for name, value in values.items()
        if math.isfinite(value) and name not in known
    ]
    _client().log_batch(run_id, metrics=metrics)


def log_file(run_id: str, path: Path, folder: str | None = None) -> None:
    """Log a file as an artifact of a run.

    Args:
        run_id: ID of the run.
        path: the file.
        folder: folder within the run's artifacts; None for the root folder.
    """
    _client().log_artifact(run_id, str(path), folder)


def log_dataset(run_id: str, dataset: Dataset, context: str) -> None:
    """Log a dataset that a run used.

    Args:
        run_id: ID of the run.
        dataset: the dataset.
        context: purpose of the dataset, such as `training`.
    """
    about = InputTag(MLFLOW_DATASET_CONTEXT, context)
    _client().log_inputs(run_id, [DatasetInput(dataset, [about])])


def source_dataset(name: str, source: str, digest: str) -> Dataset:
    """Return an MLflow dataset that is identified by its location and a digest of its contents.

    MLflow shows only the first characters of the digest; the dataset's profile has the whole
    digest.

    Args:
        name: name of the dataset.
        source: path or name of the data.
        digest: digest of the contents.
    """
    profile = canonical({"sha256": digest}).decode()
    return Dataset(name, digest[:_DIGEST], "local", _source(source), profile=profile)


def table_dataset(run_id: str, name: str, file: Path, table: pd.DataFrame) -> Dataset:
    """Return an MLflow dataset that describes a table, with its columns and digest.

    Args:
        run_id: MLflow run with which the table is logged.
        name: name of the dataset.
        file: file of the table among the run's artifacts.
        table: the table.
    """
    file_digest = digest(file.read_bytes())
    place = f"{_client().get_run(run_id).info.artifact_uri}/{file.name}"
    kinds = {"i": "long", "f": "double"}
    columns: list[Json] = [
        {"name": str(column), "type": kinds.get(table[column].dtype.kind, "string")}
        for column in table.columns
    ]
    return Dataset(
        name, file_digest[:_DIGEST], "local", _source(place),
        schema=canonical({"mlflow_colspec": columns}).decode(),
        profile=canonical({"num_rows": len(table), "sha256": file_digest}).decode(),
    )  # fmt: skip


def log_model_error(run_id: str, model_id: str, dataset: Dataset, name: str, error: float) -> None:
    """Log to MLflow the error that a model had on a dataset before the model learned from it.

    Args:
        run_id: MLflow run.
        model_id: ID of the logged model.
        dataset: the dataset.
        name: name of the metric.
        error: value of the metric.
    """
    now = int(time.time() * 1000)
    metric = Metric(
        name, error, now, 0, model_id=model_id, dataset_name=dataset.name,
        dataset_digest=dataset.digest, run_id=run_id,
    )  # fmt: skip
    _client().log_batch(run_id, metrics=[metric])


def link_models(run_id: str, models: Sequence[str]) -> None:
    """Log the models on which the results of a run are based.

    Args:
        run_id: ID of the run.
        models: IDs of the logged models.
    """
    if models:
        _client().log_inputs(run_id, models=[LoggedModelInput(model) for model in models])


def models_below(run_id: str) -> list[str]:
    """Return the IDs of the models that were logged with the child runs of a run."""
    below = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}'"
    runs = _client().search_runs([_experiment()], filter_string=below)
    return [output.model_id for run in runs if run.outputs for output in run.outputs.model_outputs]


def finished_below(run_id: str) -> dict[str, str]:
    """Return the IDs of the finished child runs of a run, by their keys (see `run_key`)."""
    asked = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}' and attributes.status = 'FINISHED'"
    result, token = dict[str, str](), None
    while True:
        page = _client().search_runs([_experiment()], filter_string=asked, page_token=token)
        result |= {run.data.tags.get(KEY_TAG, ""): str(run.info.run_id) for run in page}
        token = page.token
        if not token:
            return result


def _source(uri: str) -> str:
    return canonical({"uri": uri}).decode()


def start_monitor(run_id: str, requested: bool) -> SystemMetricsMonitor | None:
    """Start to log the usage of processor, memory, disk and network to a run, every ten seconds.

    If a run has system metrics, MLflow shows them first when it opens the run. They are therefore
    logged on request only.

    Args:
        run_id: the run that gets the metrics.
        requested: whether the user requested system metrics. If not, MLflow's own setting
            `MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING` decides.

    Returns:
        The running monitor, which logs until its method `finish` is called; None if system metrics
        were not requested.

    Raises:
        TrackingError: MLflow's setting is not a boolean.
    """
    try:
        enabled = requested or MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get()  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise TrackingError(f"{error}; correct this variable or unset it") from None
    if not enabled:
        return None
    monitor = SystemMetricsMonitor(run_id, resume_logging=True)  # type: ignore[no-untyped-call]
    monitor.start()  # type: ignore[no-untyped-call]
    return monitor


def fetch_file(run_id: str, name: str, folder: Path) -> Path:
    """Download an artifact of a run into a folder.

    Args:
        run_id: ID of the run.
        name: path of the artifact within the run's artifacts.
        folder: the folder.

    Returns:
        Path of the downloaded file.

    Raises:
        MlflowException: the artifact cannot be read.
        OSError: the file cannot be written.
    """
    return Path(_client().download_artifacts(run_id, name, str(folder)))


def client() -> MlflowClient:
    """Return the MLflow client that this process shares."""
    return _client()


def experiment_id() -> str:
    """Return the ID of the workspace's experiment, which is created if it does not exist."""
    return _experiment()


def run_url(run_id: str) -> str:
    """Return the address of a run's page in MLflow."""
    return mlflow_run_url(_experiment(), run_id)


@lru_cache(maxsize=1)
def git_commit() -> str | None:
    """Return the Git commit of this code; None if the code does not run from a Git checkout."""
    folder = Path(__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None  # a repository in a folder above belongs to another project
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit_tag() -> dict[str, str]:
    """Return MLflow's tag for the Git commit; empty if the commit is unknown."""
    commit = git_commit()
    return {MLFLOW_GIT_COMMIT: commit} if commit else {}


@lru_cache(maxsize=1)
def _client() -> MlflowClient:
    return MlflowClient()


@lru_cache(maxsize=1)
def _experiment() -> str:
    client = _client()
    known = client.get_experiment_by_name(EXPERIMENT) or _make_experiment()
    experiment_id = str(known.experiment_id)
    view = f"{runs_url('', experiment_id)}&viewStateShareKey={VIEW_KEY}".removeprefix("/")
    wanted = {
        VIEW_TAG: runs_view(),
        **({} if _has_description(known) else {MLFLOW_RUN_NOTE: description(view)}),
    }
    for name, value in wanted.items():
        if known.tags.get(name) != value:
            set_experiment_tag(client, experiment_id, name, value)
    return experiment_id


def set_experiment_tag(client: MlflowClient, experiment_id: str, name: str, value: str) -> None:
    """Set a tag of an experiment, even if another command sets the same tag at the same moment.

    Args:
        client: MLflow client.
        experiment_id: ID of the experiment.
        name: name of the tag.
        value: value of the tag.

    Raises:
        MlflowException: the tag cannot be set.
    """
    try:
        client.set_experiment_tag(experiment_id, name, value)
    except MlflowException:
        # MLflow looks for the tag before it inserts it. If two commands do so at the same moment,
        # the second one violates the constraint that a tag exists only once.
        if client.get_experiment(experiment_id).tags.get(name) != value:
            raise


def _has_description(experiment: Experiment) -> bool:
    """Return whether the experiment has a description that a user wrote, not this program."""
    note = experiment.tags.get(MLFLOW_RUN_NOTE, "")
    return bool(note) and VIEW_KEY not in note


def _make_experiment() -> Experiment:
    client = _client()
    local = is_sqlite(str(client.tracking_uri))
    folder = current_workspace().mlflow_artifacts.as_uri() if local else None
    try:
        client.create_experiment(EXPERIMENT, artifact_location=folder, tags=PAGE_KIND)
    except Exception:  # another command may have created it; each store raises its own error
        if client.get_experiment_by_name(EXPERIMENT) is None:
            raise
    made = client.get_experiment_by_name(EXPERIMENT)
    assert made is not None, "it was there or made"
    return made


def _retire(key: str) -> None:
    """Detach a key from all runs that have it, and end those runs that are marked as running.

    A command that starts over with a new run calls this function, so that later commands resume the
    new run. The older runs keep their data. Runs that were killed, and their child runs, are still
    marked as running before this call; they get the status `KILLED`.

    Args:
        key: digest that identifies a run, as `run_key` returns it.
    """
    while (old := _latest(key)) is not None:
        _client().set_tag(old.info.run_id, KEY_TAG, f"{key} (superseded)")
        below = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{old.info.run_id}'"
        for run in [old, *_client().search_runs([_experiment()], filter_string=below)]:
            if run.info.status == "RUNNING":
                close_run(run.info.run_id, "KILLED")
