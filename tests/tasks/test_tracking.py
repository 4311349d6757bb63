"""Tests runs in MLflow: resumed, never duplicated, and with models that load without pickle."""

from __future__ import annotations

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import warm

pytestmark = pytest.mark.slow(seconds=4)

SCRIPT = """
import json, sys
from pathlib import Path
from tilewright.services.workspace import Workspace, use_workspace
use_workspace(Workspace(Path(sys.argv[1])))
import numpy as np, xgboost
from mlflow.tracking import MlflowClient
from tilewright.tasks import tracking

about = {"network": "n", "seed": 0}
key = tracking.run_key(about)
def open_it(fresh=False):
    return tracking.open_run("n", key, params={"seed": 0}, tags={"a": "b"}, fresh=fresh)

first = open_it()
with tracking.StepLog(first) as steps:
    steps.add(0, {"trials": 8, "best_cycles": float("nan")})
    steps.add(1, {"trials": 16, "best_cycles": 5})
    killed = tracking.StepLog(first)
    killed.add(2, {"trials": 24, "best_cycles": 5})  # never logged
tracking.close_run(first, "KILLED")

again = open_it()
assert again == first
assert MlflowClient().get_run(again).info.status == "RUNNING"
with tracking.StepLog(again) as steps:
    for step in range(200):
        steps.add(step, {"trials": 8.0 * (step + 1), "best_cycles": 5, "a": 1, "b": 2, "c": 3})
history = MlflowClient().get_metric_history(first, "trials")
assert [(m.step, m.value) for m in history] == [(s, 8 * s + 8) for s in range(200)], history
best = MlflowClient().get_metric_history(first, "best_cycles")
assert [m.step for m in best] == list(range(1, 200))

from tilewright.models.model_registry import build
from tilewright.targets.features import Features
from tilewright.tasks.logged_models import LearnedModel, ModelEntry, log_model
x = Features.from_names(np.random.default_rng(0).random((40, 3)), ["one", "two", "three"])
model = build("xgboost", 0, False, {})
model.fit(x, x.matrix.sum(1))
learned = LearnedModel("P", model, "log2 cycles", x)
for version in "v1", "v1", "v2":
    log_model(MlflowClient(), ModelEntry("model_P", first, version), learned)
models = MlflowClient().search_logged_models([MlflowClient().get_run(first).info.experiment_id])
assert len(models) == 1, models
assert models[0].source_run_id == first and str(models[0].status) == "READY"
assert models[0].params["predicts"] == "log2 cycles" and models[0].params["features"] == "3"
import mlflow.xgboost
back = mlflow.xgboost.load_model(models[0].model_uri)
asked = xgboost.DMatrix(x.matrix, feature_names=["one", "two", "three"])
assert np.allclose(back.predict(asked), model.predict(x))
names = [p.name for p in Path(sys.argv[1]).rglob("*")]
assert "model.ubj" in names and not [n for n in names if n.endswith((".pkl", ".pickle"))], names

import os, pandas as pd
from time import sleep
from tilewright.tasks.tracked_runner import TrackedRunner
os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"] = "0.1"
def system_metrics(run):
    return {m for m in MlflowClient().get_run(run).data.metrics if m.startswith("system/")}
def run_monitored(requested):
    run_id = tracking.open_run("m", tracking.run_key({"m": requested}), params={}, tags={})
    with TrackedRunner(lambda event: None, {}, system_metrics=requested) as runner:
        runner.belong_to(run_id)
        sleep(1)
    return system_metrics(run_id)
assert "system/cpu_utilization_percentage" in run_monitored(True)
assert run_monitored(False) == set(), "nobody asked for system metrics"
SETTING = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"
os.environ[SETTING] = "true"
monitor = tracking.start_monitor(first, False)
sleep(1)
monitor.finish()
assert "system/cpu_utilization_percentage" in system_metrics(first)
os.environ[SETTING] = "false"
assert tracking.start_monitor(first, False) is None
os.environ[SETTING] = "sometimes"
try:
    tracking.start_monitor(first, False)
except tracking.TrackingError as error:
    assert SETTING in str(error) and "sometimes" in str(error)
else:
    raise AssertionError("a setting that is not a boolean was accepted")
del os.environ[SETTING]

table = pd.DataFrame({"trial": [0, 1], "cycles": [5, 4], "status": ["valid", "valid"]})
file = Path(sys.argv[1]) / "trials.parquet"
table.to_parquet(file)
tracking.log_file(first, file)
read = tracking.table_dataset(first, "trials of conv1", file, table)
file.unlink()
tracking.log_dataset(first, read, "training")
tracking.log_model_error(first, models[0].model_id, read, "P_rmse_before", 0.25)
(held,) = MlflowClient().get_run(first).inputs.dataset_inputs
assert (held.dataset.name, held.dataset.digest) == ("trials of conv1", read.digest)
import mlflow.data
there = pd.read_parquet(mlflow.data.get_source(held.dataset).load())
pd.testing.assert_frame_equal(there, table)
(error,) = [m for m in MlflowClient().get_logged_model(models[0].model_id).metrics
            if m.dataset_digest == read.digest]
assert (error.key, error.value) == ("P_rmse_before", 0.25)

tracking.close_run(first)
assert tracking.repeated_run(first) is None
second = open_it()
assert second != first, "a command that is repeated after it ended well is a run of its own"
assert tracking.repeated_run(second) == first
with tracking.StepLog(second) as steps:
    steps.add(0, {"trials": 8})
tracking.close_run(second, "FAILED")
assert open_it() == second, "one that did not end goes on"
tracking.close_run(second)
third = open_it()
assert third not in (first, second) and tracking.repeated_run(third) == first
for run in (first, second):
    points = MlflowClient().get_metric_history(run, "trials")
    assert len({m.step for m in points}) == len(points)
def open_child(parent):
    return tracking.open_run("c", tracking.run_key({"parent": parent}), params={}, tags={},
                             parent=parent)
child = open_child(third)
tracking.close_run(child)
assert open_child(third) == child, "a run goes on with the workloads it has done"
assert open_child(second) != child
tracking.close_run(third)

experiment = MlflowClient().get_experiment(MlflowClient().get_run(third).info.experiment_id)
saved = json.loads(experiment.tags["mlflow.sharedViewState.tilewright"])
view = json.loads(saved["state"])
note = experiment.tags["mlflow.note.content"]
assert saved["name"] and "viewStateShareKey=tilewright" in note
assert f"](#/experiments/{experiment.experiment_id}/runs?" in note
assert "metrics.`gain`" in view["selectedColumns"] and "params.`tuner`" in view["selectedColumns"]
(chart,) = view["compareRunCharts"]
assert chart["metricSectionId"] in {each["uuid"] for each in view["compareRunSections"]}
assert {"cycles/best", "cycles/rule"} <= set(chart["selectedMetricKeys"])
assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"

tracking.describe_run(third, "**what**")
assert tracking.note_of(third) == "**what**"
tags = MlflowClient().get_run(third).data.tags
assert tags["mlflow.note.content"] == "**what**"

other = open_it(fresh=True)
assert other != first and open_it() == other
assert MlflowClient().get_run(first).info.status == "FINISHED"
print("good")
"""


@pytest.fixture(scope="module")
def outcome(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("mlflow")
    done = warm.run([str(folder / "home")], folder, os.environ, 300, program=SCRIPT)
    return done, folder


def test_a_run_is_resumed_its_steps_are_not_repeated_its_models_load(
    outcome: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, _ = outcome
    assert done.stdout.strip().endswith("good"), done.stderr


def test_nothing_is_written_outside_the_workspace(
    outcome: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    assert [path.name for path in outcome[1].iterdir()] == ["home"]


def test_commands_that_set_a_tag_of_the_experiment_at_once_all_succeed(tmp_path: Path) -> None:
    """MLflow checks for a tag before it inserts it. A concurrent insertion gives an error."""
    from mlflow import MlflowClient

    from tilewright.tasks.tracking import set_experiment_tag

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    experiment = MlflowClient(uri).create_experiment("shared")
    names = [f"tag {number}" for number in range(10)]
    barrier = threading.Barrier(8)

    def set_all() -> None:
        client = MlflowClient(uri)
        for name in names:
            barrier.wait()
            set_experiment_tag(client, experiment, name, "value")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(set_all) for _ in range(8)]:
            done.result()
    tags = MlflowClient(uri).get_experiment(experiment).tags
    assert all(tags[name] == "value" for name in names)
