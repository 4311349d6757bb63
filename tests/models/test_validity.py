"""Tests Model V on recorded tables: it is calibrated, and its veto rejects few valid configs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.matrices import numbered
from tilewright.models.features import tree_features
from tilewright.models.validity import Validity
from tilewright.targets.vta.recorded_tables import read_stack_table
from tilewright.tasks.logged_models import booster_of

TABLES = Path(__file__).parents[1] / "data" / "tvm-vta"
TRIALS, SEEDS = 256, 4


@pytest.fixture(scope="module")
def judged() -> dict[str, list[tuple[np.ndarray, np.ndarray, float, float]]]:
    """Return Model V's predictions on unseen configs, one entry per table and seed.

    An entry holds the predicted probabilities, the outcomes, the valid fraction of the seen
    configs, and the veto threshold.
    """
    result: dict[str, list[tuple[np.ndarray, np.ndarray, float, float]]] = {}
    for name in ("C4", "C6", "C8", "C10"):
        table = read_stack_table(TABLES / f"{name}.csv.gz")
        x = tree_features(table.workload, table.space, table.space.unravel(table.flat))
        valid = (table.status == "valid").astype(np.float64)
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(len(valid))
            seen, unseen = order[:TRIALS], order[TRIALS:]
            model = Validity(seed, True, {})
            model.fit(x.rows(seen), valid[seen])
            result.setdefault(name, []).append(
                (model.predict(x.rows(unseen)), valid[unseen], valid[seen].mean(), model.threshold)
            )
    return result


@pytest.mark.parametrize("name", ["C4", "C6", "C8", "C10"])
def test_the_brier_score_is_at_most_two_thirds_of_the_base_rates(judged, name: str) -> None:  # type: ignore[no-untyped-def]
    ours = np.mean([np.mean((chance - valid) ** 2) for chance, valid, _, _ in judged[name]])
    base = np.mean([np.mean((share - valid) ** 2) for _, valid, share, _ in judged[name]])
    assert ours < 2 / 3 * base


def test_a_chance_means_what_it_says(judged) -> None:  # type: ignore[no-untyped-def]
    """Of the configs with a predicted probability of about p, a fraction of about p is valid."""
    chance, valid = (
        np.concatenate([run[k] for runs in judged.values() for run in runs]) for k in (0, 1)
    )
    place = np.digitize(chance, [0.1, 0.3, 0.5, 0.7, 0.9])
    shares = [(chance[place == k].mean(), valid[place == k].mean()) for k in range(6)]
    said, was = np.array(shares).T
    assert (np.diff(was) > 0).all()
    assert np.abs(said - was).mean() < 0.15


def test_the_veto_spares_99_percent_of_the_valid_and_hits_many_of_the_invalid(judged) -> None:  # type: ignore[no-untyped-def]
    runs = [run for workload in judged.values() for run in workload]
    spared = [np.mean(c[v == 1] >= threshold) for c, v, _, threshold in runs]
    hit = [np.mean(c[v == 0] < threshold) for c, v, _, threshold in runs]
    assert np.mean(spared) >= 0.99
    assert np.mean(hit) > 0.4


def test_the_threshold_goes_with_the_trees() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    one, other = Validity(0, True, {}), Validity(0, True, {})
    for model in (one, other):
        model.fit(numbered(x), (x[:, 0] > 0) * 1.0)
    assert float(booster_of(one).attr("threshold")) == other.threshold > 0


def test_a_veto_is_the_same_whether_its_threshold_was_needed_before_or_not() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    y = (x[:, 0] + 0.5 * rng.normal(size=80) > 0) * 1.0
    one, other = Validity(0, True, {}), Validity(0, True, {})
    for model in (one, other):
        model.fit(numbered(x), y)
    threshold = other.threshold
    for chance in (np.linspace(0.05, 1, 20), np.linspace(0, 1, 200), np.empty(0)):
        assert np.array_equal(one.accept(chance), chance >= threshold)


def test_without_calibration_or_with_too_few_of_a_class_nothing_is_vetoed() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    few = np.zeros(60)
    few[:3] = 1
    for parameters, y in (({"calibrate": 0.0}, (x[:, 0] > 0) * 1.0), ({}, few)):
        model = Validity(0, True, parameters)
        model.fit(numbered(x), y)
        assert model.threshold == 0.0
    calibrated = Validity(0, True, {})
    calibrated.fit(numbered(x), (x[:, 0] > 0) * 1.0)
    assert 0.0 < calibrated.threshold <= 0.5
