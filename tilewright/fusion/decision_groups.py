"""Describes what a policy labels in numbers: each decision that stands for itself, and each group
of siblings as a whole."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.layer_features import LAYER, Figures
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.targets.features import Features

KINDS = ("activation", "pool", "siblings", "shortcut", "average")
"""In the order of a policy's columns."""
_BEHIND = (
    *KINDS, "members", "log2 layers apart", "log2 layers together", "log2 cycles apart",
    "log2 cycles together", "log2 ratio", "log2 bytes ratio", "share of network", "known apart",
    "known together",
)  # fmt: skip
_BYTES = [LAYER.index(f"log2 {name} bytes") for name in ("data", "weight", "output")]


@dataclass(frozen=True)
class DecisionGroup:
    """Decisions that are labelled alike, by their places."""

    places: tuple[int, ...]
    kind: str


def units_of(problem: FusionProblem) -> tuple[DecisionGroup, ...]:
    """Each decision in one unit, in the order of their first."""
    group = {place: places for places in problem.groups for place in places}
    found: dict[tuple[int, ...], DecisionGroup] = {}
    for place, choice in enumerate(problem.offered):
        places = group.get(place, (place,))
        found.setdefault(places, DecisionGroup(places, choice.kind))
    return tuple(found.values())


def with_unit(labels: Labelling, unit: DecisionGroup, fused: bool) -> Labelling:
    """The labelling with all of a unit labelled so."""
    return tuple(fused if k in unit.places else label for k, label in enumerate(labels))


def unit_features(problem: FusionProblem, figures: Figures, labels: Labelling) -> Features:
    """A row a unit: what changes where it is fused and where it is not, all else as labelled, the
    largest layer that fusing makes, and the machine."""
    total = sum(figures.of(workload).prior for workload in problem.workloads(labels))
    units = units_of(problem)
    rows = [_row(problem, figures, labels, unit, total) for unit in units]
    names = (*_BEHIND, *LAYER[:-4], *(f"machine: {name}" for name in figures.machine_columns))
    return Features.of(np.array(rows).reshape(len(units), len(names)), names)


def _row(
    problem: FusionProblem, figures: Figures, labels: Labelling, unit: DecisionGroup, total: float
) -> NDArray[np.float64]:
    apart, together = (
        Counter(problem.workloads(with_unit(labels, unit, fused))) for fused in (False, True)
    )
    old = [figures.of(w) for w in (apart - together).elements()]
    new = [figures.of(w) for w in (together - apart).elements()]
    cycles = [max(sum(each.prior for each in some), 1.0) for some in (old, new)]
    sizes = [max(sum(float(np.exp2(each.row[_BYTES]).sum()) for each in some), 1.0)
             for some in (old, new)]  # fmt: skip
    known = [
        float(np.mean([each.row[LAYER.index("tuned")] for each in some])) if some else 0.0
        for some in (old, new)
    ]
    largest = max(new or old, key=lambda each: each.prior, default=None)
    own = np.zeros(len(LAYER)) if largest is None else largest.row
    row = [
        *(float(unit.kind == kind) for kind in KINDS), len(unit.places),
        math.log2(1 + len(old)), math.log2(1 + len(new)), math.log2(cycles[0]),
        math.log2(cycles[1]), math.log2(cycles[1] / cycles[0]), math.log2(sizes[1] / sizes[0]),
        cycles[0] / max(total, 1.0), *known,
    ]  # fmt: skip
    return np.concatenate([row, own[:-4], figures.machine])
