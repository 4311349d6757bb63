"""Fuse global average pools with the convolution before them, or keep them as separate layers.

In the fused layer, the averaging happens in the accumulators. A separate average pool is a
depthwise convolution: it multiplies each pixel by a block of weights that is zero except for the
diagonal, and loads one such block per pixel and block of channels. An average pool over
concatenated tensors is split into one average pool per tensor, whose results are concatenated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.core.errors import WorkloadError
from tilewright.networks.fusion.activations import is_cut_further
from tilewright.networks.fusion.candidates import (
    FusionChoice,
    Refused,
    is_cut,
    is_read_once,
    split_candidates,
    unused_name,
    with_layers,
    with_steps,
)
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer.reference import is_image_of
from tilewright.targets.integer_reference import average_weights
from tilewright.targets.layer import ChannelSlice, Layer
from tilewright.targets.patterns.average import Average
from tilewright.targets.workload import Workload


def find_choices(graph: IntegerGraph) -> tuple[list[FusionChoice], list[Refused]]:
    """Return the global average pools that can be fused with a convolution, and those that cannot.

    Args:
        graph: a network in which `in_parts` has split average pools over concatenated tensors.

    Returns:
        The possible fusions, and the pools that cannot be fused, with reasons.
    """
    _, whole = _split_averages(graph)
    choices_found, refused = split_candidates(
        "average",
        ((average.name, (before.output, average.output), _reason(graph, average, before))
         for average, before in _pairs(graph)),
    )  # fmt: skip
    return choices_found, refused + whole


def fuse_averages(graph: IntegerGraph, outputs: Collection[str]) -> IntegerGraph:
    """Fuse global average pools with the convolutions before them.

    Args:
        graph: the network.
        outputs: names of the tensors that these average pools write.
    """
    fused_layers = {c.output: _fuse_average(c, a) for a, c in _pairs(graph) if a.output in outputs}
    return with_layers(graph, fused_layers, {layer.output for layer in fused_layers.values()})


def in_parts(graph: IntegerGraph) -> IntegerGraph:
    """Split each global average pool over concatenated tensors into one average pool per tensor.

    The results of the new average pools are concatenated instead.
    """
    return _split_averages(graph)[0]


def _split_averages(graph: IntegerGraph) -> tuple[IntegerGraph, list[Refused]]:
    """Split global average pools over concatenated tensors, like `in_parts`.

    Average pools with smaller windows, and those over a single tensor, stay as they are.

    Returns:
        The network after the splits, and the global average pools over concatenated tensors that
        cannot be split, with reasons.
    """
    refused: list[Refused] = []
    for average in graph.layers:
        inside = _parts_of_tensor(graph, average.data)
        if not _is_global(average.workload) or len(inside) < 2:
            continue
        if reason := _why_whole(graph, average, inside):
            refused.append(Refused("average", average.name, reason))
        else:
            graph = _split_average(graph, average, inside)
    return graph, refused


def _parts_of_tensor(graph: IntegerGraph, name: str) -> dict[str, int]:
    """Find all tensors that are ranges of channels of a given tensor.

    Args:
        graph: the network.
        name: name of the given tensor.

    Returns:
        Index of each tensor's first channel in the given tensor, by tensor name. The given tensor
        is included, with index 0.
    """
    first_channels, waiting = {name: 0}, [name]
    while waiting:
        whole = waiting.pop()
        for channel_slice in graph.slices:
            if channel_slice.whole == whole and channel_slice.part not in first_channels:
                first_channels[channel_slice.part] = first_channels[whole] + channel_slice.first
                waiting.append(channel_slice.part)
    return first_channels


def _why_whole(graph: IntegerGraph, average: Layer, inside: Mapping[str, int]) -> str:
    """Return why an average pool over concatenated tensors cannot be split, "" if it can be split.

    Args:
        graph: the network.
        average: the average pool.
        inside: the tensors that are slices of its input, each with its first channel.
    """
    written = [layer.workload.out_channels for layer in graph.layers if layer.output in inside]
    if sum(written) != average.workload.out_channels:
        return "the values that are joined are not written by layers"
    if not is_read_once(graph, inside):
        return "the joined tensor is read by other operators, too"
    if average.unfold is not None or average.weight is None:
        return f"the weights of {average.name} are not those of an average"
    return "its results are clipped to less than eight bits" if is_cut_further(average) else ""


def _parts(graph: IntegerGraph, average: Layer, inside: Mapping[str, int]) -> list[Layer]:
    """Return the average pools that together replace an average pool over concatenated tensors.

    Each of them reads the channels that one layer writes.

    Args:
        graph: the network.
        average: the average pool.
        inside: the tensors that are slices of its input, each with its first channel.

    Returns:
        The average pools in the order of their channels.
    """
    writers = {inside[layer.output]: layer for layer in graph.layers if layer.output in inside}
    return [
        _of_channels(
            average, writers[first], first, unused_name(graph, f"{average.output} {place}")
        )
        for place, first in enumerate(sorted(writers))
    ]


def _of_channels(average: Layer, writer: Layer, first: int, output: str) -> Layer:
    """Return the part of an average pool that reads only the channels that one layer writes.

    Args:
        average: the average pool over a concatenated tensor.
        writer: the layer that writes the channels.
        first: index of the first of these channels in the concatenated tensor.
        output: name of the tensor that the new average pool writes.
    """
    count, w = writer.workload.out_channels, average.workload
    channels = slice(first, first + count)
    return replace(
        average,
        name=f"{average.name} of {writer.name}",
        workload=replace(w, groups=count, in_channels=count, out_channels=count),
        data=writer.output,
        output=output,
        weight=None if average.weight is None else average.weight[channels],
        bias=None if average.bias is None else average.bias[channels],
        shifts=None if average.shifts is None else average.shifts[channels],
        macs=average.macs * count // w.out_channels,
    )


def _split_average(graph: IntegerGraph, average: Layer, inside: Mapping[str, int]) -> IntegerGraph:
    """Replace an average pool over concatenated tensors by one average pool per tensor.

    There is one new average pool per layer that writes a part of the input. The results of the new
    average pools are concatenated; their inputs no longer are.

    Args:
        graph: the network.
        average: the average pool.
        inside: the pool's input and all tensors that are slices of it, each with its first channel
            in the input. It is the result of `_parts_of_tensor`.
    """
    parts, whole = _parts(graph, average, inside), graph.values[average.output]
    new = [
        replace(whole, name=part.output, shape=(whole.shape[0], part.workload.out_channels, 1, 1))
        for part in parts
    ]
    slices = [item for item in graph.slices if item.whole not in inside]
    slices += [ChannelSlice(part.output, whole.name, inside[part.data]) for part in parts]
    steps = [item for step in graph.steps for item in (parts if step is average else [step])]
    return with_steps(replace(graph, slices=tuple(slices)), steps, new)


def _pairs(graph: IntegerGraph) -> list[tuple[Layer, Layer]]:
    """Return all pairs of a global average pool and the convolution that writes its input.

    A global average pool is a depthwise convolution whose window is the whole image.
    """
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


def _fuse_average(convolution: Layer, average: Layer) -> Layer:
    """Return the layer that computes a convolution and the global average pool after it.

    Args:
        convolution: the convolution.
        average: the average pool that reads the convolution's result.

    Raises:
        WorkloadError: no single workload can compute both.
    """
    return replace(
        convolution,
        names=(*convolution.names, *average.names),
        workload=_join_workloads(convolution.workload, average.workload),
        output=average.output,
        macs=convolution.macs + average.macs,
    )


def _join_workloads(convolution: Workload, average: Workload) -> Workload:
    """Return one workload that computes a convolution and the average pool after it.

    Args:
        convolution: workload of the convolution.
        average: workload of the average pool.

    Raises:
        WorkloadError: no single workload can compute both.
    """
    return convolution.with_patterns(Average(average.height, average.width, average.epilogue))


def _reason(graph: IntegerGraph, average: Layer, convolution: Layer) -> str:
    """Return why a global average pool and the convolution before it cannot be fused.

    Args:
        graph: the network.
        average: the average pool.
        convolution: the convolution that writes its input.

    Returns:
        The reason, "" if they can be fused.
    """
    if not is_read_once(graph, {convolution.output}):
        return f"the result of {convolution.name} is read by other operators, too"
    taps, _ = average_weights(average.workload.height, average.workload.width)
    if average.unfold is not None or average.weight is None or (average.weight != taps).any():
        return f"the weights of {average.name} are not those of an average"
    if not is_cut(convolution.workload):
        return f"the result of {convolution.name} is not clipped to eight bits"
    if not is_image_of(convolution, graph.values[convolution.data].shape):
        return "rows of channels are not an image"
    try:
        _join_workloads(convolution.workload, average.workload)
    except WorkloadError as error:
        return str(error)
    return ""
