"""Tests CHAMELEON: its agent learns to climb, and its sampler measures one config per cluster."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from tilewright.models import make_explorer
from tilewright.search.ppo import Agent, _advantages, _Walk
from tilewright.search.registry import MissingExtra
from tilewright.search.tuners.chameleon import ChameleonOptions, adaptive_sample
from tilewright.targets.base import Knob, Space

if TYPE_CHECKING:
    from tilewright.search.actor_critic import PolicySteps

ROOT = Path(__file__).parents[2]
SPACE = Space(
    "plane", (Knob("a", tuple(range(32))), Knob("b", (1, 2)), Knob("c", tuple(range(32))))
)
NONE = np.empty(0, np.int64)
OPTIONS = ChameleonOptions.model_validate({"steps": 24, "learned": 512})


def _uphill(places: np.ndarray) -> np.ndarray:
    return (places[:, 0] + places[:, 2]) / 62.0


def _start(high: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, high, (64, 3)) % SPACE.cardinalities


def _explored(seed: int) -> tuple[list[list[int]], dict[str, list[float]]]:
    """Let an agent explore for two episodes. Return the visited points and the learned arrays."""
    agent = Agent(OPTIONS, SPACE.cardinalities, seed, {})
    met = [agent.explore(_start(32, k), _uphill).ravel().tolist() for k in range(2)]
    return met, {name: vector.tolist() for name, vector in agent.arrays().items()}


@pytest.mark.nightly(seconds=6)
def test_the_agent_learns_to_walk_uphill_and_goes_on_from_its_arrays() -> None:
    climbed, arrays = [], {}
    for episode in range(16):
        agent = Agent(OPTIONS, SPACE.cardinalities, episode, arrays)
        start = _start(16, episode)
        met = agent.explore(start, _uphill)[len(start) :]
        climbed.append(_uphill(met).mean() - _uphill(start).mean())
        arrays = agent.arrays()
    assert np.mean(climbed[-4:]) > np.mean(climbed[:4]) + 0.1


@pytest.mark.slow(seconds=2)
def test_an_agent_made_of_arrays_walks_and_learns_as_the_one_they_came_from() -> None:
    first = Agent(OPTIONS, SPACE.cardinalities, 5, {})
    first.explore(_start(32), _uphill)
    again = Agent(OPTIONS, SPACE.cardinalities, first.seed, first.arrays())
    np.testing.assert_array_equal(
        first.explore(_start(32), _uphill), again.explore(_start(32), _uphill)
    )
    for name, vector in first.arrays().items():
        np.testing.assert_array_equal(vector, again.arrays()[name])


@pytest.mark.slow(seconds=4)
def test_another_process_on_one_core_walks_and_learns_the_same() -> None:
    code = (
        "import json, os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from tests.search.test_chameleon import _explored\n"
        "print(json.dumps(_explored(7)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert json.loads(done.stdout) == list(_explored(7))
    assert _explored(8)[0] != _explored(7)[0]


def test_arrays_of_other_networks_are_refused() -> None:
    from tilewright.search.actor_critic import LearnedError

    arrays = Agent(OPTIONS, np.array([4, 4]), 0, {}).arrays()
    with pytest.raises(LearnedError, match=r"has \d+ weights, but networks for 3 knobs have"):
        Agent(OPTIONS, SPACE.cardinalities, 0, arrays)


def test_an_agent_never_steps_where_it_must_not() -> None:
    def barred(places: np.ndarray) -> np.ndarray:
        return np.where(places[:, 0] > 20, -np.inf, _uphill(places))

    agent = Agent(OPTIONS, SPACE.cardinalities, 0, {})
    met = agent.explore(np.full((64, 3), (20, 0, 3)), barred)
    assert met[:, 0].max() == 20
    assert ((met >= 0) & (met < SPACE.cardinalities)).all()


@pytest.mark.slow(seconds=1.5)
def test_an_update_goes_down_the_clipped_loss_as_worked_out_here() -> None:
    from tilewright.search.actor_critic import ActorCritic, PolicySteps

    rng, rate = np.random.default_rng(3), 1e-3
    networks = ActorCritic(3, temperature=0.5, clip=0.2, entropy=0.3, value=0.7, learning_rate=rate)
    begun = networks.begin(1, {})
    weights = np.array(begun.weights, np.float64)
    steps = PolicySteps(
        rng.random((6, 3), np.float32), rng.integers(0, 3, (6, 3), np.int32),
        rng.normal(-3.3, 0.5, 6).astype(np.float32),  # ratios on both sides of the clip
        rng.normal(size=6).astype(np.float32), rng.random(6, np.float32),
    )  # fmt: skip
    parts = np.array([[4, 0, 2, 5, -1, -1], [1, 3, -1, -1, -1, -1]], np.int32)
    counted = PolicySteps(*(step[[4, 0, 2, 5]] for step in steps))
    learned = networks.arrays(networks.improve(begun, steps, parts, 1))
    slope = learned["first_moments"] / 0.1  # Adam's first moment is a tenth of the gradient
    assert learned["updates"] == [1]
    for at in rng.choice(len(weights), 40, replace=False):
        nudge = np.zeros(len(weights))
        nudge[at] = 1e-5
        rise = _loss(weights + nudge, counted) - _loss(weights - nudge, counted)
        np.testing.assert_allclose(slope[at], rise / 2e-5, rtol=1e-3, atol=1e-5)
    moved = np.abs(slope) > 1e-5
    np.testing.assert_allclose(
        (learned["weights"] - weights)[moved], -rate * np.sign(slope[moved]), rtol=2e-2
    )
    assert networks.arrays(networks.improve(begun, steps, parts, 2))["updates"] == [2]


def _loss(weights: np.ndarray, steps: PolicySteps) -> float:
    """Compute the loss of the test above in float64."""

    def layers(sizes: list[int]) -> np.ndarray:
        nonlocal weights
        x = steps.seen.astype(np.float64)
        for k, (inputs, outputs) in enumerate(pairwise(sizes)):
            matrix, weights = np.split(weights, [inputs * outputs])
            bias, weights = np.split(weights, [outputs])
            x = (np.tanh(x) if k else x) @ matrix.reshape(outputs, inputs).T + bias
        return x

    chances = np.exp(layers([3, 20, 20, 9]).reshape(-1, 3, 3) / 0.5)
    chances /= chances.sum(axis=2, keepdims=True)
    expected = layers([3, 20, 20, 20, 1])[:, 0]
    done = np.take_along_axis(chances, steps.done[..., None].astype(int), axis=2)[..., 0]
    ratio = np.exp(np.log(done).sum(axis=1) - steps.log_chance)
    surrogate = np.minimum(ratio * steps.gain, ratio.clip(0.8, 1.2) * steps.gain)
    assert (np.abs(ratio - 1) > 0.2).any()
    assert (np.abs(ratio - 1) < 0.2).any()
    entropy = -(chances * np.log(chances)).sum(axis=2).mean(axis=1)
    return float((0.7 * (expected - steps.goal) ** 2 - surrogate - 0.3 * entropy).mean())


def test_jax_is_loaded_when_an_agent_is_made_and_not_before() -> None:
    code = (
        "import sys; from tilewright.models import make_explorer\n"
        "from tilewright.search import registered_tuners\n"
        "registered_tuners(); make_explorer('chameleon')\n"
        "print(*sorted({'jax', 'jaxlib', 'optax', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert done.stdout.strip() == ""


def test_advantages_are_the_discounted_surprises_to_come() -> None:
    earned, expected = np.array([[1.0], [2.0], [4.0]]), np.array([[0.5], [0.25], [1.0]])
    walking = np.array([[True], [True], [False]])  # the third step is not taken
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
    result = SPACE.unravel(plan)
    # More clusters always reduce the error a little. A factor of 1.01 gives 64, otherwise 16.
    assert len(plan) > len(adaptive_sample(SPACE, met, NONE, "mode", 1e9, rng)) > 8
    assert all(np.abs(result - centre).max(axis=1).min() <= 1 for centre in centres)


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


def test_without_jax_the_tuner_is_listed_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tilewright.cli.app import app

    find, command = importlib.util.find_spec, "pip install 'tilewright[neural]'"
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "jax" else find(name, *more),
    )
    listed = " ".join(CliRunner().invoke(app, ["tuners"]).output.split())
    (said,) = re.findall(r"chameleon CHAMELEON: .*? \(needs (.*?)\)", listed)
    assert said == command
    assert listed.count(command) == 1
    with pytest.raises(MissingExtra) as caught:
        make_explorer("chameleon")
    assert str(caught.value) == (
        f"the tuner 'chameleon' needs the missing package jax; install it: {command}"
    )
