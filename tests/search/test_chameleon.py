"""CHAMELEON: the agent learns to walk uphill, the sampler measures one config a cluster."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from models import make_explorer
from search.explorers.chameleon import ChameleonOptions, adaptive_sample
from search.registry import MissingExtra, Registration, tuners
from targets.base import Knob, Space

SPACE = Space(
    "plane", (Knob("a", tuple(range(32))), Knob("b", (1, 2)), Knob("c", tuple(range(32))))
)
NONE = np.empty(0, np.int64)
OPTIONS = ChameleonOptions.model_validate({"steps": 24, "learned": 1024})


def _uphill(places: np.ndarray) -> np.ndarray:
    return (places[:, 0] + places[:, 2]) / 62.0


def test_the_agent_learns_to_walk_uphill_and_goes_on_from_its_arrays() -> None:
    from search.ppo import Agent

    rng, arrays, heights = np.random.default_rng(0), {}, []
    for seed in range(9):
        agent = Agent(OPTIONS, SPACE.cardinalities, seed, arrays)
        start = rng.integers(0, 16, (64, 3)) % SPACE.cardinalities
        heights.append(_uphill(agent.explore(start, _uphill)[64:]).mean())
        arrays = agent.arrays()
    assert np.mean(heights[-3:]) > np.mean(heights[:3]) + 0.05


def test_an_agent_made_of_arrays_walks_and_learns_as_the_one_they_came_from() -> None:
    from search.ppo import Agent

    first = Agent(OPTIONS, SPACE.cardinalities, 5, {})
    start = np.random.default_rng(1).integers(0, 32, (16, 3)) % SPACE.cardinalities
    first.explore(start, _uphill)
    again = Agent(OPTIONS, SPACE.cardinalities, first.seed, first.arrays())
    np.testing.assert_array_equal(first.explore(start, _uphill), again.explore(start, _uphill))
    for name, vector in first.arrays().items():
        np.testing.assert_array_equal(vector, again.arrays()[name])


def test_an_agent_never_steps_where_it_must_not_and_leaves_others_random_numbers_alone() -> None:
    import torch

    from search.ppo import Agent

    def barred(places: np.ndarray) -> np.ndarray:
        return np.where(places[:, 0] > 20, -np.inf, _uphill(places))

    before = torch.get_rng_state()
    agent = Agent(OPTIONS, SPACE.cardinalities, 0, {})
    met = agent.explore(np.full((8, 3), (20, 0, 3)), barred)
    assert met[:, 0].max() == 20
    assert ((met >= 0) & (met < SPACE.cardinalities)).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_advantages_are_the_discounted_surprises_to_come() -> None:
    from search.ppo import _advantages, _Walk

    earned, expected = np.array([[1.0], [2.0], [4.0]]), np.array([[0.5], [0.25], [1.0]])
    walking = np.array([[True], [True], [False]])  # the third step is not taken any more
    empty = np.zeros((3, 1, 1))
    walk = _Walk(empty, empty, np.zeros((3, 1)), earned, expected, walking)
    last = 2.0 - 0.25
    first = 1.0 + 0.9 * 0.25 - 0.5 + 0.9 * 0.8 * last
    np.testing.assert_allclose(_advantages(walk, 0.9, 0.8)[:, 0], [first, last, 0.0])


def test_well_separated_places_give_a_config_each() -> None:
    centres = np.array([[4 + 8 * (k % 4), 0, 4 + 16 * (k // 4)] for k in range(8)])
    around = np.array([[dx, 0, dz] for dx in (-1, 0, 1) for dz in (-1, 0, 1)])
    met = SPACE.ravel((centres[:, None] + around[None]).reshape(-1, 3).clip(0, 31).astype(np.int32))
    rng = np.random.default_rng(0)
    plan = adaptive_sample(SPACE, met, NONE, "mode", 1.01, rng)
    found = SPACE.unravel(plan)
    # More clusters always cut the error a little: with a factor of 1.01 there are 64, else 16.
    assert len(plan) > len(adaptive_sample(SPACE, met, NONE, "mode", 1e9, rng)) > 8
    assert all(np.abs(found - centre).max(axis=1).min() <= 1 for centre in centres)


def test_the_other_knobs_are_what_was_met_most_often() -> None:
    places = [[4 * k, int(k != 3), 31 - 4 * k] for k in range(8)]
    seldom = [[a, 1 - b, c] for a, b, c in places]
    met = SPACE.ravel(np.array(3 * places + seldom, dtype=np.int32))
    plan = adaptive_sample(SPACE, met, NONE, "mode", 2.5, np.random.default_rng(0))
    assert sorted(SPACE.unravel(plan).tolist()) == places


@pytest.mark.parametrize("others", ["mode", "random"])
def test_nothing_tried_or_unlisted_is_sampled(others: str) -> None:
    rng = np.random.default_rng(0)
    met = rng.integers(0, SPACE.size, 400)
    tried = np.unique(met[:200])
    listed = replace(SPACE, listed=tuple(np.unique(met[100:]).tolist()))
    plan = adaptive_sample(listed, met, tried, others, 2.5, rng)  # type: ignore[arg-type]
    assert len(plan) == len(set(plan.tolist())) > 0
    assert not np.isin(plan, tried).any()
    assert np.isin(plan, listed.listed).all()
    assert len(adaptive_sample(SPACE, NONE, tried, "mode", 2.5, rng)) == 0


def test_without_torch_the_tuner_is_listed_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cli.app import app

    command = "pip install 'tilewright[torch]'"
    monkeypatch.setattr(Registration, "missing", property(lambda self: command * bool(self.extra)))
    listed = " ".join(CliRunner().invoke(app, ["tuners"]).output.split())
    (said,) = re.findall(r"chameleon CHAMELEON: .*? \(needs (.*?)\)", listed)
    assert said == command
    assert listed.count(command) == 1
    with pytest.raises(MissingExtra, match=r"'chameleon' needs torch.*pip install 'tilewright"):
        make_explorer("chameleon")
