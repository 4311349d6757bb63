"""MLflow: a run is found again, never doubled, and its models load without pickle."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import warm

pytestmark = pytest.mark.slow(seconds=4)

SCRIPT = """
import json, sys
from pathlib import Path
from tilewright.services.workspace import Home, use_home
use_home(Home(Path(sys.argv[1])))
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

x = np.random.default_rng(0).random((40, 3))
booster = xgboost.train({"verbosity": 0}, xgboost.DMatrix(x, x.sum(1)), 5)
for _ in range(2):
    tracking.log_booster(first, "model_P", "xgboost", booster, "v1")
tracking.log_booster(first, "model_P", "xgboost", booster, "v2")
models = MlflowClient().search_logged_models([MlflowClient().get_run(first).info.experiment_id])
assert len(models) == 1, models
assert models[0].source_run_id == first and str(models[0].status) == "READY"
import mlflow.xgboost
back = mlflow.xgboost.load_model(models[0].model_uri)
assert (back.predict(xgboost.DMatrix(x)) == booster.predict(xgboost.DMatrix(x))).all()
names = [p.name for p in Path(sys.argv[1]).rglob("*")]
assert "model.ubj" in names and not [n for n in names if n.endswith((".pkl", ".pickle"))], names

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
view = json.loads(experiment.tags["mlflow.sharedViewState.tilewright"])
assert "metrics.`gain`" in view["selectedColumns"] and "params.`tuner`" in view["selectedColumns"]
(chart,) = view["compareRunCharts"]
assert chart["metricSectionId"] in {each["uuid"] for each in view["compareRunSections"]}
assert {"cycles/best", "cycles/baseline"} <= set(chart["selectedMetricKeys"])
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


def test_nothing_is_written_outside_the_home(
    outcome: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    assert [path.name for path in outcome[1].iterdir()] == ["home"]
