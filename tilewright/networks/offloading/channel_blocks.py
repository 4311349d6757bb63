"""Rewrites layers so that they fill an accelerator's blocks of channels.

A rewritten layer computes exactly the same values: the additional channels are zero, and so is
every weight that a rewrite adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.core.errors import WorkloadError
from tilewright.targets.capabilities import Blocks
from tilewright.targets.im2col import Unfold
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.workload import Workload

Cost = Callable[[Workload, Unfold | None], float]
"""Function that returns the cost of a layer whose channels are padded to whole blocks. Its
arguments are the workload and how its data are unfolded (im2col), if at all. The cost is infinite
if the accelerator cannot run the layer."""


def pad_to_blocks(workload: Workload, blocks: Blocks) -> Workload:
    """Pad the batch and the channels of a workload to whole blocks.

    Groups of a grouped convolution that are narrower than a block share a block. Padding therefore
    adds groups rather than channels per group.

    Args:
        workload: the workload.
        blocks: block sizes of the accelerator.
    """
    w = workload
    batch = _round_up(w.batch, blocks.batch)
    if w.groups == 1 and w.operator != "max_pool":
        whole = replace(
            w,
            batch=batch,
            in_channels=_round_up(w.in_channels, blocks.in_channels),
            out_channels=_round_up(w.out_channels, blocks.out_channels),
        )
        return whole.with_patterns(*_padded_shortcut(w.shortcut, blocks))
    group_in, group_out = w.in_channels // w.groups, w.out_channels // w.groups
    groups = _round_up(w.groups, groups_together(w, blocks))
    return replace(
        w, batch=batch, groups=groups, in_channels=groups * group_in,
        out_channels=groups * group_out,
    )  # fmt: skip


def _padded_shortcut(shortcut: Shortcut | None, blocks: Blocks) -> tuple[Shortcut, ...]:
    if shortcut is None:
        return ()
    return (replace(shortcut, in_channels=_round_up(shortcut.in_channels, blocks.in_channels)),)


def groups_together(workload: Workload, blocks: Blocks) -> int:
    """Return the number of neighbouring groups of a grouped convolution that share blocks.

    This is the smallest number of groups whose channels fill whole blocks, or all groups if there
    are fewer. Weights between different groups are zero.

    Args:
        workload: the grouped convolution.
        blocks: block sizes of the accelerator.
    """
    group_in = workload.in_channels // workload.groups
    group_out = workload.out_channels // workload.groups
    whole = math.lcm(
        blocks.in_channels // math.gcd(group_in, blocks.in_channels),
        blocks.out_channels // math.gcd(group_out, blocks.out_channels),
    )
    return min(whole, workload.groups)


def iterations(workload: Workload, blocks: Blocks) -> int:
    """Return the number of block multiplications that a workload takes after padding.

    Args:
        workload: the workload. For a max-pool, the result is 0.
        blocks: block sizes of the accelerator.
    """
    w = pad_to_blocks(workload, blocks)
    if w.operator == "max_pool":
        return 0
    merged = w.groups // groups_together(w, blocks)
    return (
        w.batch // blocks.batch * w.out_height * w.out_width * w.kernel_h * w.kernel_w * merged
        * -(-w.in_channels // merged // blocks.in_channels)
        * -(-w.out_channels // merged // blocks.out_channels)
    )  # fmt: skip


def wasted_share(workload: Workload, blocks: Blocks) -> float:
    """Return the fraction of a workload's multiplications that are with zeros.

    The zeros come from padding channels to whole blocks, and from weights between different groups.

    Args:
        workload: the workload.
        blocks: block sizes of the accelerator.
    """
    macs = blocks.batch * blocks.in_channels * blocks.out_channels * iterations(workload, blocks)
    return 1 - workload.macs / macs if macs else 0.0


def image_bytes(workload: Workload, blocks: Blocks) -> int:
    """Return the size in bytes of a workload's int8 input image, packed into blocks."""
    w = pad_to_blocks(workload, blocks)
    return w.batch * w.in_channels * w.height * w.width


def best_unfold(workload: Workload, blocks: Blocks, cost: Cost | None = None) -> Unfold | None:
    """Find the cheapest way to unfold the image of a convolution with few input channels.

    Such a convolution does not fill a block of input channels. The host packs its image into blocks
    anyway, and can meanwhile rearrange patches of pixels into channels. In each direction, the
    patch sizes that are tried are the multiples of the stride below the kernel size, and the kernel
    size itself. They include space-to-depth and im2col.

    Args:
        workload: the convolution.
        blocks: block sizes of the accelerator.
        cost: cost of the layer and of rearranging its image. The default is the number of block
            multiplications plus the bytes of the packed image, since a small CPU packs about one
            byte in the time of one block multiplication. Equal costs are ordered by these bytes.

    Returns:
        The cheapest unfolding, or None if padding the channels is cheaper.
    """
    w = workload
    if w.operator != "conv2d" or w.groups > 1 or w.in_channels >= blocks.in_channels:
        return None

    def judged(unfold: Unfold | None) -> tuple[float, int]:
        written = w if unfold is None else unfold.workload(w)
        ready = pad_to_blocks(written, blocks)
        size = image_bytes(written, blocks)
        taken = iterations(written, blocks) + size if cost is None else cost(ready, unfold)
        return taken, size

    return min([None, *_unfolds(w)], key=judged)


def _unfolds(workload: Workload) -> Iterator[Unfold]:
    """Yield all ways to unfold the image of a convolution, that is, to move patches into channels.

    Args:
        workload: the convolution. If it is dilated, nothing is yielded.
    """
    w = workload
    for rows in _patches(w.kernel_h, w.stride_h):
        for cols in _patches(w.kernel_w, w.stride_w):
            try:
                yield Unfold.for_patches(w, rows, cols)
            except WorkloadError:  # a dilated convolution cannot be unfolded
                return


def _patches(kernel: int, stride: int) -> list[int]:
    """Return the patch sizes to try along one direction of a convolution.

    Args:
        kernel: kernel size along the direction.
        stride: stride along the direction.

    Returns:
        The multiples of the stride below the kernel size, and the kernel size.
    """
    return [*range(stride, kernel, stride), kernel]


def _round_up(size: int, block: int) -> int:
    return -(-size // block) * block
