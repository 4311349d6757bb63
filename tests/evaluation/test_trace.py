"""A watched tuner is the same tuner, and its features have their names."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.compare.plan import TunerConfig
from evaluation.compare.trace import fit_records, plain, traced
from models import make_explorer
from search import ExplorerState, problem_of
from search.loop import Session
from targets import make_target
from targets.vta.target import VtaTarget
from targets.workload import parse_workload

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1")


@pytest.fixture(scope="module")
def target() -> VtaTarget:
    return make_target("vta-pynq", "template")


@pytest.mark.parametrize("tuner", ["ml2tuner", "default", "default-blind"])
def test_watching_changes_nothing_and_names_every_column(target: VtaTarget, tuner: str) -> None:
    problem = problem_of(target, WORKLOAD, 0)
    watched, _ = traced(TunerConfig(tuner, tuner), target, problem)
    seen, alone = (
        _run(Session(target, problem, explorer, ExplorerState()))
        for explorer in (watched, make_explorer(tuner))
    )
    np.testing.assert_array_equal(seen.history.configs, alone.history.configs)
    found = fit_records(seen.state)
    assert {"P", "V", "A"} <= set(found)
    for role, fit_record in ((role, found[role]) for role in "PVA"):
        assert len(fit_record.names) == fit_record.x.shape[1]
        assert fit_record.names == tuple(dict.fromkeys(fit_record.names))
        assert not any(name.startswith("feature ") for name in fit_record.names)
        assert any("tile_h" in name for name in fit_record.names)
        counts = target.lower(WORKLOAD, problem.space.unravel(np.zeros(1, np.int64))).hidden_names
        hidden = {f"hidden {name}" for name in counts}  # or sums of them, and what a draft makes
        if tuner != "ml2tuner":
            hidden = {"hidden bytes", "hidden exposed", "hidden work per iteration", "draft"}
        assert (hidden <= set(fit_record.names)) == (role == "A")
        asked = fit_record.x[:3]
        np.testing.assert_array_equal(
            plain(seen.state).models[role].predict(asked), alone.state.models[role].predict(asked)
        )
    estimated = any(name.startswith("estimated") for name in found["P"].names)
    assert estimated == (tuner == "default")


def test_a_column_is_named_after_what_it_holds(target: VtaTarget) -> None:
    problem = problem_of(target, WORKLOAD, 0)
    watched, _ = traced(TunerConfig("ml2tuner", "ml2tuner"), target, problem)
    session = _run(Session(target, problem, watched, ExplorerState()))
    fit_record = fit_records(session.state)["A"]
    valid = session.history.valid
    values = problem.space.values(session.history.configs[valid])
    knob = [knob.name for knob in problem.space.knobs].index("tile_w")
    np.testing.assert_allclose(
        fit_record.x[:, fit_record.names.index("log2_tile_w")], np.log2(values[:, knob])
    )
    place = session.history.hidden_names.index("wgt_bytes")
    np.testing.assert_array_equal(
        fit_record.x[:, fit_record.names.index("hidden wgt_bytes")],
        session.history.hidden[valid][:, place],
    )


def _run(session: Session) -> Session:
    while len(session.history) < 48:
        session.advance(16)
    return session
