"""Checks that values passed between stages survive serialisation to bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.core.files import pack_arrays, unpack_arrays
from tilewright.flows.tuning import learn, tune, tune_session
from tilewright.models import make_explorer
from tilewright.search import Batch, History, LocalRunner, Session, make_task
from tilewright.search.round_steps import generate_candidates, lower_and_choose
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload
from tilewright.tasks import codecs

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1")
TARGET = make_target("vta-pynq")
TASK = make_task(TARGET, WORKLOAD, make_explorer("ml2tuner-published"), 0)


@pytest.fixture(scope="module")
def session() -> Session:
    return learn(LocalRunner(), TASK, tune_session(TASK, 32, 16))


def test_a_history_comes_back_whole(session: Session) -> None:
    back = codecs.decode_history(codecs.encode_history(session.history))
    assert isinstance(back, History)
    for name in ("configs", "status", "cycles", "seconds", "rounds", "failed"):
        assert np.array_equal(getattr(back, name), getattr(session.history, name))
    hidden = session.history.hidden
    assert np.array_equal(back.hidden.matrix, hidden.matrix, equal_nan=True)
    assert (back.hidden.columns, back.round) == (hidden.columns, 2)


def test_programs_that_stay_candidates_come_back() -> None:
    task = make_task(TARGET, WORKLOAD, make_explorer("ml2tuner"), 0)
    session = learn(LocalRunner(), task, tune_session(task, 4, 4))
    history = session.history
    assert history.compiled is not None
    assert history.compiled_hidden is not None
    back = codecs.decode_history(codecs.encode_history(history))
    assert np.array_equal(back.compiled, history.compiled)
    assert back.compiled_hidden is not None
    assert np.array_equal(back.compiled_hidden.matrix, history.compiled_hidden.matrix)
    batch = lower_and_choose(task, session, generate_candidates(task, session, 4), 4)
    again = codecs.decode_batch(codecs.encode_batch(batch))
    assert batch.unmeasured_compiled is not None
    assert again.unmeasured_compiled is not None
    assert np.array_equal(again.unmeasured_compiled.configs, batch.unmeasured_compiled.configs)
    assert again.unmeasured_compiled.hidden.columns == batch.unmeasured_compiled.hidden.columns


def test_an_empty_history_comes_back_empty() -> None:
    empty = History.empty(TARGET.space(WORKLOAD))
    back = codecs.decode_history(codecs.encode_history(empty))
    assert len(back) == 0
    assert back.configs.shape == empty.configs.shape


def test_learned_models_predict_the_same_after_the_way(session: Session) -> None:
    back = codecs.decode_state(codecs.encode_state(session.models))
    assert back.models.keys() == session.models.models.keys() == {"P", "V", "A"}
    following = [
        generate_candidates(TASK, item, 16) for item in (session, replace(session, models=back))
    ]
    assert np.array_equal(following[0].configs, following[1].configs)
    assert np.array_equal(following[0].scores["P"], following[1].scores["P"])


def test_candidates_batches_and_measurements_come_back(session: Session) -> None:
    named = generate_candidates(TASK, session, 8)
    candidates = codecs.decode_candidates(codecs.encode_candidates(named))
    assert np.array_equal(candidates.configs, named.configs)
    batch = lower_and_choose(TASK, session, named.take(np.arange(16)), 8)
    again = codecs.decode_batch(codecs.encode_batch(batch))
    assert isinstance(again, Batch)
    assert again.rows.workload == WORKLOAD
    assert np.array_equal(again.rows.configs, batch.rows.configs)
    assert np.array_equal(again.rows.hidden.matrix, batch.rows.hidden.matrix, equal_nan=True)
    for name, part in batch.rows.programs.items():
        assert np.array_equal(again.rows.programs[name].values, part.values)
        assert np.array_equal(again.rows.programs[name].offsets, part.offsets)
    assert (again.unmeasured_count, again.scores.keys()) == (
        batch.unmeasured_count,
        batch.scores.keys(),
    )
    assert again.reasons == batch.reasons
    measured = TARGET.measure(again.rows)
    assert measured.cycles.tolist() == TARGET.measure(batch.rows).cycles.tolist()
    back = codecs.decode_measurements(codecs.encode_measurements(measured))
    assert back.status.tolist() == measured.status.tolist()
    assert back.cycles.tolist() == measured.cycles.tolist()
    assert back.counters.keys() == measured.counters.keys()


def test_equal_runs_give_equal_bytes() -> None:
    def last() -> bytes:
        *_, done = tune(TARGET, WORKLOAD, make_explorer("random"), trials=16, batch=16, seed=3)
        return codecs.encode_measurements(done.measured)

    assert last() == last()


@pytest.mark.parametrize("code", [0xD800, 0x110000, 0xFFFFFFFF])
def test_text_of_characters_that_do_not_exist_is_refused(code: int) -> None:
    text = np.array([code], dtype=np.uint32).view("<U1")
    with pytest.raises(ValueError, match="invalid code point"):
        unpack_arrays(pack_arrays({"status": text}))
