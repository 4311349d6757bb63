"""Fuses max-pools into the layer before them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.targets.layer import Layer
from tilewright.targets.workload import Workload

PoolRule = Callable[[Workload, Workload], Workload | None]
"""Of a convolution and a max-pool, the workload of both in one, or None."""


def with_pools(
    layers: Sequence[Layer],
    reads: Mapping[str, Collection[str]],
    results: Collection[str],
    rule: PoolRule,
) -> list[Layer]:
    """The layers, in order, with each max-pool in the convolution before it that the rule puts
    there and nothing else reads. `reads` gives what each tensor is computed from, `results` are
    those of the network."""
    merged: list[Layer] = []
    for layer in layers:
        own = next((each for each in merged if each.output == layer.data), None)
        together = None
        if own is not None and layer.workload.operator == "max_pool":
            readers = [name for name, read in reads.items() if own.output in read]
            if readers == [layer.output] and own.output not in results and leaves_room(own):
                together = rule(own.workload, layer.workload)
        if own is None or together is None:
            merged.append(layer)
            continue
        merged[merged.index(own)] = replace(
            own, names=(*own.names, *layer.names), workload=together, output=layer.output
        )
    return merged


def leaves_room(layer: Layer) -> bool:
    """Whether its bias leaves room beside the sums: else they might overflow, and a maximum of them
    is not that of what follows."""
    w = layer.workload
    products = (w.in_channels // w.groups * w.kernel_h * w.kernel_w) << 14
    most = 0 if layer.bias is None else int(np.abs(layer.bias.astype(np.int64)).max(initial=0))
    return products + most < 1 << 31
