"""Tests the learned models of labelled graphs, the fusion policy, and the search that uses both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fusion.examples import Examples, read_examples, units_of_all, write_examples
from benchmarks.fusion.search_methods import search
from benchmarks.fusion.tuned_pairs import make_examples
from tests.fusion.nets import NETS, evaluator
from tilewright.fusion.evaluator import Evaluator
from tilewright.fusion.label_search import Objective
from tilewright.fusion.learned.graph_model import GraphModel, ModelError
from tilewright.fusion.learned.policy import Policy, correct_chances
from tilewright.fusion.learned.pretrained import shipped_models
from tilewright.fusion.learned.search import (
    FusionSurrogate,
    SearchPlan,
    judged_units,
    learned_search,
)
from tilewright.fusion.model_features import KINDS as COLUMNS
from tilewright.fusion.model_features import Figures, GraphTable, Tables, label_unit, list_units
from tilewright.fusion.problem import Labelling
from tilewright.targets.features import Features


@pytest.fixture(scope="module")
def timed() -> Evaluator:
    return evaluator()


@pytest.fixture(scope="module")
def examples(timed: Evaluator) -> Examples:
    return make_examples(timed)


def split(examples: Examples) -> tuple[list[GraphTable], list[GraphTable]]:
    graphs = list(examples.graphs)
    return graphs[::2], graphs[1::2]


def test_a_model_tells_labelled_graphs_apart(examples: Examples, tmp_path: Path) -> None:
    seen, unseen = split(examples)
    model = GraphModel(0)
    model.fit(seen)
    predictions = model.predict(unseen)
    true = np.array([graph.stream.sum() for graph in unseen])
    prior = np.array([graph.prior.sum() for graph in unseen])
    off = np.abs(predictions / true - 1).mean()
    assert off < 0.03
    assert off < np.abs(prior / true - 1).mean()
    model.save(tmp_path / "model")
    again = GraphModel(0)
    again.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict(unseen), predictions, rtol=1e-6)


def test_a_frozen_model_is_corrected(examples: Examples) -> None:
    seen, unseen = split(examples)
    model = GraphModel(0)
    slower = [
        GraphTable(g.columns, g.nodes, g.prior, g.edges, g.links, 1.5 * g.stream) for g in seen
    ]
    model.fit(slower)
    before = model.predict(unseen)
    model.freeze()
    model.fit(seen)
    true = np.array([graph.stream.sum() for graph in unseen])
    assert np.abs(model.predict(unseen) / true - 1).mean() < np.abs(before / true - 1).mean() / 3


def test_damaged_models_and_other_figures_are_refused(examples: Examples, tmp_path: Path) -> None:
    model = GraphModel(0)
    with pytest.raises(ModelError, match="was not trained"):
        model.save(tmp_path / "model")
    model.fit(examples.graphs[:2])
    model.save(tmp_path / "model")
    # XGBoost does not check its files: a truncated one may crash the process.
    (tmp_path / "none").write_bytes(b"")
    with pytest.raises(ModelError, match="train it again"):
        GraphModel(0).load(tmp_path / "none")
    g = examples.graphs[0]
    fewer = GraphTable(g.columns[1:], g.nodes[:, 1:], g.prior, g.edges, g.links, g.stream)
    with pytest.raises(ModelError):
        model.predict([fewer])


def test_examples_are_read_as_they_were_written(examples: Examples, tmp_path: Path) -> None:
    write_examples(tmp_path / "e.npz", examples)
    again = read_examples(tmp_path / "e.npz")
    assert again.units.names == examples.units.names
    np.testing.assert_array_equal(again.better, examples.better)
    for one, other in zip(again.graphs, examples.graphs, strict=True):
        assert one.columns == other.columns
        for name in ("nodes", "prior", "edges", "links", "stream"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    (tmp_path / "bad.npz").write_bytes((tmp_path / "e.npz").read_bytes()[:-30])
    with pytest.raises(ModelError, match="create them again"):
        read_examples(tmp_path / "bad.npz")


def test_a_policy_learns_and_what_was_seen_outweighs_it(
    timed: Evaluator, examples: Examples, tmp_path: Path
) -> None:
    own, figures = timed.problem, Figures(timed.problem, timed)
    x, better = units_of_all([examples])
    policy = Policy()
    policy.fit(x, ~better)  # trained on inverted labels
    chances = policy.chances(own, figures, own.all, {})
    assert (chances >= 0).all()
    assert (chances <= 1).all()
    policy.save(tmp_path / "policy")
    again = Policy()
    again.load(tmp_path / "policy")
    np.testing.assert_array_equal(again.chances(own, figures, own.all, {}), chances)
    unit = list_units(own)[0]
    predictions = again.chances(own, figures, own.all, {unit: True})
    assert predictions[0] > 0.9
    other = [k for k, item in enumerate(list_units(own)) if item.kind != unit.kind]
    np.testing.assert_array_equal(predictions[other], chances[other])


def test_what_was_seen_of_a_unit_tells_of_those_like_it() -> None:
    clip, pool = np.eye(len(COLUMNS))[:2]
    names = (*COLUMNS, "log2 ratio", "log2 cycles apart")
    rows = [
        (*clip, -0.10, 12.0),  # in the training data
        (*clip, -0.11, 12.1),  # similar
        (*clip, -0.60, 18.0),  # the same kind, but not similar
        (*pool, -0.10, 12.0),  # another kind
    ]
    x = Features.from_names(np.array(rows, np.float64), names)
    before, unknown = np.full(4, 0.9), np.nan
    lost = correct_chances(x, before, np.array([0.0, unknown, unknown, unknown]))
    assert lost[1] < 0.5
    np.testing.assert_allclose(lost[2:], 0.9, atol=1e-3)
    won = correct_chances(x, before, np.array([1.0, unknown, unknown, unknown]))
    assert 0.9 < won[1] < 1.0
    np.testing.assert_array_equal(correct_chances(x, before, np.full(4, unknown)), before)
    twice = correct_chances(x, before, np.array([0.0, 0.0, unknown, unknown]))
    assert twice[1] < lost[1]


def test_what_pairs_of_labellings_say_is_known(timed: Evaluator) -> None:
    own = timed.problem
    one, other = list_units(own)[0], list_units(own)[-1]
    for unit in (one, other):
        timed(label_unit(own.all, unit, False))
    saved = timed(label_unit(own.all, one, False)).cycles - timed(own.all).cycles
    assert judged_units(own, timed)[one] == (saved > 0)


def test_a_surrogate_adds_up_what_segments_change(timed: Evaluator) -> None:
    """With a perfect model, the only remaining error is the interaction between segments."""
    own = timed.problem
    tables = Tables(own, Figures(own, timed))
    rng = np.random.default_rng(0)
    drawn = [tuple((rng.random(len(own)) < 0.5).tolist()) for _ in range(8)]
    for labels in drawn:
        for places in own.segments:
            changed = list(own.all)
            for place in places:
                changed[place] = labels[place]
            timed(tuple(changed))
    said = FusionSurrogate(own, tables, _TrueCycles(), own.all)(drawn)
    true = np.array([timed(labels).cycles for labels in drawn])
    assert np.abs(np.array(said) / true - 1).max() < 0.02


class _TrueCycles(GraphModel):
    """Perfect model: it predicts the simulated cycles of a labelled graph."""

    def predict(self, graphs: Sequence[GraphTable]) -> NDArray[np.float64]:
        assert all(len(graph.stream) for graph in graphs)
        return np.array([graph.stream.sum() for graph in graphs])


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("net", NETS)
def test_the_learned_search_finds_the_truth_with_few_evaluations(net: str) -> None:
    timed = evaluator(net=net)
    own = timed.problem
    objective = Objective(
        lambda several: [float(timed(item).cycles) for item in several],
        1 << len(own),
        own.segments,
    )
    search("exhaustive", objective, [], np.random.default_rng(0))
    fresh = evaluator(net=net)
    starts: list[Labelling] = [own.none, own.all, own.greedy]
    model, policy = shipped_models()
    result = learned_search(
        own, fresh, model, policy, starts, np.random.default_rng(1), SearchPlan()
    )
    assert fresh(result).cycles == objective.least
    assert fresh.count <= 25
    again = evaluator(net=net)
    model, policy = shipped_models()
    assert result == learned_search(
        own, again, model, policy, starts, np.random.default_rng(1), SearchPlan()
    )
    assert [item.labels for item in again.evaluations()] == [
        item.labels for item in fresh.evaluations()
    ]
