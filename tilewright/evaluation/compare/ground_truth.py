"""Counts the valid and near-optimal configs of a workload's space: a comparison's ground truth."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.evaluation.compare.plan import GOAL
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import title
from tilewright.targets.replay import MeasurementTable


@dataclass(frozen=True)
class SpaceFacts:
    """Counts of configs in a workload's space: all, the `valid` ones, and those `near` the optimum,
    within the goal of a comparison."""

    title: str
    configs: int
    valid: int
    optimum: Latency
    near: int


def space_facts(name: str, table: MeasurementTable) -> SpaceFacts:
    """The facts in `table`, which holds every config of the space of the workload called `name`."""
    optimum = table.optimum
    near = table.latency <= optimum.cost * (1 + GOAL)
    valid = int(table.valid.sum())
    return SpaceFacts(title(name, table.workload), len(table), valid, optimum, int(near.sum()))
