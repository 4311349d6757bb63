"""Encodes labelled graphs as arrays, for models.

A row is a layer. Edges lead from each layer to those that read what it writes or come next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.layer_features import LAYER, Figures
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.targets.workload import Workload

NEIGHBOUR = ("log2 cycles", "log2 data bytes", "log2 weight bytes", "log2 output bytes")
"""What a layer is told of the one before it and the one behind it in its stream; 0 without one."""
EDGE = ("is read", "is next", "log2 bytes")
_BYTES = [LAYER.index(name) for name in NEIGHBOUR[1:]]


@dataclass(frozen=True, eq=False)
class GraphTable:
    """A labelled graph of n layers: `nodes` (n, columns), with the names of `columns`; `prior` (n,)
    cycles, of each layer by itself or estimated; `edges` (m, 2) from row to row with `links`
    (m, EDGE); `stream` (n,) what each takes in its stream, empty where that is not known."""

    columns: tuple[str, ...]
    nodes: NDArray[np.float64]
    prior: NDArray[np.float64]
    edges: NDArray[np.int64]
    links: NDArray[np.float64]
    stream: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Skeleton:
    """What of a labelled graph does not depend on what is known of its layers: their workloads, the
    first of each stream, `edges` (m, 2), and what each is, `kinds` (m, 2)."""

    workloads: tuple[Workload, ...]
    firsts: NDArray[np.bool_]
    edges: NDArray[np.int64]
    kinds: NDArray[np.float64]


class Tables:
    """Labelled graphs of a problem as arrays, by what is known of their layers so far."""

    def __init__(self, problem: FusionProblem, figures: Figures) -> None:
        self.problem = problem
        self.figures = figures
        self.columns = (
            *LAYER, *(f"before: {name}" for name in NEIGHBOUR),
            *(f"behind: {name}" for name in NEIGHBOUR),
            *(f"machine: {name}" for name in figures.machine_columns),
        )  # fmt: skip
        self._skeletons: dict[Labelling, _Skeleton] = {}

    def of(self, labels: Labelling) -> GraphTable:
        """A labelled graph."""
        if labels not in self._skeletons:
            self._skeletons[labels] = _skeleton(self.problem, labels)
        bones = self._skeletons[labels]
        known = [self.figures.of(workload) for workload in bones.workloads]
        own = np.array([each.row for each in known]).reshape(-1, len(LAYER))
        prior = np.array([each.prior for each in known])
        told = np.column_stack([np.log2(np.maximum(prior, 1.0)), own[:, _BYTES]])
        before, behind = np.zeros_like(told), np.zeros_like(told)
        before[1:], behind[:-1] = told[:-1], told[1:]
        before[bones.firsts] = 0.0
        behind[:-1][bones.firsts[1:]] = 0.0
        machine = np.broadcast_to(self.figures.machine, (len(own), len(self.figures.machine)))
        nodes = np.concatenate([own, before, behind, machine], axis=1)
        size = own[bones.edges[:, 0], LAYER.index("log2 output bytes")]
        found = self.figures.evaluator.seen(labels)
        stream = [] if found is None else [layer.stream_cycles for layer in found.layers]
        return GraphTable(
            self.columns, nodes, prior, bones.edges, np.column_stack([bones.kinds, size]),
            np.array(stream, np.float64),
        )  # fmt: skip


def _skeleton(problem: FusionProblem, labels: Labelling) -> _Skeleton:
    graph = problem.labelled(labels)
    runs = graph.segments()
    firsts = [k == 0 for run in runs for k in range(len(run))]
    return _Skeleton(
        tuple(problem.workloads(labels)), np.array(firsts, np.bool_), *_edges(graph, firsts)
    )


def _edges(
    graph: IntegerGraph, firsts: list[bool]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Who reads whom and who follows whom, (m, 2), and which of both it is, (m, 2)."""
    place = {layer.output: k for k, layer in enumerate(graph.layers)}
    kinds: dict[tuple[int, int], list[float]] = {}
    for k, layer in enumerate(graph.layers):
        for name in layer.reads:
            if name in place:
                kinds.setdefault((place[name], k), [0.0, 0.0])[0] = 1.0
        if not firsts[k]:
            kinds.setdefault((k - 1, k), [0.0, 0.0])[1] = 1.0
    edges = np.array(list(kinds), np.int64).reshape(-1, 2)
    return edges, np.array(list(kinds.values())).reshape(-1, 2)
