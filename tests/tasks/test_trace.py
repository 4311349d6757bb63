"""A watched tuner is the same tuner, and its features have their names."""

from __future__ import annotations

import numpy as np
import pytest

from models import make_explorer
from search import Memory, problem_of
from search.loop import Session
from targets import make_target
from targets.vta.target import VtaTarget
from targets.workload import parse_workload
from tasks.compare.contest import Entrant
from tasks.compare.trace import lessons, plain, traced

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1")


@pytest.fixture(scope="module")
def target() -> VtaTarget:
    return make_target("vta-pynq", "template")


@pytest.mark.parametrize("tuner", ["ml2tuner", "default", "default-blind"])
def test_watching_changes_nothing_and_names_every_column(target: VtaTarget, tuner: str) -> None:
    problem = problem_of(target, WORKLOAD, 0)
    watched, _ = traced(Entrant(tuner, tuner), target, problem)
    seen, alone = (
        _run(Session(target, problem, explorer, Memory()))
        for explorer in (watched, make_explorer(tuner))
    )
    np.testing.assert_array_equal(seen.history.configs, alone.history.configs)
    found = lessons(seen.memory)
    assert {"P", "V", "A"} <= set(found)
    for role, lesson in ((role, found[role]) for role in "PVA"):
        assert len(lesson.names) == lesson.x.shape[1]
        assert lesson.names == tuple(dict.fromkeys(lesson.names))
        assert not any(name.startswith("feature ") for name in lesson.names)
        assert any("tile_h" in name for name in lesson.names)
        counts = target.lower(WORKLOAD, problem.space.unravel(np.zeros(1, np.int64))).hidden_names
        hidden = {f"hidden {name}" for name in counts}  # or sums of them, and what a draft makes
        if tuner != "ml2tuner":
            hidden = {"hidden bytes", "hidden exposed", "hidden work per iteration", "draft"}
        assert (hidden <= set(lesson.names)) == (role == "A")
        asked = lesson.x[:3]
        np.testing.assert_array_equal(
            plain(seen.memory).models[role].predict(asked), alone.memory.models[role].predict(asked)
        )
    estimated = any(name.startswith("estimated") for name in found["P"].names)
    assert estimated == (tuner == "default")


def test_a_column_is_named_after_what_it_holds(target: VtaTarget) -> None:
    problem = problem_of(target, WORKLOAD, 0)
    watched, _ = traced(Entrant("ml2tuner", "ml2tuner"), target, problem)
    session = _run(Session(target, problem, watched, Memory()))
    lesson = lessons(session.memory)["A"]
    valid = session.history.valid
    values = problem.space.values(session.history.configs[valid])
    knob = [knob.name for knob in problem.space.knobs].index("tile_w")
    np.testing.assert_allclose(
        lesson.x[:, lesson.names.index("log2_tile_w")], np.log2(values[:, knob])
    )
    place = session.history.hidden_names.index("wgt_bytes")
    np.testing.assert_array_equal(
        lesson.x[:, lesson.names.index("hidden wgt_bytes")],
        session.history.hidden[valid][:, place],
    )


def _run(session: Session) -> Session:
    while len(session.history) < 48:
        session.advance(16)
    return session
