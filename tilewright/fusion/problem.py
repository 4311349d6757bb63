"""The possible fusions of a network on a target, and the network that results from a labelling.

A labelling holds one bool per possible fusion (a "decision"): whether it is applied. Decisions that
share a layer or a group of siblings form a segment. The saving of a decision hardly depends on
decisions in other segments, because a barrier separates their layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from tilewright.core.errors import WorkloadError
from tilewright.networks.artifact.build import canonical_workloads
from tilewright.networks.fusion import FusionChoice, Refused, apply_labels, choices, in_parts
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.channel_blocks import pad_to_blocks
from tilewright.targets.base import Target
from tilewright.targets.workload import Workload, canonical

if TYPE_CHECKING:
    from tilewright.networks.integer.graph import IntegerGraph


Labelling = tuple[bool, ...]
"""One bool per possible fusion, in the order of `FusionProblem.offered`; True if the operators are
fused."""

TVM_FUSES = ("activation",)
"""Kinds of fusions that TVM's pass FuseOps applies. FuseOps only merges elementwise operators into
the preceding kernel. It gives pooling a separate kernel and does not merge convolutions."""
Segments = tuple[tuple[int, ...], ...]
"""Disjoint groups of decisions, each a tuple of indices of decisions. The groups are ordered by
their first decision."""


class FusionProblem:
    """The possible fusions ("decisions") of a network on a target.

    A labelling holds one bool per possible fusion, in the order of `offered`.

    Args:
        graph: the quantised network, in which nothing is fused.
        target: the target.

    Attributes:
        graph: the network without any optional fusion. A global average pool over concatenated
            tensors is split into one average pool per tensor.
        offered: the possible fusions.
        refused: fusions that are not possible, each with the reason.
        segments: groups of decisions that influence each other, as indices.
        groups: groups of decisions that only have an effect together, as indices.
    """

    def __init__(self, graph: IntegerGraph, target: Target) -> None:
        self.graph = in_parts(graph)
        self.target = target
        self.choices = choices(self.graph)
        self.offered: tuple[FusionChoice, ...] = self.choices.offered
        self.refused: tuple[Refused, ...] = self.choices.refused
        self.segments = segments_of(self.offered)
        self.groups = groups_of(self.offered)
        self.labelled = lru_cache(maxsize=512)(self._build_graph)

    def __len__(self) -> int:
        return len(self.offered)

    def _build_graph(self, labels: Labelling) -> IntegerGraph:
        return apply_labels(self.graph, labels, self.choices)

    def workloads(self, labels: Labelling) -> list[Workload]:
        """Return the workload of each layer of the fused network, in execution order.

        Args:
            labels: the labelling: one bool per possible fusion.
        """
        return canonical_workloads(self.labelled(labels))

    @property
    def none(self) -> Labelling:
        """The labelling that fuses nothing."""
        return (False,) * len(self)

    @property
    def all(self) -> Labelling:
        """The labelling that fuses everything."""
        return (True,) * len(self)

    @property
    def no_shortcuts(self) -> Labelling:
        """The labelling that fuses everything except projection shortcuts."""
        return tuple(choice.kind != "shortcut" for choice in self.offered)

    @property
    def no_averages(self) -> Labelling:
        """The labelling that fuses everything except global average pools."""
        return tuple(choice.kind != "average" for choice in self.offered)

    @property
    def tvm(self) -> Labelling:
        """The labelling that TVM's `FuseOps` would choose: only elementwise operators are fused."""
        return tuple(choice.kind in TVM_FUSES for choice in self.offered)

    def flip_labels(self, labels: Labelling, places: Sequence[int]) -> Labelling:
        """Return a copy of a labelling in which the labels at `places` are inverted.

        Args:
            labels: the labelling: one bool per possible fusion.
            places: indices of the labels to invert.
        """
        return tuple(label != (k in places) for k, label in enumerate(labels))

    @cached_property
    def accelerator(self) -> Accelerator:
        """Properties of the target's hardware, which estimates of the latency need."""
        return Accelerator.for_target(self.target)

    def estimate_workload(self, workload: Workload) -> float | None:
        """Return the target's estimate for the best schedule of a workload.

        Args:
            workload: the workload.

        Returns:
            The estimate in the target's cost unit, or None if the target has no estimate.
        """
        form = canonical(pad_to_blocks(workload, self.accelerator.blocks))
        try:
            return self.accelerator.estimate_call(form)
        except WorkloadError:
            return None

    def estimate(self, labels: Labelling) -> float | None:
        """Return the sum of the target's estimates over all layers of a labelled network.

        Args:
            labels: the labelling: one bool per possible fusion.

        Returns:
            The sum in the target's cost unit, or None if a layer has no estimate.
        """
        estimates = [self.estimate_workload(workload) for workload in self.workloads(labels)]
        return (
            None
            if None in estimates
            else sum(layer_estimate or 0.0 for layer_estimate in estimates)
        )

    @cached_property
    def greedy(self) -> Labelling:
        """The labelling (one bool per fusion) that a greedy rule chooses by estimated latency.

        The rule starts from the labelling that TVM would choose. It then visits the other fusions
        once, in order, and applies each fusion for which the estimates of the affected layers
        predict a gain. `tilewright tune` uses the same rule to fuse pooling layers into
        convolutions.
        """
        labels = self.tvm
        alone = [
            [place] for place, choice in enumerate(self.offered)
            if choice.kind not in TVM_FUSES and not choice.group
        ]  # fmt: skip
        for places in [*alone, *self.groups]:
            other = self.flip_labels(labels, places)
            if self._gain(labels, other) > 0:
                labels = other
        return labels

    def _gain(self, labels: Labelling, other: Labelling) -> float:
        """Return the estimated latency that one labelling saves compared with another.

        Args:
            labels: the labelling to compare with.
            other: the labelling whose saving is computed.

        Returns:
            The saving in the target's cost unit; 0 if a layer has no estimate.
        """
        before, after = self.workloads(labels), self.workloads(other)
        old, new = list(before), []
        for workload in after:
            if workload in old:
                old.remove(workload)
            else:
                new.append(workload)
        estimates = [[self.estimate_workload(w) for w in some] for some in (old, new)]
        if any(None in some for some in estimates):
            return 0.0
        return sum(e or 0.0 for e in estimates[0]) - sum(e or 0.0 for e in estimates[1])

    def named(self, labels: Labelling) -> dict[str, bool]:
        """Return the labels of a labelling by the names of the fusions.

        Args:
            labels: the labelling: one bool per possible fusion.
        """
        return {str(choice): label for choice, label in zip(self.offered, labels, strict=True)}


def segments_of(offered: tuple[FusionChoice, ...]) -> Segments:
    """Divide fusions into segments, which do not influence each other.

    Two fusions are in the same segment if they share a layer or a group of siblings, directly or
    through other fusions.

    Args:
        offered: the possible fusions.

    Returns:
        Indices of the fusions in each segment.
    """
    owner = list(range(len(offered)))

    def root(place: int) -> int:
        while owner[place] != place:
            place = owner[place]
        return place

    first: dict[str, int] = {}
    for place, choice in enumerate(offered):
        for name in (*choice.layers, *filter(None, [f"group {choice.group}" * bool(choice.group)])):
            if name in first:
                one, other = sorted((root(first[name]), root(place)))
                owner[other] = one
            else:
                first[name] = place
    segments: dict[int, list[int]] = {}
    for place in range(len(offered)):
        segments.setdefault(root(place), []).append(place)
    return tuple(tuple(places) for places in segments.values())


def groups_of(offered: tuple[FusionChoice, ...]) -> Segments:
    """Return the groups of sibling fusions, which only have an effect together.

    Siblings are layers that read the same tensor and can be merged into one layer.

    Args:
        offered: the possible fusions.

    Returns:
        Indices of the fusions in each group.
    """
    groups: dict[str, list[int]] = {}
    for place, choice in enumerate(offered):
        if choice.group:
            groups.setdefault(choice.group, []).append(place)
    return tuple(tuple(places) for places in groups.values())
