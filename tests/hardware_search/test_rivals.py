"""Tests AutoTVM, CHAMELEON and DCOC as co-design methods: search points, scores and agents."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from tests.hardware_search.small import BOUNDS, searched, small_problem, told
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.hardware_search.methods import make_method
from tilewright.hardware_search.methods.autotvm_codesign import AutoTvmCodesign, redraw_knobs
from tilewright.hardware_search.methods.dcoc_codesign import Dcoc, knobs_by_agent
from tilewright.hardware_search.methods.dcoc_confidence_sampling import (
    most_frequent_values,
    sample_by_confidence,
)
from tilewright.hardware_search.methods.joint_space import JointSpace
from tilewright.hardware_search.methods.published_method import measure_point
from tilewright.hardware_search.methods.reward import LayerMeasurements, RewardModel, overflow
from tilewright.hardware_search.pareto import judge_designs
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.search import TrialStore
from tilewright.search.ppo import Agent
from tilewright.search.registry import OptionError

RIVALS = ("autotvm", "chameleon", "dcoc")
BRIEF = {
    "autotvm": {"steps": 20, "chains": 16},
    "chameleon": {"steps": 10, "starts": 16, "learned": 64},
    "dcoc": {"steps": 10, "starts": 16, "learned": 64, "epochs": 1},
}


@cache
def _points() -> JointSpace:
    return JointSpace(small_problem())


@cache
def _tight() -> JointSpace:
    """Return a search space in which half of the machines exceed the area budget."""
    problem = small_problem()
    most = float(np.median(problem.hardware.areas))
    hardware = HardwareSpace(problem.hardware.base, most, BOUNDS)
    return JointSpace(CodesignProblem(problem.networks, hardware))


@cache
def _seen() -> tuple[JointSpace, BudgetedEvaluator, LayerMeasurements]:
    """Measure 60 random points."""
    points, evaluator, seen = _points(), BudgetedEvaluator(10_000), LayerMeasurements()
    rng = np.random.default_rng(0)
    for point in points.random(60, rng):
        measure_point(points, evaluator, seen, point, False, rng)
    return points, evaluator, seen


def _brief(
    name: str,
    trials: int,
    seed: int = 0,
    evaluator: BudgetedEvaluator | None = None,
    **more: object,
) -> BudgetedEvaluator:
    return searched(name, trials, seed, evaluator, first=16, plan=16, **BRIEF[name], **more)


@cache
def _whole(name: str, trials: int) -> object:
    """Return the measurements of a search with default options and seed 0."""
    return told(_brief(name, trials))


# -- whole searches ------------------------------------------------------------------------------


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("name", RIVALS)
def test_the_same_seed_measures_the_same_and_another_something_else(name):
    first = _brief(name, 60)
    assert told(first) == _whole(name, 60)
    assert told(first) != told(_brief(name, 60, seed=1))
    assert first.spent == first.compiled == 60
    rows = {point.design.row for point in first.log}
    assert rows <= set(range(len(small_problem().hardware.points)))


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize("name", RIVALS)
def test_a_search_that_was_cut_off_comes_to_the_same_log(name, tmp_path: Path):
    with TrialStore(tmp_path / "trials.sqlite") as store:
        _brief(name, 37, evaluator=BudgetedEvaluator(37, store, "a run"))
    with TrialStore(tmp_path / "trials.sqlite") as store:
        again = _brief(name, 60, evaluator=BudgetedEvaluator(60, store, "a run"))
    assert told(again) == _whole(name, 60)


@pytest.mark.nightly(seconds=8)
@pytest.mark.parametrize("name", ["autotvm", "dcoc"])
def test_what_was_learned_measures_faster_layers_than_chance(name):
    evaluator = searched(name, 256, first=64)
    best: dict[object, float] = {}
    for point in evaluator.log:
        names = point.workload
        best[names] = min(best.get(names, np.inf), point.found.seconds)
    slower = np.log([item.found.seconds / best[item.workload] for item in evaluator.log])
    assert slower[64:].mean() < 0.85 * slower[:64].mean()


@pytest.mark.slow(seconds=4)
def test_estimates_are_asked_only_on_demand_and_change_what_is_measured():
    plain, informed = _whole("autotvm", 60), _brief("autotvm", 60, estimates=True)
    assert told(informed)[:12] == plain[:12]  # the first points are random
    assert told(informed) != plain
    assert told(informed) == told(_brief("autotvm", 60, estimates=True))


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize(
    "options", [{"confidence": False}, {"agents": 1}, {"critic": False}, {"elite": 0.0}]
)
def test_ablations_of_dcoc_search_otherwise(options):
    assert told(_brief("dcoc", 48, **options)) != _whole("dcoc", 48)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("autotvm", {"hardware": 2}, "hardware"),
        ("chameleon", {"others": "mean"}, "others"),
        ("dcoc", {"agents": 2}, "agents"),
        ("dcoc", {"threshold": -1}, "threshold"),
        ("dcoc", {"steps": 0}, "steps"),
        ("dcoc", {"nothing": 1}, "nothing"),
    ],
)
def test_an_option_that_does_not_fit_is_named(name, options, named):
    with pytest.raises(OptionError, match=f"option {named} of {name}"):
        make_method(name, options)


def test_numbers_of_a_command_line_are_numbers():
    assert make_method("dcoc", {"agents": "1", "elite": "0.25"}).table.agents == 1


# -- points --------------------------------------------------------------------------------------


def test_a_point_names_a_schedule_of_every_layer_on_every_machine():
    points = _points()
    for point in points.random(20, np.random.default_rng(3)):
        row = int(points.rows(point[None])[0])
        np.testing.assert_array_equal(points.hardware.points[row], point[: len(points.machine)])
        design = points.problem.design(row)
        schedules = list(points.schedules(design, point))
        assert [layer for _, layer, _ in schedules] == list(design.layers)
        for slot, layer, config in schedules:
            space = design.target.space(layer.workload)
            values = dict(zip(points.slots.knobs, points.values(point[None])[0, slot], strict=True))
            assert {k: values[k] for k in space.describe(config[0])} == space.describe(config[0])


def test_every_schedule_is_some_place():
    points = _points()
    slots, knobs = np.nonzero(points.column >= 0)
    for slot, knob in zip(slots, knobs, strict=True):
        column = points.column[slot, knob]
        for machine in points.hardware.points[:: len(points.hardware.points) // 6]:
            places = np.zeros((points.cardinalities[column], len(points.cardinalities)), np.int64)
            places[:, : len(machine)] = machine
            places[:, column] = np.arange(len(places))
            result = points.indices(places)[:, slot, knob]
            count = points.slots.counts[points.cores(places[:1])[0], slot, knob]
            assert set(result.tolist()) == set(range(max(int(count), 1)))


def test_what_is_no_machine_has_no_row():
    points = _tight()
    every = points.hardware.space.unravel(np.arange(points.hardware.space.size))
    places = np.zeros((len(every), len(points.cardinalities)), np.int64)
    places[:, : every.shape[1]] = every
    rows = points.rows(places)
    assert sorted(rows[rows >= 0].tolist()) == list(range(len(points.hardware.points)))
    assert (rows < 0).any()


def test_a_move_redraws_one_knob_and_the_machine_s_as_often_as_asked():
    points, rng = _points(), np.random.default_rng(0)
    places = points.random(2000, rng)
    changed = redraw_knobs(points, places, 0.25, rng) != places
    np.testing.assert_array_equal(changed.sum(axis=1), 1)
    assert 0.2 < changed[:, : len(points.machine)].any(axis=1).mean() < 0.3


# -- scores --------------------------------------------------------------------------------------


@pytest.mark.slow(seconds=0.5)
def test_what_overflows_by_its_tiles_is_never_built():
    large = CodesignProblem(read_networks(["alexnet"]), small_problem().hardware)
    points, evaluator, seen = JointSpace(large), BudgetedEvaluator(10_000), LayerMeasurements()
    rng = np.random.default_rng(0)
    for point in points.random(12, rng):
        measure_point(points, evaluator, seen, point, False, rng)
    places, slots, seconds = seen.table()
    over = overflow(points, places)[np.arange(len(slots)), slots] > 1
    assert 0.3 < over.mean() < 0.9
    assert np.isnan(seconds[over]).all()
    assert np.isfinite(seconds[~over]).mean() > 0.5


def test_scores_order_what_was_measured():
    points, evaluator, seen = _seen()
    rewards = RewardModel(points, AutoTvmCodesign.Options(), seen, 64, 0)
    places, _, _ = seen.table()
    whole = {design.design.row: design.latency for design in judge_designs(evaluator)}
    best = min(whole, key=lambda row: whole[row])
    scores = rewards(np.unique(places, axis=0))
    rows = points.rows(np.unique(places, axis=0))
    assert scores[rows == best].max() > np.quantile(scores, 0.9)


def test_a_machine_beyond_the_budget_is_fined():
    points, seen = _tight(), LayerMeasurements()
    rng = np.random.default_rng(0)
    for point in points.random(10, rng):
        measure_point(points, BudgetedEvaluator(1000), seen, point, False, rng)
    light, heavy = (
        RewardModel(points, AutoTvmCodesign.Options(penalty=penalty), seen, 64, 0)
        for penalty in (1.0, 5.0)
    )
    places = np.array(seen.places[:1] * 2)
    places[1, : len(points.machine)] = points.machine - 1
    assert (points.rows(places) < 0).tolist() == [False, True]
    np.testing.assert_allclose(light(places) - heavy(places), [0.0, 4.0], atol=1e-12)


def test_a_weight_of_the_area_prefers_small_machines():
    points, _, seen = _seen()
    plain = RewardModel(points, AutoTvmCodesign.Options(), seen, 64, 0)
    small = RewardModel(points, AutoTvmCodesign.Options(area_weight=1.0), seen, 64, 0)
    places = points.random(200, np.random.default_rng(1))
    lost = plain(places) - small(places)
    order = np.argsort(points.hardware.areas[points.rows(places)])
    assert lost[order[-20:]].mean() > lost[order[:20]].mean()


# -- agents --------------------------------------------------------------------------------------


def test_confidence_sampling_draws_by_score_and_replaces_the_lower_half_by_modes():
    places = np.arange(40).reshape(20, 2)
    places[10:, 1] = 7  # the better half agrees on the second knob
    scores = np.arange(20.0)
    drawn = sample_by_confidence(places, scores, 12, 1.0, 0.5, np.random.default_rng(0))
    assert drawn.shape == (12, 2)
    assert (drawn[:, 1] == 7).all()
    every = sample_by_confidence(places, scores, 20, 1.0, 0.0, np.random.default_rng(0))
    assert sorted(every[:, 0].tolist()) == sorted(places[:, 0].tolist())
    keen = sample_by_confidence(places, scores, 1, 100.0, 0.5, np.random.default_rng(0))
    np.testing.assert_array_equal(keen, places[-1:])
    even = sample_by_confidence(places, np.zeros(20), 5, 1.0, 0.5, np.random.default_rng(0))
    assert set(map(tuple, even.tolist())) <= set(map(tuple, places.tolist()))


def test_modes_are_the_most_frequent_values():
    assert most_frequent_values(np.array([[1, 5], [1, 2], [0, 2]])).tolist() == [1, 2]
    assert most_frequent_values(np.array([[1, 3], [0, 2]])).tolist() == [0, 2]


def test_every_knob_belongs_to_one_agent():
    points = _points()
    mapping, scheduling = (np.array(knob) for knob in knobs_by_agent(points))
    own = np.concatenate([mapping.ravel(), scheduling.ravel()])
    own = np.sort(np.concatenate([points.hardware_columns, own[own >= 0]]))
    np.testing.assert_array_equal(own, np.arange(len(points.cardinalities)))


@pytest.mark.nightly(seconds=12)
@pytest.mark.parametrize(
    "options", [{}, {"agents": 1}, {"critic": False}], ids=["three", "one", "no critic"]
)
def test_agents_learn_to_climb_what_random_moves_do_not(options):
    points = _points()
    rng = np.random.default_rng(0)

    def height(places: np.ndarray) -> np.ndarray:
        return (places / points.cardinalities).mean(axis=1)

    def ends(episodes: int, learning_rate: float) -> list[float]:
        table = {"steps": 20, "starts": 64, "learning_rate": learning_rate, **options}
        method = make_method("dcoc", table)
        assert isinstance(method, Dcoc)
        method.begin(points, 0)
        return [_end(method.agent, points.random(64, rng), height) for _ in range(episodes)]

    # CPUs add floats in different orders. At three times this learning rate, one agent learns on
    # some CPUs and forgets again on others.
    untaught, taught = ends(10, 1e-12), ends(100, 1e-3)[70:]
    chance = height(points.random(1000, rng)).mean()
    assert np.mean(taught) > max(chance, np.mean(untaught)) + 0.04
    assert ttest_ind(taught, untaught, equal_var=False, alternative="greater").pvalue < 0.001


def _end(agent: Agent, start: np.ndarray, height) -> float:
    return float(height(agent.explore(start, height)[-len(start) :]).mean())


@pytest.mark.nightly(seconds=5)
def test_a_critic_learns_what_is_to_come_and_none_expects_nothing():
    points = _points()
    for critic in (True, False):
        method = make_method("dcoc", {"steps": 8, "starts": 32, "critic": critic})
        assert isinstance(method, Dcoc)
        method.begin(points, 0)
        places = points.random(150, np.random.default_rng(0))
        before = method.agent.predict_returns(places)
        assert before.shape == (150,)
        for _ in range(4):
            method.agent.explore(places[:32], lambda item: np.ones(len(item)))
        after = method.agent.predict_returns(places)
        assert (after.mean() > before.mean() + 1.0) == critic
        assert critic or not after.any()
