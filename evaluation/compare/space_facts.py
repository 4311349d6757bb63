"""The ground truth of a comparison: what is known of a workload's whole space."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.compare.plan import GOAL
from targets.table import Table
from targets.titles import title


@dataclass(frozen=True)
class SpaceFacts:
    """Counts of configs in a workload's space: all, the `valid` ones, and those `near` the optimum,
    within the goal of a comparison. The optimum in cycles, and in seconds at the target's clock."""

    title: str
    configs: int
    valid: int
    optimum_cycles: int
    optimum_seconds: float
    near: int


def space_facts(name: str, table: Table) -> SpaceFacts:
    """The facts in `table`, which holds every config of the space of the workload called `name`."""
    optimum = table.optimum_cycles
    valid = table.status == "valid"
    near = valid & (table.cycles <= optimum * (1 + GOAL))
    seconds = float(table.seconds[valid & (table.cycles == optimum)].min())
    return SpaceFacts(
        title(name, table.workload), len(table), int(valid.sum()), optimum, seconds, int(near.sum())
    )
