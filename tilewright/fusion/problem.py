"""Which operators may be fused in a network on a target, and the network that labels make of it.

Decisions with a common layer or group form a segment. What a label saves hardly depends on labels
of other segments, because layers meet at barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from tilewright.core.errors import WorkloadError
from tilewright.networks.artifact.build import canonical_workloads
from tilewright.networks.fusion import FusionChoice, Refused, choices, fused, in_parts
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.channel_blocks import pad_to_blocks
from tilewright.targets.base import Target
from tilewright.targets.workload import Workload, canonical

if TYPE_CHECKING:
    from tilewright.networks.integer.graph import IntegerGraph


Labelling = tuple[bool, ...]
"""Of each thing that may be fused, in the order of `FusionProblem.offered`, whether it is."""

TVM_FUSES = ("activation",)
"""What TVM's FuseOps puts into the kernel before it: what is elementwise. It pools in a kernel of
its own, and neither joins convolutions nor lays tensors side by side."""
Segments = tuple[tuple[int, ...], ...]
"""Places of decisions, each in one segment, in order of their first."""


class FusionProblem:
    """What may be fused in a network on a target. `graph` is the network with nothing fused that
    could be apart, an average of what lies side by side in parts, too."""

    def __init__(self, graph: IntegerGraph, target: Target) -> None:
        self.graph = in_parts(graph)
        self.target = target
        self.choices = choices(self.graph)
        self.offered: tuple[FusionChoice, ...] = self.choices.offered
        self.refused: tuple[Refused, ...] = self.choices.refused
        self.segments = segments_of(self.offered)
        self.groups = groups_of(self.offered)
        self.labelled = lru_cache(maxsize=512)(self._labelled)

    def __len__(self) -> int:
        return len(self.offered)

    def _labelled(self, labels: Labelling) -> IntegerGraph:
        return fused(self.graph, labels, self.choices)

    def workloads(self, labels: Labelling) -> list[Workload]:
        """Return the workload that is tuned for each layer of the labelled network, in order."""
        return canonical_workloads(self.labelled(labels))

    @property
    def none(self) -> Labelling:
        """The labelling in which nothing is fused that could be apart."""
        return (False,) * len(self)

    @property
    def all(self) -> Labelling:
        """The labelling in which everything is fused that may be."""
        return (True,) * len(self)

    @property
    def no_shortcuts(self) -> Labelling:
        """The labelling with everything fused but shortcuts, which stay layers."""
        return tuple(choice.kind != "shortcut" for choice in self.offered)

    @property
    def no_averages(self) -> Labelling:
        """The labelling with everything fused but averages, which stay layers."""
        return tuple(choice.kind != "average" for choice in self.offered)

    @property
    def tvm(self) -> Labelling:
        """The labelling that TVM's FuseOps would choose."""
        return tuple(choice.kind in TVM_FUSES for choice in self.offered)

    def flipped(self, labels: Labelling, places: Sequence[int]) -> Labelling:
        """Return the labelling with the other label at these places."""
        return tuple(label != (k in places) for k, label in enumerate(labels))

    @cached_property
    def accelerator(self) -> Accelerator:
        """The target's estimates."""
        return Accelerator.of(self.target)

    def estimated(self, workload: Workload) -> float | None:
        """Return what the best schedule of a workload takes by the target's estimate, in its unit.
        None if the target does not estimate it."""
        form = canonical(pad_to_blocks(workload, self.accelerator.blocks))
        try:
            return self.accelerator.estimated(form)
        except WorkloadError:
            return None

    def estimate(self, labels: Labelling) -> float | None:
        """Return the sum of the estimates of a labelled network's layers. None if a layer has no
        estimate."""
        found = [self.estimated(workload) for workload in self.workloads(labels)]
        return None if None in found else sum(each or 0.0 for each in found)

    @cached_property
    def greedy(self) -> Labelling:
        """One thing after the other is fused where the estimates of its layers say that this is
        sooner: the rule by which `tilewright tune` puts pools into convolutions. What costs nothing
        by itself is fused first."""
        labels = self.tvm
        alone = [
            [place] for place, choice in enumerate(self.offered)
            if choice.kind not in TVM_FUSES and not choice.group
        ]  # fmt: skip
        for places in [*alone, *self.groups]:
            other = self.flipped(labels, places)
            if self._gain(labels, other) > 0:
                labels = other
        return labels

    def _gain(self, labels: Labelling, other: Labelling) -> float:
        """What is saved by other labels, by estimates; 0 where nobody knows."""
        before, after = self.workloads(labels), self.workloads(other)
        old, new = list(before), []
        for workload in after:
            if workload in old:
                old.remove(workload)
            else:
                new.append(workload)
        each = [[self.estimated(w) for w in some] for some in (old, new)]
        if any(None in some for some in each):
            return 0.0
        return sum(e or 0.0 for e in each[0]) - sum(e or 0.0 for e in each[1])

    def named(self, labels: Labelling) -> dict[str, bool]:
        """Return the labels by the names of the decisions."""
        return {str(choice): label for choice, label in zip(self.offered, labels, strict=True)}


def segments_of(offered: tuple[FusionChoice, ...]) -> Segments:
    """Return the segments of what may be fused."""
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
    found: dict[int, list[int]] = {}
    for place in range(len(offered)):
        found.setdefault(root(place), []).append(place)
    return tuple(tuple(places) for places in found.values())


def groups_of(offered: tuple[FusionChoice, ...]) -> Segments:
    """Return the decisions of each group of siblings: one of them alone changes nothing."""
    found: dict[str, list[int]] = {}
    for place, choice in enumerate(offered):
        if choice.group:
            found.setdefault(choice.group, []).append(place)
    return tuple(tuple(places) for places in found.values())
