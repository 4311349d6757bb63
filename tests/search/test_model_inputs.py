"""Checks that the input columns of tuners' models are named and hold the values of those names."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.flows.tuning import learn, tune_session
from tilewright.models import make_explorer
from tilewright.search import GivenTask, LocalRunner, problem_of
from tilewright.search.history import trials_of
from tilewright.targets import Target, make_target
from tilewright.targets.workload import parse_workload

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1")
SUMS = {"hidden bytes", "hidden exposed", "hidden work per iteration", "draft"}


@pytest.fixture(scope="module")
def target() -> Target:
    return make_target("vta-pynq", "template")


@pytest.mark.parametrize("tuner", ["ml2tuner-published", "ml2tuner", "default", "default-blind"])
def test_every_column_has_a_name_of_its_own(target: Target, tuner: str) -> None:
    problem = problem_of(target, WORKLOAD, 0)
    explorer = make_explorer(tuner)
    task = GivenTask(target, explorer, problem)
    session = learn(LocalRunner(), task, tune_session(task, 48, 16))
    trials = trials_of(problem, session.history)
    asked = explorer.model_inputs(problem, session.models, session.history, trials)
    assert {"P", "V", "A"} <= set(asked)
    counts = {f"hidden {name}" for name in session.history.hidden.names}
    for role in "PVA":
        names = asked[role].features.names
        assert names == session.models.models[role].columns
        assert len(set(names)) == len(names)
        assert any("tile_h" in name for name in names)
        revealed = counts if tuner == "ml2tuner-published" else SUMS
        assert (revealed <= set(names)) == (role == "A")
    estimated = any(name.startswith("estimated") for name in asked["P"].features.names)
    assert estimated == (tuner == "default")


def test_a_column_holds_what_it_is_named_after(target: Target) -> None:
    problem = problem_of(target, WORKLOAD, 0)
    explorer = make_explorer("ml2tuner-published")
    task = GivenTask(target, explorer, problem)
    session = learn(LocalRunner(), task, tune_session(task, 48, 16))
    history = session.history
    trials = trials_of(problem, history)
    features = explorer.model_inputs(problem, session.models, history, trials)["A"].features
    values = problem.space.values(history.configs[history.valid])
    knob = [knob.name for knob in problem.space.knobs].index("tile_w")
    np.testing.assert_allclose(
        features.matrix[:, features.names.index("log2_tile_w")], np.log2(values[:, knob])
    )
    np.testing.assert_array_equal(
        features.matrix[:, features.names.index("hidden wgt_bytes")],
        history.hidden.matrix[history.valid][:, history.hidden.names.index("wgt_bytes")],
    )
