"""Decides which max-pools are computed on the sums of the convolution before them, where that is
faster, and fuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.channel_blocks import pad_to_blocks
from tilewright.targets.epilogue import NEAR_BIAS
from tilewright.targets.layer import Layer
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.workload import Workload, canonical

_MONOTONE = {"bias", "offset", "shr", "shr_channel", "shr_even", "min", "max"}
_CLIPS = {"min", "max"}
_SUMS = 1 << 31


def pool_where_faster(
    convolution: Workload, pool: Workload, accelerator: Accelerator
) -> Workload | None:
    """The convolution with its max-pool in it; None where the two are no such pair or the
    accelerator is done sooner with one after the other."""
    both = together(convolution, pool)
    if both is None:
        return None
    try:
        one = accelerator.estimated(_tuned(both, accelerator))
        alone = accelerator.estimated(_tuned(convolution, accelerator))
    except WorkloadError:
        return None
    if one is None or alone is None:
        return None
    try:
        then = accelerator.estimated(_tuned(pool, accelerator))
    except WorkloadError:  # by itself the pool, and its image, would be the CPU's
        return both
    return both if then is not None and one < alone + then else None


def together(convolution: Workload, pool: Workload) -> Workload | None:
    """Both in one, if that computes the same, whatever it takes; else None."""
    sums = (convolution.sums_height, convolution.sums_width)
    fits = (
        convolution.operator == "conv2d" and pool.operator == "max_pool"
        and sums == (pool.height, pool.width) and (pool.dilation_h, pool.dilation_w) == (1, 1)
    )  # fmt: skip
    if not fits or convolution.pool is not None or not _keeps_order(convolution):
        return None
    window = Pool(
        pool.kernel_h, pool.kernel_w, pool.stride_h, pool.stride_w, pool.pad_top, pool.pad_left,
        pool.pad_bottom, pool.pad_right,
    )  # fmt: skip
    return convolution.with_patterns(window).with_steps((*convolution.epilogue, *pool.epilogue))


def _keeps_order(w: Workload) -> bool:
    """Whether of two sums of a channel the larger gives the larger result, or the same: no step
    turns them round, no sum overflows, and what is stored has been clipped to eight bits."""
    kinds = [op.kind for op in w.epilogue]
    behind = [op for place, op in enumerate(w.epilogue) if set(kinds[place:]) <= _CLIPS]
    high = min((op.value for op in behind if op.kind == "min"), default=128)
    low = max((op.value for op in behind if op.kind == "max"), default=-129)
    products = (w.in_channels // w.groups * w.kernel_h * w.kernel_w) << 14
    offsets = sum(abs(op.value) for op in w.epilogue if op.kind == "offset")
    return (
        set(kinds) <= _MONOTONE
        and -128 <= low <= 127
        and -128 <= high <= 127
        and products + offsets + NEAR_BIAS < _SUMS
    )


def _tuned(workload: Workload, accelerator: Accelerator) -> Workload:
    """As it is tuned: what is decided for a network in floats holds for the same in integers."""
    return canonical(pad_to_blocks(accelerator.form(workload), accelerator.blocks))


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
