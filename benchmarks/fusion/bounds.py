"""Computes lower bounds of a network's cycles that hold for every choice of fusions.

    python -m benchmarks.fusion.bounds  # all pairs of `benchmarks.fusion.decisions`
    python -m benchmarks.fusion.bounds --networks resnet18 --targets huge

Nothing is tuned or compiled; a pair of network and target takes at most a minute. A labelling says
for each fusible pair of operators whether it is fused. There are two bounds.

The bound of one labelling is the number of cycles that its command streams need at least, with any
schedules. It follows from the needs of the layers (`benchmarks.fusion.stream_bound`).

The bound of all labellings is at most the smallest bound of a labelling. It counts each layer in
one of two ways: by the cycles that the layer takes in a stream whatever its neighbours are, or, in
a sequence of layers that wait for memory, by its reads alone, where only reads of the first layer
can start early. Both are sums over layers. The labels of one segment (decisions that share a layer)
therefore only change the terms of the segment's own layers, and the minimum of each segment can be
added up.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from benchmarks.fusion.stream_bound import Needs, needs, stream_bound
from benchmarks.fusion.tuned_pairs import NETWORKS, TARGETS, make_problem
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.targets.base import Target
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload

MOST = 12
"""Maximum number of decisions of a segment, all labels of which are enumerated."""


def main() -> None:
    """Print the bounds of each pair of network and target."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    given = parser.parse_args()
    for target in given.targets.split(","):
        for network in given.networks.split(","):
            print(_bound_line(network, make_problem(network, target)), flush=True)


def _bound_line(network: str, problem: FusionProblem) -> str:
    """Return a line with the bounds of a network on a target."""
    needed = Needed(problem.target)
    least, fused = least_bound(problem, needed), bound(problem, problem.all, needed)
    return (
        f"{network} on {problem.target.name}: no labelling takes less than {least:,} cycles, "
        f"everything fused no less than {fused:,}"
    )


class Sums(NamedTuple):
    """Summed cycles of layers: `least` whatever their neighbours are, `read` for reads only."""

    least: int
    read: int


@dataclass(frozen=True)
class Stretch:
    """Consecutive layers that no decision connects to other layers.

    Attributes:
        sums: the smallest sums of cycles that any labels of these layers reach.
        early: largest number of read cycles of the first layer that may start early.
        begins: whether the first layer begins a stream.
    """

    sums: Sums
    early: int
    begins: bool


class Needed:
    """Cache of the needs of layers on one target."""

    def __init__(self, target: Target) -> None:
        assert isinstance(target, VtaTarget), "only a VTA's streams are known"
        self.spec = target.spec
        self._known: dict[Workload, Needs] = {}

    def layer_needs(self, workload: Workload) -> Needs:
        """Return the needs of a layer. Raise `WorkloadError` if the machine cannot run it."""
        if workload not in self._known:
            self._known[workload] = needs(workload, self.spec)
        return self._known[workload]

    def sums(self, workloads: Sequence[Workload]) -> Sums:
        """Return the summed cycles of several layers."""
        sums = [self.layer_needs(workload) for workload in workloads]
        return Sums(sum(one.least for one in sums), sum(one.read for one in sums))

    @property
    def most_early(self) -> int:
        """Number of cycles that it takes to fill the weight scratchpad."""
        m = self.spec.machine
        return m.wgt_built * m.wgt_bytes // m.bus_bytes + 1


def bound(problem: FusionProblem, labels: Labelling, needed: Needed | None = None) -> int:
    """Return a lower bound of the cycles of a labelled network's streams."""
    needed = needed or Needed(problem.target)
    workloads, begin, total = problem.workloads(labels), 0, 0
    for run in problem.labelled(labels).segments():
        total += stream_bound([needed.layer_needs(w) for w in workloads[begin : begin + len(run)]])
        begin += len(run)
    return total


def least_bound(problem: FusionProblem, needed: Needed | None = None) -> int:
    """Return a lower bound of the cycles that holds for every labelling of the network.

    Raises:
        ValueError: a segment has more than 12 decisions.
    """
    needed = needed or Needed(problem.target)
    free, waiting = 0, -(1 << 60)  # up to here, the last stretch counted by either sum
    for stretch in stretches(problem, needed):
        before = max(free, waiting)
        free = before + stretch.sums.least
        waiting = (
            max(before - (0 if stretch.begins else stretch.early), waiting) + stretch.sums.read
        )
    return max(free, waiting)


def stretches(problem: FusionProblem, needed: Needed) -> list[Stretch]:
    """Cut the network wherever no segment has layers on both sides; return the pieces in order."""
    base = problem.workloads(problem.tvm)
    spans = _spans(problem)
    firsts = [k for k in range(len(base)) if not any(a < k <= b for a, b in spans)]
    changed = [changes(problem, places, needed) for places in problem.segments]
    begins = _begins(problem)
    results = []
    for first, end in zip(firsts, [*firsts[1:], len(base)], strict=True):
        matching = [item for item, (at, _) in zip(changed, spans, strict=True) if first <= at < end]
        early = sum(needed.layer_needs(workload).early for workload in base[first:end])
        results.append(
            Stretch(
                add_sums([needed.sums(base[first:end]), *matching]), min(early, needed.most_early),
                first in begins,
            )
        )  # fmt: skip
    return results


def changes(problem: FusionProblem, places: Sequence[int], needed: Needed) -> Sums:
    """Return the smallest change of each sum that any labels of a segment cause.

    The reference is the network in which only activations are fused. A negative value is a saving.
    """
    if len(places) > MOST:
        raise ValueError(
            f"{len(places)} decisions depend on each other, but at most {MOST} are supported"
        )
    before = needed.sums(problem.workloads(problem.tvm))
    changes = []
    for own in product((False, True), repeat=len(places)):
        labels = list(problem.tvm)
        for place, label in zip(places, own, strict=True):
            labels[place] = label
        changes.append(needed.sums(problem.workloads(tuple(labels))))
    return Sums(
        min(item.least for item in changes) - before.least,
        min(item.read for item in changes) - before.read,
    )


def add_sums(several: Sequence[Sums]) -> Sums:
    """Add up several sums, field by field."""
    return Sums(sum(item.least for item in several), sum(item.read for item in several))


def _spans(problem: FusionProblem) -> list[tuple[int, int]]:
    """Return the first and last layer that each segment's labels change.

    Layers are counted in the network in which only activations are fused.
    """
    place = {layer.output: k for k, layer in enumerate(problem.graph.layers)}
    spans = []
    for places in problem.segments:
        layer_places = [place[name] for k in places for name in problem.offered[k].layers]
        spans.append((min(layer_places), max(layer_places)))
    return spans


def _begins(problem: FusionProblem) -> set[int]:
    """Return the layers before which the CPU works; each begins a stream.

    Layers are counted in the network in which only activations are fused.
    """
    sizes = [len(run) for run in problem.graph.segments()]
    return {sum(sizes[:k]) for k in range(len(sizes))}


if __name__ == "__main__":
    main()
