"""Sites → workloads for an accelerator of given block sizes, or the reason why one stays behind.

An accelerator multiplies blocks of `batch × block_in` by `block_in × block_out` numbers, so
channels are padded up to whole blocks. A site is offloaded where at most `max_waste` of its padded
multiplications would be by zeros: 1000 outputs or 24 channels are padded, a first layer with 3
channels of 16 is left to the CPU, as stock VTA flows do (`max_waste=1` pads it too). The batch
does not count in that decision: it is the same for every layer. A grouped convolution is `groups`
separate ones; a depthwise one has a single input channel a group and cannot fill a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from networks import int8
from networks.fused_calls import FusedCall
from networks.int8 import EpilogueMode
from targets.workload import Workload

MAX_WASTE = 0.5


@dataclass(frozen=True)
class Blocks:
    """The shape of the accelerator's matrix unit, in elements, and how workloads are written."""

    block_in: int
    block_out: int
    batch: int = 1
    epilogue: EpilogueMode = "plain"
    max_waste: float = MAX_WASTE


@dataclass(frozen=True)
class Decision:
    """What becomes of one site: `calls` calls of `workload`, or None and the reason.

    `waste` is the share of the padded multiply-accumulates that are by zeros.
    """

    site: FusedCall
    workload: Workload | None
    calls: int
    waste: float
    reason: str
    next_step: str = ""


class ExtractedWorkload(NamedTuple):
    """A workload, how often one inference calls it, and the operators that do."""

    workload: Workload
    calls: int
    names: tuple[str, ...]


def decide(site: FusedCall, blocks: Blocks) -> Decision:
    """Offload the site or leave it to the CPU."""
    group_in, group_out = _channels(site)
    channel_waste = 1 - group_in * group_out / (
        _up(group_in, blocks.block_in) * _up(group_out, blocks.block_out)
    )
    rows = _rows(site)
    waste = 1 - (1 - channel_waste) * rows / _up(rows, blocks.batch)
    if site.groups > 1 and group_in == 1:
        reason = (
            f"depthwise: each group has one input channel and cannot fill a block of "
            f"{blocks.block_in}"
        )
        return Decision(site, None, 0, waste, reason)
    if found := int8.obstacle(site):
        return Decision(site, None, 0, waste, *found)
    if channel_waste > blocks.max_waste:
        reason = (
            f"{group_in} → {group_out} channels fill {1 - channel_waste:.0%} of the "
            f"{blocks.block_in}×{blocks.block_out} blocks"
        )
        return Decision(site, None, 0, waste, reason, "raise max_waste to pad it all the same")
    return Decision(site, _workload(site, blocks), site.groups, waste, _remarks(site, blocks))


def collect(decisions: Iterable[Decision]) -> list[ExtractedWorkload]:
    """Equal workloads become one, in order of first appearance."""
    counts: dict[Workload, int] = {}
    names: dict[Workload, list[str]] = {}
    for decision in decisions:
        if decision.workload is not None:
            counts[decision.workload] = counts.get(decision.workload, 0) + decision.calls
            names.setdefault(decision.workload, []).append(decision.site.node)
    return [ExtractedWorkload(w, count, tuple(names[w])) for w, count in counts.items()]


def site_macs(site: FusedCall) -> int:
    """Multiply-accumulates of the site as the model has it, unpadded."""
    taps = math.prod(site.weight_shape[1:]) if site.operator == "conv2d" else site.weight_shape[0]
    return math.prod(site.output_shape) * taps


def _workload(site: FusedCall, blocks: Blocks) -> Workload:
    group_in, group_out = _channels(site)
    epilogue = int8.epilogue(site, blocks.epilogue)
    sizes = {
        "batch": _up(_rows(site), blocks.batch),
        "in_channels": _up(group_in, blocks.block_in),
        "out_channels": _up(group_out, blocks.block_out),
    }
    if site.operator == "dense":
        return Workload("dense", height=1, width=1, epilogue=epilogue, **sizes)
    top, left, bottom, right = site.padding
    return Workload(
        "conv2d",
        height=site.data_shape[2],
        width=site.data_shape[3],
        kernel_h=site.weight_shape[2],
        kernel_w=site.weight_shape[3],
        stride_h=site.strides[0],
        stride_w=site.strides[1],
        pad_top=top,
        pad_left=left,
        pad_bottom=bottom,
        pad_right=right,
        dilation_h=site.dilation[0],
        dilation_w=site.dilation[1],
        epilogue=epilogue,
        **sizes,
    )


def _remarks(site: FusedCall, blocks: Blocks) -> str:
    group_in, group_out = _channels(site)
    remarks = []
    if site.groups > 1:
        remarks.append(f"{site.groups} groups, one call each")
    for role, size, block in (
        ("input", group_in, blocks.block_in),
        ("output", group_out, blocks.block_out),
    ):
        if size % block:
            remarks.append(f"{size} {role} channels padded to {_up(size, block)}")
    if _rows(site) % blocks.batch:
        remarks.append(f"{_rows(site)} rows padded to {_up(_rows(site), blocks.batch)}")
    return "; ".join(remarks + int8.notes(site))


def _channels(site: FusedCall) -> tuple[int, int]:
    """Input and output channels of one group."""
    if site.operator == "dense":
        return site.weight_shape[0], site.weight_shape[1]
    return site.weight_shape[1], site.weight_shape[0] // site.groups


def _rows(site: FusedCall) -> int:
    """Images of a convolution, rows of a product."""
    return site.data_shape[0] if site.operator == "conv2d" else math.prod(site.data_shape[:-1])


def _up(size: int, block: int) -> int:
    return -(-size // block) * block
