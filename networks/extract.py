"""Fused calls → workloads for an accelerator of given block sizes, or why one stays behind.

An accelerator multiplies blocks of `batch × block_in` by `block_in × block_out` numbers, so
channels are padded up to whole blocks. A call is offloaded where at most `max_waste` of its padded
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
    """What becomes of one fused call: `calls` calls of `workload`, or None and the reason.

    `waste` is the share of the padded multiply-accumulates that are by zeros.
    """

    fused: FusedCall
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


def decide(call: FusedCall, blocks: Blocks) -> Decision:
    """Offload the call or leave it to the CPU."""
    group_in, group_out = _channels(call)
    channel_waste = 1 - group_in * group_out / (
        _up(group_in, blocks.block_in) * _up(group_out, blocks.block_out)
    )
    rows = _rows(call)
    waste = 1 - (1 - channel_waste) * rows / _up(rows, blocks.batch)
    if call.groups > 1 and group_in == 1:
        reason = (
            f"depthwise: each group has one input channel and cannot fill a block of "
            f"{blocks.block_in}"
        )
        return Decision(call, None, 0, waste, reason)
    if found := int8.obstacle(call):
        return Decision(call, None, 0, waste, *found)
    if channel_waste > blocks.max_waste:
        reason = (
            f"{group_in} → {group_out} channels fill {1 - channel_waste:.0%} of the "
            f"{blocks.block_in}×{blocks.block_out} blocks"
        )
        return Decision(call, None, 0, waste, reason, "raise max_waste to pad it all the same")
    return Decision(call, _workload(call, blocks), call.groups, waste, _remarks(call, blocks))


def collect(decisions: Iterable[Decision]) -> list[ExtractedWorkload]:
    """Equal workloads become one, in order of first appearance."""
    counts: dict[Workload, int] = {}
    names: dict[Workload, list[str]] = {}
    for decision in decisions:
        if decision.workload is not None:
            counts[decision.workload] = counts.get(decision.workload, 0) + decision.calls
            names.setdefault(decision.workload, []).append(decision.fused.node)
    return [ExtractedWorkload(w, count, tuple(names[w])) for w, count in counts.items()]


def macs_of(call: FusedCall) -> int:
    """Multiply-accumulates of the call as the model has it, unpadded."""
    taps = math.prod(call.weight_shape[1:]) if call.operator == "conv2d" else call.weight_shape[0]
    return math.prod(call.output_shape) * taps


def offloaded_macs(decisions: Iterable[Decision]) -> int:
    """Multiply-accumulates of the calls that are offloaded, unpadded."""
    return sum(macs_of(each.fused) for each in decisions if each.workload is not None)


def _workload(call: FusedCall, blocks: Blocks) -> Workload:
    group_in, group_out = _channels(call)
    epilogue = int8.epilogue(call, blocks.epilogue)
    sizes = {
        "batch": _up(_rows(call), blocks.batch),
        "in_channels": _up(group_in, blocks.block_in),
        "out_channels": _up(group_out, blocks.block_out),
    }
    if call.operator == "dense":
        return Workload("dense", height=1, width=1, epilogue=epilogue, **sizes)
    top, left, bottom, right = call.padding
    return Workload(
        "conv2d",
        height=call.data_shape[2],
        width=call.data_shape[3],
        kernel_h=call.weight_shape[2],
        kernel_w=call.weight_shape[3],
        stride_h=call.strides[0],
        stride_w=call.strides[1],
        pad_top=top,
        pad_left=left,
        pad_bottom=bottom,
        pad_right=right,
        dilation_h=call.dilation[0],
        dilation_w=call.dilation[1],
        epilogue=epilogue,
        **sizes,
    )


def _remarks(call: FusedCall, blocks: Blocks) -> str:
    group_in, group_out = _channels(call)
    remarks = []
    if call.groups > 1:
        remarks.append(f"{call.groups} groups, one call each")
    for role, size, block in (
        ("input", group_in, blocks.block_in),
        ("output", group_out, blocks.block_out),
    ):
        if size % block:
            remarks.append(f"{size} {role} channels padded to {_up(size, block)}")
    if _rows(call) % blocks.batch:
        remarks.append(f"{_rows(call)} rows padded to {_up(_rows(call), blocks.batch)}")
    return "; ".join(remarks + int8.notes(call))


def _channels(call: FusedCall) -> tuple[int, int]:
    """Input and output channels of one group."""
    if call.operator == "dense":
        return call.weight_shape[0], call.weight_shape[1]
    return call.weight_shape[1], call.weight_shape[0] // call.groups


def _rows(call: FusedCall) -> int:
    """Images of a convolution, rows of a product."""
    return call.data_shape[0] if call.operator == "conv2d" else math.prod(call.data_shape[:-1])


def _up(size: int, block: int) -> int:
    return -(-size // block) * block
