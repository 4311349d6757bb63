"""Features for the fusion models: of layers, of decision units and of whole labelled networks.

A labelling holds one bool per possible fusion (a "decision"). A decision unit is a single decision,
or a group of sibling decisions that are made together. Layer features include measured costs once
the layer was simulated. In the features of a labelled network (`GraphTable`), each row is a layer.
Edges lead from a layer to the layers that read its output, and to the next layer in its command
stream.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.evaluator import Evaluator
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.targets.artifact_types import Pick
from tilewright.targets.capabilities import Estimates, capability, roofline_of
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

_OPERATORS = ("conv2d", "dense", "max_pool")
LAYER = (
    "log2 macs", "log2 data bytes", "log2 weight bytes", "log2 output bytes", "log2 channels in",
    "log2 channels out", "log2 pixels", "kernel", "stride", "grouped", *_OPERATORS, "pooled",
    "averaged", "residual", "steps", "log2 roofline", "log2 estimate", "tuned",
    "log2 cycles over estimate", "log2 dram bytes over least", "scratchpad share",
)  # fmt: skip
"""Columns of a layer's features. The last four are 0 unless the layer was simulated. They are a
flag that the layer was simulated, its cycles relative to the estimate, the bytes that it moves
relative to the size of its tensors, and the occupied fraction of the fullest scratchpad."""
KINDS = ("activation", "pool", "siblings", "shortcut", "average")
"""Kinds of fusions, in the order of the policy's columns."""
_UNIT_COLUMNS = (
    *KINDS, "members", "log2 layers apart", "log2 layers together", "log2 cycles apart",
    "log2 cycles together", "log2 ratio", "log2 bytes ratio", "share of network", "known apart",
    "known together",
)  # fmt: skip
_TENSOR_BYTES = [LAYER.index(f"log2 {name} bytes") for name in ("data", "weight", "output")]
NEIGHBOUR = ("log2 cycles", "log2 data bytes", "log2 weight bytes", "log2 output bytes")
"""Features of the previous and the next layer in the same command stream. They are part of each
layer's features, and are 0 if there is no previous or next layer."""
EDGE = ("is read", "is next", "log2 bytes")
_NEIGHBOUR_BYTES = [LAYER.index(name) for name in NEIGHBOUR[1:]]


@dataclass(frozen=True, eq=False)
class LayerFigures:
    """Features of a layer, as inputs of the fusion models.

    Attributes:
        row: values of the columns `LAYER`, float array of shape (columns,).
        prior: cycles of the layer when it runs alone: exact if its workload was simulated,
            otherwise estimated.
    """

    row: NDArray[np.float64]
    prior: float


class Figures:
    """Computes features of the layers of a network, as inputs of the fusion models.

    Workloads that were part of a simulated network have exact costs. The costs of other workloads
    are estimates.

    Args:
        problem: the possible fusions of a network.
        evaluator: provides the exact costs.

    Attributes:
        machine_columns: names of the hardware features.
        machine: hardware features, float array of shape (machine columns,).
    """

    def __init__(self, problem: FusionProblem, evaluator: Evaluator) -> None:
        self.problem = problem
        self.evaluator = evaluator
        table = problem.target.hardware_features()
        self.machine_columns = tuple(sorted(table))
        self.machine = np.array([table[name] for name in self.machine_columns])
        self._plain: dict[Workload, LayerFigures] = {}
        self._tuned: dict[Workload, LayerFigures] = {}

    def layer_figures(self, workload: Workload) -> LayerFigures:
        """Return the features of a layer, which depend only on its workload and its known costs.

        Args:
            workload: workload of the layer.
        """
        if workload in self._tuned:
            return self._tuned[workload]
        if workload not in self._plain:
            self._plain[workload] = self._baseline(workload)
        alone = self.evaluator.alone.get(workload)
        if alone is None:
            return self._plain[workload]
        pick, cost = alone
        plain = self._plain[workload]
        row = plain.row.copy()
        row[-4:] = (
            1.0,
            math.log2(max(cost.cycles, 1) / plain.prior),
            math.log2(max(cost.dram_bytes, 1) / sum(_bytes(workload))),
            self._share(workload, pick),
        )
        self._tuned[workload] = LayerFigures(row, float(cost.cycles))
        return self._tuned[workload]

    def _baseline(self, workload: Workload) -> LayerFigures:
        roofline = roofline_of(self.problem.target, workload)
        least = 1.0 if roofline is None else max(roofline.cost, 1.0)
        estimate = self.problem.estimate_workload(workload) or least
        w, sizes = workload, _bytes(workload)
        row = [
            math.log2(max(w.macs, 1)), *(math.log2(max(size, 1)) for size in sizes),
            math.log2(w.in_channels), math.log2(w.out_channels),
            math.log2(w.sums_height * w.sums_width * w.batch), w.kernel_h * w.kernel_w,
            w.stride_h * w.stride_w, float(w.groups > 1),
            *(float(w.operator == name) for name in _OPERATORS), float(w.pool is not None),
            float(w.average is not None), float(any(op.kind == "residual" for op in w.epilogue)),
            len(w.epilogue),
            math.log2(least), math.log2(estimate), 0.0, 0.0, 0.0, 0.0,
        ]  # fmt: skip
        return LayerFigures(np.array(row), estimate)

    def _share(self, workload: Workload, pick: Pick) -> float:
        """Return the fraction of the fullest scratchpad that a schedule occupies.

        Args:
            workload: the workload.
            pick: its schedule.

        Returns:
            The fraction; 0 if the target has no estimates for this schedule.
        """
        estimates, space = capability(self.problem.target, Estimates), None
        if estimates is not None:
            space = self.problem.target.space(workload)
        if estimates is None or space is None or space.name != pick.space:
            return 0.0
        table = estimates.estimate(workload, np.array([pick.config], np.int32))
        return float(table.of_meaning("share").max(initial=0.0))


def _bytes(w: Workload) -> tuple[int, int, int]:
    """Return the sizes in bytes of a workload's data, weights and output, at one byte per element.

    The data and weights of a fused projection shortcut are included. A max-pool has no weights.

    Args:
        w: the workload.
    """
    data = w.batch * w.in_channels * w.height * w.width
    weights = w.out_channels * (w.in_channels // w.groups) * w.kernel_h * w.kernel_w
    beside = (0, 0) if w.of_shortcut is None else _bytes(w.of_shortcut)[:2]
    return (
        data + beside[0],
        0 if w.operator == "max_pool" else weights + beside[1],
        w.batch * w.out_channels * w.out_height * w.out_width,
    )


@dataclass(frozen=True)
class DecisionGroup:
    """A decision unit: one fusion decision, or several that always have the same label.

    Attributes:
        places: indices of the decisions.
        kind: the kind of fusion, one of `KINDS`.
    """

    places: tuple[int, ...]
    kind: str


def list_units(problem: FusionProblem) -> tuple[DecisionGroup, ...]:
    """Return the decision units of a network, ordered by their first decision.

    A decision unit is one fusion decision, or several that always have the same label. Each
    decision belongs to exactly one unit.

    Args:
        problem: the possible fusions of the network.
    """
    group = {place: places for places in problem.groups for place in places}
    units: dict[tuple[int, ...], DecisionGroup] = {}
    for place, choice in enumerate(problem.offered):
        places = group.get(place, (place,))
        units.setdefault(places, DecisionGroup(places, choice.kind))
    return tuple(units.values())


def label_unit(labels: Labelling, unit: DecisionGroup, fused: bool) -> Labelling:
    """Return a copy of a labelling in which all decisions of a unit have the label `fused`.

    Args:
        labels: the labelling: one bool per possible fusion.
        unit: the decision unit.
        fused: the new label of the unit's decisions.
    """
    return tuple(fused if k in unit.places else label for k, label in enumerate(labels))


def unit_features(problem: FusionProblem, figures: Figures, labels: Labelling) -> Features:
    """Return the features from which the policy predicts whether fusing helps, one row per unit.

    For each decision unit, a row compares the network in which the unit is fused with the network
    in which it is not; all other labels are the same. The row also describes the slowest layer that
    fusing creates, and the machine.

    Args:
        problem: the possible fusions of a network.
        figures: features of the layers.
        labels: the labelling that gives the other labels: one bool per possible fusion.
    """
    total = sum(figures.layer_figures(workload).prior for workload in problem.workloads(labels))
    units = list_units(problem)
    rows = [_row(problem, figures, labels, unit, total) for unit in units]
    names = (*_UNIT_COLUMNS, *LAYER[:-4], *(f"machine: {name}" for name in figures.machine_columns))
    return Features.from_names(np.array(rows).reshape(len(units), len(names)), names)


def _row(
    problem: FusionProblem, figures: Figures, labels: Labelling, unit: DecisionGroup, total: float
) -> NDArray[np.float64]:
    apart, together = (
        Counter(problem.workloads(label_unit(labels, unit, fused))) for fused in (False, True)
    )
    old = [figures.layer_figures(w) for w in (apart - together).elements()]
    new = [figures.layer_figures(w) for w in (together - apart).elements()]
    cycles = [max(sum(item.prior for item in some), 1.0) for some in (old, new)]
    sizes = [max(sum(float(np.exp2(item.row[_TENSOR_BYTES]).sum()) for item in some), 1.0)
             for some in (old, new)]  # fmt: skip
    known = [
        float(np.mean([item.row[LAYER.index("tuned")] for item in some])) if some else 0.0
        for some in (old, new)
    ]
    largest = max(new or old, key=lambda item: item.prior, default=None)
    own = np.zeros(len(LAYER)) if largest is None else largest.row
    row = [
        *(float(unit.kind == kind) for kind in KINDS), len(unit.places),
        math.log2(1 + len(old)), math.log2(1 + len(new)), math.log2(cycles[0]),
        math.log2(cycles[1]), math.log2(cycles[1] / cycles[0]), math.log2(sizes[1] / sizes[0]),
        cycles[0] / max(total, 1.0), *known,
    ]  # fmt: skip
    return np.concatenate([row, own[:-4], figures.machine])


@dataclass(frozen=True, eq=False)
class GraphTable:
    """A labelled network as arrays, with n layers and m edges. Input of the graph model.

    An edge leads from a layer to a layer that reads its result, or to the next layer in the same
    command stream.

    Attributes:
        columns: names of the columns of `nodes`.
        nodes: features of the layers, float array of shape (n, columns).
        prior: cycles of each layer when it runs alone, exact or estimated, float array of shape
            (n,).
        edges: rows of the two layers of each edge, int array of shape (m, 2).
        links: features of each edge, with the columns `EDGE`, float array of shape (m, features).
        stream: cycles of each layer within its command stream, float array of shape (n,); empty if
            the network was not simulated.
    """

    columns: tuple[str, ...]
    nodes: NDArray[np.float64]
    prior: NDArray[np.float64]
    edges: NDArray[np.int64]
    links: NDArray[np.float64]
    stream: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Skeleton:
    """The part of a labelled network's features that does not change when layers are tuned.

    Attributes:
        workloads: workload of each layer.
        firsts: whether each layer is the first of its command stream, bool array of shape
            (layers,).
        edges: rows of the two layers of each edge, int array of shape (m, 2).
        kinds: the flags "is read" and "is next" of each edge, 0 or 1, float array of shape (m, 2).
    """

    workloads: tuple[Workload, ...]
    firsts: NDArray[np.bool_]
    edges: NDArray[np.int64]
    kinds: NDArray[np.float64]


class Tables:
    """Converts labelled networks to arrays.

    Layers whose workload was simulated contribute their exact cost.

    Args:
        problem: the possible fusions of a network.
        figures: features of the layers.
    """

    def __init__(self, problem: FusionProblem, figures: Figures) -> None:
        self.problem = problem
        self.figures = figures
        self.columns = (
            *LAYER, *(f"before: {name}" for name in NEIGHBOUR),
            *(f"behind: {name}" for name in NEIGHBOUR),
            *(f"machine: {name}" for name in figures.machine_columns),
        )  # fmt: skip
        self._skeletons: dict[Labelling, _Skeleton] = {}

    def graph_table(self, labels: Labelling) -> GraphTable:
        """Return the network of a labelling (one bool per possible fusion) as arrays."""
        if labels not in self._skeletons:
            self._skeletons[labels] = _skeleton(self.problem, labels)
        bones = self._skeletons[labels]
        known = [self.figures.layer_figures(workload) for workload in bones.workloads]
        own = np.array([item.row for item in known]).reshape(-1, len(LAYER))
        prior = np.array([item.prior for item in known])
        told = np.column_stack([np.log2(np.maximum(prior, 1.0)), own[:, _NEIGHBOUR_BYTES]])
        before, behind = np.zeros_like(told), np.zeros_like(told)
        before[1:], behind[:-1] = told[:-1], told[1:]
        before[bones.firsts] = 0.0
        behind[:-1][bones.firsts[1:]] = 0.0
        machine = np.broadcast_to(self.figures.machine, (len(own), len(self.figures.machine)))
        nodes = np.concatenate([own, before, behind, machine], axis=1)
        size = own[bones.edges[:, 0], LAYER.index("log2 output bytes")]
        result = self.figures.evaluator.find_evaluation(labels)
        stream = [] if result is None else [layer.stream_cycles for layer in result.layers]
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
    """Return the edges between the layers of a network.

    An edge leads from a layer to a layer that reads its result, or to the next layer in the same
    command stream.

    Args:
        graph: the network.
        firsts: whether each layer is the first of its command stream.

    Returns:
        Rows of the two layers of each edge, int array of shape (m, 2), and the flags "is read" and
        "is next" of each edge, 0 or 1, float array of shape (m, 2).
    """
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
