"""Tests tuners' models in MLflow: they declare their features and predict as in the tuner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import warm
from tilewright.flows.tuning import learn, rounds_without_store, tune_session
from tilewright.models import make_explorer
from tilewright.search import ExplorerState, LocalRunner, Session, Task, make_task
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload
from tilewright.tasks.logged_models import EXAMPLES, learned_models, model_name

WORKLOAD = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1")


def session_of(tuner: str, **options: object) -> tuple[Task, Session]:
    """Return a session after three rounds, with its trained models."""
    task = make_task(make_target("vta-pynq"), WORKLOAD, make_explorer(tuner, options), 0)
    return task, learn(LocalRunner(), task, tune_session(task, 24, 8))


@pytest.mark.parametrize(
    ("tuner", "predicts"),
    [
        ("default", {"P": "log2 (cycles / estimate)", "A": "log2 (cycles / estimate)",
                     "V": "probability of being valid", "draft": "log2 cycles"}),
        ("ml2tuner", {"P": "log2 cycles", "A": "log2 cycles", "V": "probability of being valid",
                      "draft": "log2 cycles"}),
        ("ml2tuner-published", {"P": "log2 cycles", "A": "log2 cycles",
                                "V": "probability of being valid"}),
        ("baco", {"P": "log2 cycles", "V": "probability of being valid"}),
    ],
)  # fmt: skip
def test_every_model_names_its_features_and_the_unit_of_what_it_predicts(
    tuner: str, predicts: dict[str, str]
) -> None:
    learned = learned_models(*session_of(tuner))
    assert {item.role: item.predicts for item in learned} == predicts
    for model in learned:
        assert model.example is not None
        assert model.example.shape == (EXAMPLES, len(model.model.columns))
        assert tuple(model.example.columns) == model.model.columns
        assert tuple(model.signature.inputs.input_names()) == model.model.columns
        assert model.signature.outputs.input_names() == [model.predicts]


def test_models_shared_by_workloads_come_with_an_example() -> None:
    other = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=32,k=1,s=1,p=0")
    target, explorer = make_target("vta-pynq"), make_explorer("ml2tuner")
    earlier = make_task(target, other, explorer, 0)
    history = tune_session(earlier, 24, 8).history
    shared = explorer.share(earlier.problem, ExplorerState(), history)
    task, runner = make_task(target, WORKLOAD, explorer, 0), LocalRunner()
    session = Session.start(task).with_shared(shared)
    for done in rounds_without_store(runner, task, session, trials=24, batch=8):
        session = done.session
    session = learn(runner, task, session)
    examples = {item.role: item.example for item in learned_models(task, session)}
    assert {"shared_A", "shared_draft"} <= set(examples)
    assert [role for role, example in examples.items() if example is None] == []


def test_a_model_that_its_tuner_asks_by_itself_has_a_signature_without_an_example() -> None:
    (ranker,) = learned_models(*session_of("autotvm", plan=8))
    assert ranker.predicts == "score of the tuner's own model"
    assert ranker.example is None
    assert len(ranker.signature.inputs.inputs) == len(ranker.model.columns) > 0


def test_models_of_workloads_that_differ_in_their_steps_have_names_of_their_own() -> None:
    other = parse_workload(str(WORKLOAD), ">> 8, relu, residual 4")
    names = {model_name("P", ("stage1/conv.0",), item) for item in (WORKLOAD, other)}
    assert len(names) == 2
    assert not [mark for name in names for mark in "/:.%" if mark in name]


PROGRAM = """
import sys
from pathlib import Path
from tilewright.services.workspace import Workspace, use_workspace
use_workspace(Workspace(Path(sys.argv[1])))
sys.path.insert(0, sys.argv[2])
import mlflow, numpy as np
from mlflow.tracking import MlflowClient
from tests.tasks.test_logged_models import session_of
from tilewright.tasks import tracking
from tilewright.tasks.logged_models import ModelEntry, learned_models, log_model
run = tracking.open_run("n", "key", params={}, tags={})
for tuner in "default", "baco":
    for each in learned_models(*session_of(tuner)):
        expected = each.model.predict(each.features)[:5]
        model_id = log_model(MlflowClient(), ModelEntry(f"{tuner} {each.role}", run), each)
        found = mlflow.pyfunc.load_model(f"models:/{model_id}")
        assert found.metadata.signature == each.signature
        example = found.input_example
        assert list(example.columns) == list(each.model.columns)
        assert np.allclose(np.ravel(found.predict(example)), expected), (tuner, each.role)
print("good")
"""


@pytest.mark.slow(seconds=6)
def test_mlflow_loads_them_and_they_predict_what_they_did(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    done = warm.run([str(tmp_path / "home"), root], tmp_path, os.environ, 300, program=PROGRAM)
    assert done.stdout.strip().endswith("good"), done.stdout + done.stderr
