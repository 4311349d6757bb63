"""Fuses max-pools into the accumulators of the preceding convolution where this is faster."""

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
_SUMS = 1 << 31  # accumulators are int32


def pool_where_faster(
    convolution: Workload, pool: Workload, accelerator: Accelerator
) -> Workload | None:
    """Return a convolution with its max-pool fused, if this is possible and faster.

    Args:
        convolution: workload of the convolution.
        pool: workload of the max-pool that reads its result.
        accelerator: the accelerator.

    Returns:
        The fused workload. None if the two cannot be fused, if the accelerator has no estimate, or
        if two separate layers are faster.
    """
    both = fuse_pool(convolution, pool)
    if both is None:
        return None
    try:
        one = accelerator.estimate_call(_tuned_form(both, accelerator))
        alone = accelerator.estimate_call(_tuned_form(convolution, accelerator))
    except WorkloadError:
        return None
    if one is None or alone is None:
        return None
    try:
        then = accelerator.estimate_call(_tuned_form(pool, accelerator))
    except WorkloadError:  # a separate pool would have to run on the CPU
        return both
    return both if then is not None and one < alone + then else None


def fuse_pool(convolution: Workload, pool: Workload) -> Workload | None:
    """Return a convolution with its max-pool fused, or None if the result would differ.

    The function does not consider whether the fused workload is faster.

    Args:
        convolution: workload of the convolution.
        pool: workload of the max-pool.
    """
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
    """Return whether a larger accumulator never gives a smaller result in a layer's epilogue.

    The maximum of a pool can then be computed on the accumulators. This requires that no operation
    reverses the order, that no accumulator overflows, and that the stored result is clipped to
    int8.

    Args:
        w: workload of the layer.
    """
    kinds = [op.kind for op in w.epilogue]
    behind = [op for place, op in enumerate(w.epilogue) if set(kinds[place:]) <= _CLIPS]
    high = min((op.value for op in behind if op.kind == "min"), default=128)
    low = max((op.value for op in behind if op.kind == "max"), default=-129)
    # The product of two int8 numbers is at most 2**14 in magnitude.
    products = (w.in_channels // w.groups * w.kernel_h * w.kernel_w) << 14
    offsets = sum(abs(op.value) for op in w.epilogue if op.kind == "offset")
    return (
        set(kinds) <= _MONOTONE
        and -128 <= low <= 127
        and -128 <= high <= 127
        and products + offsets + NEAR_BIAS < _SUMS
    )


def _tuned_form(workload: Workload, accelerator: Accelerator) -> Workload:
    """Return the form in which a workload is tuned: padded, and with standard epilogue constants.

    The form is equal for float and int8 networks.
    """
    return canonical(pad_to_blocks(accelerator.form(workload), accelerator.blocks))


PoolRule = Callable[[Workload, Workload], Workload | None]
"""Function that fuses the workload of a convolution with the workload of the max-pool after it. It
returns None if they are not fused."""


def with_pools(
    layers: Sequence[Layer],
    reads: Mapping[str, Collection[str]],
    results: Collection[str],
    rule: PoolRule,
) -> list[Layer]:
    """Fuse max-pool layers into the convolutions before them.

    A max-pool is fused if `rule` returns a workload and if no other layer reads the result of the
    convolution.

    Args:
        layers: the layers, in execution order.
        reads: names of the tensors from which each tensor is computed, by its name.
        results: names of the network's outputs.
        rule: function of the workloads of a convolution and a max-pool. It returns the fused
            workload, or None to keep the two separate.

    Returns:
        The layers after fusion, in execution order.
    """
    merged: list[Layer] = []
    for layer in layers:
        own = next((item for item in merged if item.output == layer.data), None)
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
    """Return whether the accumulators of a layer plus its bias cannot overflow 32 bits.

    If they could overflow, the maximum of the accumulators might not give the maximum of the stored
    values.
    """
    w = layer.workload
    # The product of two int8 numbers is at most 2**14 in magnitude.
    products = (w.in_channels // w.groups * w.kernel_h * w.kernel_w) << 14
    most = 0 if layer.bias is None else int(np.abs(layer.bias.astype(np.int64)).max(initial=0))
    return products + most < 1 << 31
