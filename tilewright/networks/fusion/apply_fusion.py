"""List the possible fusions of a network, and apply a labelling (one bool per possible fusion)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.networks.fusion import activations, averages, horizontal_fusion, pools, shortcuts
from tilewright.networks.fusion.candidates import Choices, Kind
from tilewright.networks.integer.graph import IntegerGraph


def choices(graph: IntegerGraph) -> Choices:
    """List the fusions that are possible in a network, and those that are not.

    Args:
        graph: a network that was extracted without merging pools into convolutions.

    Returns:
        The possible fusions, and the refused fusions with reasons.
    """
    graph = averages.in_parts(graph)
    pooled, no_pools = pools.find_choices(graph)
    summed, no_shortcuts = shortcuts.find_choices(graph)
    averaged, no_averages = averages.find_choices(graph)
    beside, no_siblings = horizontal_fusion.find_choices(graph)
    return Choices(
        (*activations.find_choices(graph), *pooled, *summed, *averaged, *beside),
        (*no_pools, *no_shortcuts, *no_averages, *no_siblings),
    )


def apply_labels(
    graph: IntegerGraph, labels: Sequence[bool], found: Choices | None = None
) -> IntegerGraph:
    """Build the network in which the selected fusions are applied.

    Args:
        graph: the network, in which nothing is fused.
        labels: the labelling: one bool per choice of `choices(graph)`, in the same order.
        found: the result of `choices(graph)`, if it is known already.

    Returns:
        The network. Its results are bit-identical for all labellings.

    Raises:
        ValueError: the number of labels differs from the number of choices.
    """
    found = found or choices(graph)
    if len(labels) != len(found):
        raise ValueError(f"{len(labels)} labels are given for {len(found)} fusion decisions")

    def labelled(kind: Kind, label: bool) -> list[str]:
        return [
            choice.name if kind == "siblings" else choice.layers[-1]
            for choice, own in zip(found.offered, labels, strict=True)
            if choice.kind == kind and bool(own) == label
        ]

    # If a layer is fused with its reader, its clips cannot become a layer between the two. Clips
    # commute with a max-pool, so they become a layer after the fused pool. The clips of a fused
    # shortcut, and those on both sides of a fused average pool, stay in the fused layer (None).
    behind = {
        output: choice.layers[-1] if choice.kind == "pool" else None
        for choice, own in zip(found.offered, labels, strict=True)
        if choice.kind in ("pool", "shortcut", "average") and own
        for output in (choice.layers if choice.kind == "average" else choice.layers[:1])
    }
    graph = pools.fuse_pools(averages.in_parts(graph), labelled("pool", True))
    graph = shortcuts.fuse_shortcuts(graph, labelled("shortcut", True))
    graph = averages.fuse_averages(graph, labelled("average", True))
    cut = [behind.get(output, output) for output in labelled("activation", False)]
    graph = activations.separate_clips(graph, [output for output in cut if output is not None])
    return horizontal_fusion.merge_siblings(graph, labelled("siblings", True))
