"""Fuse max-pools with the convolution before them, or keep them as separate layers.

In the fused layer, the maximum is computed in the accumulators.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.networks.fusion.candidates import (
    FusionChoice,
    Refused,
    is_read_once,
    split_candidates,
    with_layers,
)
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.offloading.pooling import fuse_pool, leaves_room
from tilewright.targets.layer import Layer


def find_choices(graph: IntegerGraph) -> tuple[list[FusionChoice], list[Refused]]:
    """Return the max-pools that can be fused with the convolution before them.

    Args:
        graph: the network.

    Returns:
        The possible fusions, and the max-pools that cannot be fused, with reasons.
    """
    return split_candidates(
        "pool",
        ((pool.name, (before.output, pool.output), _reason(graph, pool, before))
         for pool, before in _pairs(graph)),
    )  # fmt: skip


def fuse_pools(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """Fuse max-pools with the convolutions before them.

    Args:
        graph: the network.
        outputs: names of the tensors that these max-pools write.
    """
    fused_layers = {c.output: _fuse_pool(c, p) for p, c in _pairs(graph) if p.output in outputs}
    return with_layers(graph, fused_layers, {layer.output for layer in fused_layers.values()})


def _fuse_pool(convolution: Layer, pool: Layer) -> Layer:
    workload = fuse_pool(convolution.workload, pool.workload)
    assert workload is not None, "`find_choices` names no other"
    names = (*convolution.names, *pool.names)
    return replace(convolution, names=names, workload=workload, output=pool.output)


def _pairs(graph: IntegerGraph) -> list[tuple[Layer, Layer]]:
    """Return all pairs of a max-pool and the convolution that writes its input."""
    writers = {layer.output: layer for layer in graph.layers}
    return [
        (layer, writers[layer.data])
        for layer in graph.layers
        if layer.workload.operator == "max_pool"
        and layer.data in writers
        and writers[layer.data].workload.operator == "conv2d"
    ]


def _reason(graph: IntegerGraph, pool: Layer, convolution: Layer) -> str:
    """Return why a max-pool and the convolution before it cannot be fused.

    Args:
        graph: the network.
        pool: the max-pool.
        convolution: the convolution that writes its input.

    Returns:
        The reason, "" if they can be fused.
    """
    if not is_read_once(graph, {convolution.output}):
        return f"the result of {convolution.name} is read by other operators, too"
    if not leaves_room(convolution):
        return f"the sums of {convolution.name} may overflow when its bias is added"
    if fuse_pool(convolution.workload, pool.workload) is None:
        return f"the largest sum of {convolution.name} may not give its largest result"
    return ""
