"""Tests how many configs are compiled per batch, given the costs of compiling and measuring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.evaluation.compare.workload_runs import Metered
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search.problem import Problem
from tilewright.targets import make_target
from tilewright.targets.base import Target
from tilewright.targets.capabilities import UNKNOWN_COSTS, Costs, Estimates, HasCosts, capability
from tilewright.targets.replay import ReplayTarget
from tilewright.targets.workload import parse_workload

TABLES = Path(__file__).parents[1] / "data" / "tvm-vta"
LAYER = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=32,k=1,s=1,p=0")


@pytest.mark.parametrize(
    ("costs", "compiled"),
    [
        (Costs(compiling=0.001, measuring=1.0), 32),
        (Costs(compiling=1.0, measuring=2.0), 24),
        (UNKNOWN_COSTS, 16),
        (Costs(compiling=1.0, measuring=0.2), 8),
    ],
)
def test_looking_takes_no_longer_than_measuring(costs: Costs, compiled: int) -> None:
    space = make_target("vta-pynq").space(LAYER)
    assert Problem(LAYER, space, costs=costs).compiles(8, alpha=3.0, looking=1.0) == compiled


def recorded() -> ReplayTarget:
    target = make_target(f"replay:{TABLES / 'C10.csv.gz'}")
    assert isinstance(target, ReplayTarget)
    return target


def test_tables_of_the_real_stack_say_what_trials_cost() -> None:
    target = recorded()
    (table,) = target.tables.values()
    priced = capability(target, HasCosts)
    assert priced is not None
    costs = priced.costs(table.workload)
    assert table.spent is not None
    assert costs.compiling == pytest.approx(table.spent.compiling.mean())
    assert costs.compiling > costs.measuring > 0  # compiling costs more than measuring


@pytest.mark.parametrize("tuner", ["default", "default-blind", "estimate"])
def test_where_compiling_is_dear_every_compile_is_a_trial(tuner: str) -> None:
    target = recorded()
    (table,) = target.tables.values()
    metered = Metered(target, table)
    rounds = list(tune(metered, table.workload, make_explorer(tuner), trials=8, batch=8))
    configs = np.concatenate([each.configs for each in rounds])
    assert metered.compiled == len(configs) == 8
    rows = table.rows_of_configs(configs)
    assert table.spent is not None
    spent = table.spent.compiling[rows].sum() + table.spent.measuring[rows].sum()
    assert metered.seconds == pytest.approx(spent)


def estimated(target: Target, configs: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    estimates = capability(target, Estimates)
    assert estimates is not None
    return estimates.estimate(LAYER, configs).of_meaning("latency")[:, 0]


def test_the_estimate_tuner_measures_the_best_estimates_that_compile() -> None:
    target = make_target("vta-pynq", "template")
    space = target.space(LAYER)
    every = space.unravel(np.arange(space.size))
    (done,) = tune(target, LAYER, make_explorer("estimate"), trials=8, batch=8)
    assert done.measured.valid.all()
    compiled = every[target.lower(LAYER, every).ok]
    assert estimated(target, done.configs).max() <= np.sort(estimated(target, compiled))[7]
