"""Global averages: of a convolution's results while they are accumulators, or layers of their own.

A layer of its own multiplies each pixel by a block of weights that are zero but for a tap on the
diagonal, and reads one a pixel and a block of channels.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from networks.fusion.choices import Choice, Refused, divided
from networks.fusion.edges import is_cut, is_read_once, with_steps
from networks.integer.graph import IntegerGraph, Step
from networks.integer.reference import is_image_of
from targets.averages import average_weights
from targets.errors import WorkloadError
from targets.layer import Layer
from targets.workload import Average, Workload


def offered(graph: IntegerGraph) -> tuple[list[Choice], list[Refused]]:
    """The global averages that could be taken of a convolution's accumulators, and those that could
    not."""
    return divided(
        "average",
        ((average.name, (before.output, average.output), _reason(graph, average, before))
         for average, before in _pairs(graph)),
    )  # fmt: skip


def merged(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """With the averages that write these tensors in the convolutions before them."""
    behind = {conv.output: each for each, conv in _pairs(graph) if each.output in outputs}
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, Layer) and step.output in behind:
            steps.append(_averaged(step, behind[step.output]))
        elif not any(step is average for average in behind.values()):
            steps.append(step)
    return with_steps(graph, steps)


def _pairs(graph: IntegerGraph) -> list[tuple[Layer, Layer]]:
    """Each layer of a window as large as its image, a channel by itself, with the convolution whose
    result it reads."""
    writers = {layer.output: layer for layer in graph.layers}
    return [
        (layer, writers[layer.data])
        for layer in graph.layers
        if _is_global(layer.workload)
        and layer.data in writers
        and writers[layer.data].workload.operator == "conv2d"
    ]


def _is_global(w: Workload) -> bool:
    return (
        w.operator == "conv2d"
        and w.groups == w.in_channels == w.out_channels
        and (w.kernel_h, w.kernel_w) == (w.height, w.width) != (1, 1)
        and (w.out_height, w.out_width) == (1, 1)
        and not max(w.pad_top, w.pad_left, w.pad_bottom, w.pad_right)
    )


def _averaged(convolution: Layer, average: Layer) -> Layer:
    return replace(
        convolution,
        names=(*convolution.names, *average.names),
        workload=_together(convolution.workload, average.workload),
        output=average.output,
        macs=convolution.macs + average.macs,
    )


def _together(convolution: Workload, average: Workload) -> Workload:
    """One workload for both. Raises `WorkloadError` where there is none."""
    own = Average(average.height, average.width, average.epilogue)
    return replace(convolution, average=own)


def _reason(graph: IntegerGraph, average: Layer, convolution: Layer) -> str:
    """Why the two cannot be one; empty if they can."""
    if not is_read_once(graph, convolution.output):
        return f"the result of {convolution.name} is read elsewhere, too"
    taps, _ = average_weights(average.workload.height, average.workload.width)
    if average.unfold is not None or average.weight is None or (average.weight != taps).any():
        return f"the weights of {average.name} are those of no average"
    if not is_cut(convolution.workload):
        return f"the result of {convolution.name} is not cut to eight bits"
    if not is_image_of(convolution, graph.values[convolution.data].shape):
        return "rows of channels are no image"
    try:
        _together(convolution.workload, average.workload)
    except WorkloadError as error:
        return str(error)
    return ""
