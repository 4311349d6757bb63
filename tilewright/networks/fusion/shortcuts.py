"""Fuses projection shortcuts with the last convolution of their block, or keeps them separate.

The block's last convolution adds the shortcut's result, cut to eight bits, times a power of two. In
the accumulators this is done first: the shortcut's products, bias, shift and clips, and a left
shift. The other convolution's products are added to that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.core.errors import WorkloadError
from tilewright.networks.fusion.candidates import (
    FusionChoice,
    Refused,
    divided,
    is_cut,
    is_read_once,
    with_layers,
)
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer.reference import is_image_of
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.layer import Layer, LayerShortcut
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.workload import Workload

_ADDED = {"bias", "offset"}
"""What may be added before or after a residual, as good as the other way round."""


def offered(graph: IntegerGraph) -> tuple[list[FusionChoice], list[Refused]]:
    """The shortcuts that could be summed with the last convolution of their block, and those that
    could not."""
    return divided(
        "shortcut",
        ((shortcut.name, (shortcut.output, last.output), _reason(graph, shortcut, last))
         for shortcut, last in _pairs(graph)),
    )  # fmt: skip


def merged(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """With the shortcuts in the convolutions that write these tensors."""
    pairs = [(first, last) for first, last in _pairs(graph) if last.output in outputs]
    made = {last.output: _summed(first, last) for first, last in pairs}
    return with_layers(graph, made, {first.output for first, _ in pairs})


def _pairs(graph: IntegerGraph) -> list[tuple[Layer, Layer]]:
    """Each convolution that adds the result of another one, behind that."""
    writers = {layer.output: layer for layer in graph.layers}
    return [
        (writers[layer.residual], layer)
        for layer in graph.layers
        if layer.residual in writers
        and layer.workload.operator == writers[layer.residual].workload.operator == "conv2d"
        and writers[layer.residual].residual is None
    ]


def _summed(shortcut: Layer, last: Layer) -> Layer:
    assert shortcut.weight is not None
    return replace(
        last,
        names=(*shortcut.names, *last.names),
        workload=_together(shortcut.workload, last.workload),
        residual=None,
        shortcut=LayerShortcut(shortcut.data, shortcut.weight, shortcut.bias, shortcut.shifts),
        macs=shortcut.macs + last.macs,
    )


def _together(shortcut: Workload, last: Workload) -> Workload:
    """One workload for both. Raises `WorkloadError` where there is none."""
    scale = next(op.value for op in last.epilogue if op.kind == "residual")
    shifted = (EpilogueOp("shl", scale),) if scale else ()
    own = Shortcut(
        shortcut.in_channels, shortcut.height, shortcut.width, shortcut.stride_h,
        shortcut.stride_w, (*shortcut.epilogue, *shifted),
    )  # fmt: skip
    left = tuple(op for op in last.epilogue if op.kind != "residual")
    return last.with_steps(left).with_patterns(own)


def _reason(graph: IntegerGraph, shortcut: Layer, last: Layer) -> str:
    """Why the two cannot be one; empty if they can."""
    w = shortcut.workload
    if not is_read_once(graph, {shortcut.output}):
        return f"the result of {shortcut.name} is read elsewhere, too"
    if any(layer.weight is None or layer.unfold is not None for layer in (shortcut, last)):
        return "what one of the two works on is rearranged for it, or no constant"
    if (w.kernel_h, w.kernel_w, w.groups) != (1, 1, 1) or w.pool is not None:
        return f"{shortcut.name} is no 1×1 convolution"
    if max(w.pad_top, w.pad_left, w.pad_bottom, w.pad_right):
        return f"{shortcut.name} pads its image"
    if not all(is_image_of(layer, graph.values[layer.data].shape) for layer in (shortcut, last)):
        return "rows of channels are no image"
    if not is_cut(w):
        return f"the result of {shortcut.name} is not cut to eight bits"
    kinds = [op.kind for op in last.workload.epilogue]
    if "residual" not in kinds:
        return f"{last.name} adds it times a number that is no power of two"
    if not set(kinds[: kinds.index("residual")]) <= _ADDED:
        return f"the sums of {last.name} are shifted or cut before it is added"
    try:
        _together(w, last.workload)
    except WorkloadError as error:
        return str(error)
    return ""
