"""Fuse projection shortcuts with the last convolution of their block, or keep them separate.

A projection shortcut is the 1×1 convolution on the shortcut branch of a residual block. Without
fusion, the last convolution of the block adds the shortcut's int8 result, shifted left. In the
fused layer, the accumulators first compute the shortcut: its products, bias, shift, clips and left
shift. The products of the last convolution are then added to them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.core.errors import WorkloadError
from tilewright.networks.fusion.candidates import (
    FusionChoice,
    Refused,
    is_cut,
    is_read_once,
    split_candidates,
    with_layers,
)
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer.reference import is_image_of
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.layer import Layer, LayerShortcut
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.workload import Workload

_ADDED = {"bias", "offset"}
"""Epilogue steps that can be exchanged with the addition of a residual without changing the
result."""


def find_choices(graph: IntegerGraph) -> tuple[list[FusionChoice], list[Refused]]:
    """Return the projection shortcuts that can be fused with the last convolution of their block.

    A projection shortcut is the 1×1 convolution on the shortcut branch of a residual block.

    Returns:
        The possible fusions, and the shortcuts that cannot be fused, with reasons.
    """
    return split_candidates(
        "shortcut",
        ((shortcut.name, (shortcut.output, last.output), _reason(graph, shortcut, last))
         for shortcut, last in _pairs(graph)),
    )  # fmt: skip


def fuse_shortcuts(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """Fuse projection shortcuts with the last convolutions of their blocks.

    Args:
        graph: the network.
        outputs: names of the tensors that the last convolutions of the blocks write.
    """
    pairs = [(first, last) for first, last in _pairs(graph) if last.output in outputs]
    fused_layers = {last.output: _fuse_shortcut(first, last) for first, last in pairs}
    return with_layers(graph, fused_layers, {first.output for first, _ in pairs})


def _pairs(graph: IntegerGraph) -> list[tuple[Layer, Layer]]:
    """Return all pairs of a convolution and a later convolution that adds its result."""
    writers = {layer.output: layer for layer in graph.layers}
    return [
        (writers[layer.residual], layer)
        for layer in graph.layers
        if layer.residual in writers
        and layer.workload.operator == writers[layer.residual].workload.operator == "conv2d"
        and writers[layer.residual].residual is None
    ]


def _fuse_shortcut(shortcut: Layer, last: Layer) -> Layer:
    assert shortcut.weight is not None
    return replace(
        last,
        names=(*shortcut.names, *last.names),
        workload=_join_workloads(shortcut.workload, last.workload),
        residual=None,
        shortcut=LayerShortcut(shortcut.data, shortcut.weight, shortcut.bias, shortcut.shifts),
        macs=shortcut.macs + last.macs,
    )


def _join_workloads(shortcut: Workload, last: Workload) -> Workload:
    """Return one workload for a projection shortcut and the last convolution of its block.

    Args:
        shortcut: workload of the 1×1 convolution on the shortcut branch.
        last: workload of the convolution that adds its result.

    Raises:
        WorkloadError: no single workload can compute both.
    """
    scale = next(op.value for op in last.epilogue if op.kind == "residual")
    shifted = (EpilogueOp("shl", scale),) if scale else ()
    pattern = Shortcut(
        shortcut.in_channels, shortcut.height, shortcut.width, shortcut.stride_h,
        shortcut.stride_w, (*shortcut.epilogue, *shifted),
    )  # fmt: skip
    remaining_ops = tuple(op for op in last.epilogue if op.kind != "residual")
    return last.with_steps(remaining_ops).with_patterns(pattern)


def _reason(graph: IntegerGraph, shortcut: Layer, last: Layer) -> str:
    """Return why a projection shortcut and the last convolution of its block cannot be fused.

    Args:
        graph: the network.
        shortcut: the 1×1 convolution on the shortcut branch.
        last: the convolution that adds its result.

    Returns:
        The reason, "" if they can be fused.
    """
    w = shortcut.workload
    if not is_read_once(graph, {shortcut.output}):
        return f"the result of {shortcut.name} is read by other operators, too"
    if any(layer.weight is None or layer.unfold is not None for layer in (shortcut, last)):
        return "the input of one of the two is rearranged for it, or its weights are not constant"
    if (w.kernel_h, w.kernel_w, w.groups) != (1, 1, 1) or w.pool is not None:
        return f"{shortcut.name} is not a 1×1 convolution"
    if max(w.pad_top, w.pad_left, w.pad_bottom, w.pad_right):
        return f"{shortcut.name} pads its input"
    if not all(is_image_of(layer, graph.values[layer.data].shape) for layer in (shortcut, last)):
        return "rows of channels are not an image"
    if not is_cut(w):
        return f"the result of {shortcut.name} is not clipped to eight bits"
    kinds = [op.kind for op in last.workload.epilogue]
    if "residual" not in kinds:
        return f"{last.name} adds it multiplied by a number that is not a power of two"
    if not set(kinds[: kinds.index("residual")]) <= _ADDED:
        return f"the sums of {last.name} are shifted or clipped before it is added"
    try:
        _join_workloads(w, last.workload)
    except WorkloadError as error:
        return str(error)
    return ""
