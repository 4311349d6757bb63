"""Fuses global averages with a convolution's accumulators, or makes them layers of their own.

A layer of its own multiplies each pixel by a block of weights that are zero but for a tap on the
diagonal. It reads one such block for each pixel and block of channels. The average of tensors that
lie side by side is the averages of each, side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.core.errors import WorkloadError
from tilewright.networks.fusion.activations import is_cut_further
from tilewright.networks.fusion.candidates import (
    FusionChoice,
    Refused,
    divided,
    is_cut,
    is_read_once,
    unused,
    with_layers,
    with_steps,
)
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer.reference import is_image_of
from tilewright.targets.integer_reference import average_weights
from tilewright.targets.layer import ChannelSlice, Layer
from tilewright.targets.patterns.average import Average
from tilewright.targets.workload import Workload


def offered(graph: IntegerGraph) -> tuple[list[FusionChoice], list[Refused]]:
    """The global averages that could be taken of a convolution's accumulators, and those that could
    not, of a network that has them `in_parts`."""
    _, whole = _divided(graph)
    found, refused = divided(
        "average",
        ((average.name, (before.output, average.output), _reason(graph, average, before))
         for average, before in _pairs(graph)),
    )  # fmt: skip
    return found, refused + whole


def merged(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """With the averages that write these tensors in the convolutions before them."""
    made = {c.output: _averaged(c, each) for each, c in _pairs(graph) if each.output in outputs}
    return with_layers(graph, made, {layer.output for layer in made.values()})


def in_parts(graph: IntegerGraph) -> IntegerGraph:
    """With an average for each layer that writes a part of what lies side by side, in the place of
    one of all."""
    return _divided(graph)[0]


def _divided(graph: IntegerGraph) -> tuple[IntegerGraph, list[Refused]]:
    """As `in_parts`, and the averages of what lies side by side that stay one."""
    refused: list[Refused] = []
    for average in graph.layers:
        inside = _inside(graph, average.data)
        if not _is_global(average.workload) or len(inside) < 2:
            continue
        if reason := _why_whole(graph, average, inside):
            refused.append(Refused("average", average.name, reason))
        else:
            graph = _each(graph, average, inside)
    return graph, refused


def _inside(graph: IntegerGraph, name: str) -> dict[str, int]:
    """A tensor and all that lie inside it, each with the channel from which it does."""
    found, waiting = {name: 0}, [name]
    while waiting:
        whole = waiting.pop()
        for each in graph.slices:
            if each.whole == whole and each.part not in found:
                found[each.part] = found[whole] + each.first
                waiting.append(each.part)
    return found


def _why_whole(graph: IntegerGraph, average: Layer, inside: Mapping[str, int]) -> str:
    """Why an average of tensors side by side stays one layer; empty if it need not."""
    written = [each.workload.out_channels for each in graph.layers if each.output in inside]
    if sum(written) != average.workload.out_channels:
        return "what lies side by side is not what layers write"
    if not is_read_once(graph, inside):
        return "what lies side by side is read elsewhere, too"
    if average.unfold is not None or average.weight is None:
        return f"the weights of {average.name} are those of no average"
    return "its results are cut further than to eight bits" if is_cut_further(average) else ""


def _parts(graph: IntegerGraph, average: Layer, inside: Mapping[str, int]) -> list[Layer]:
    """The averages of what layers write inside a tensor, in the order of channels."""
    writers = {inside[each.output]: each for each in graph.layers if each.output in inside}
    return [
        _of_channels(average, writers[first], first, unused(graph, f"{average.output} {place}"))
        for place, first in enumerate(sorted(writers))
    ]


def _of_channels(average: Layer, writer: Layer, first: int, output: str) -> Layer:
    """The average of what a layer writes, which are the channels from `first` on."""
    count, w = writer.workload.out_channels, average.workload
    own = slice(first, first + count)
    return replace(
        average,
        name=f"{average.name} of {writer.name}",
        workload=replace(w, groups=count, in_channels=count, out_channels=count),
        data=writer.output,
        output=output,
        weight=None if average.weight is None else average.weight[own],
        bias=None if average.bias is None else average.bias[own],
        shifts=None if average.shifts is None else average.shifts[own],
        macs=average.macs * count // w.out_channels,
    )


def _each(graph: IntegerGraph, average: Layer, inside: Mapping[str, int]) -> IntegerGraph:
    """With an average of each part: their results lie side by side, what they read does not."""
    parts, whole = _parts(graph, average, inside), graph.values[average.output]
    new = [
        replace(whole, name=part.output, shape=(whole.shape[0], part.workload.out_channels, 1, 1))
        for part in parts
    ]
    slices = [each for each in graph.slices if each.whole not in inside]
    slices += [ChannelSlice(part.output, whole.name, inside[part.data]) for part in parts]
    steps = [each for step in graph.steps for each in (parts if step is average else [step])]
    return with_steps(replace(graph, slices=tuple(slices)), steps, new)


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
    return convolution.with_patterns(Average(average.height, average.width, average.epilogue))


def _reason(graph: IntegerGraph, average: Layer, convolution: Layer) -> str:
    """Why the two cannot be one; empty if they can."""
    if not is_read_once(graph, {convolution.output}):
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
