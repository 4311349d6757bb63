"""Merge layers that read the same tensor ("siblings") into one layer that loads the tensor once.

The merged layer writes the output channels of all siblings, one sibling after another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.fusion.candidates import FusionChoice, Refused, unused_name, with_steps
from tilewright.networks.integer.graph import IntegerGraph, Step
from tilewright.networks.integer.tensor_views import fit
from tilewright.networks.requantisation import shift_of_channels
from tilewright.targets.epilogue import NEAR_BIAS, EpilogueOp
from tilewright.targets.layer import ChannelSlice, Layer, Value, channel_axis
from tilewright.targets.workload import Workload

MOST = 5
"""Maximum number of layers that are merged. The number is small because every order of every subset
of the layers is checked."""
Array = NDArray[np.generic]
Stacked = Callable[..., Array]
_Key = tuple[str, Workload, tuple[EpilogueOp, ...]]


def find_choices(graph: IntegerGraph) -> tuple[list[FusionChoice], list[Refused]]:
    """Return the layers that can be merged with siblings, and those that cannot.

    Siblings are layers that read the same tensor.

    Returns:
        The possible fusions, one per layer, and the layers with siblings that cannot be merged,
        with reasons.
    """
    choices: list[FusionChoice] = []
    refused: list[Refused] = []
    trial = graph
    for layers in _groups(graph, {layer.output for layer in graph.layers}):
        members = list(layers)
        while len(members) > 1 and not _always_fit(trial, members):
            refused.append(
                Refused(
                    "siblings", members.pop().name,
                    "its channels cannot be next to those of its siblings and also where "
                    "they are joined",
                )
            )  # fmt: skip
        if len(members) < 2:
            continue
        trial = _replace_siblings(trial, members)
        choices += [
            FusionChoice("siblings", layer.name, (layer.output,), layer.data) for layer in members
        ]
    taken = {name for choice in choices for name in choice.layers}
    known = {candidate.name for candidate in refused}
    for layer in graph.layers:
        has_siblings = sum(candidate.data == layer.data for candidate in graph.layers) > 1
        if has_siblings and layer.output not in taken and layer.name not in known:
            refused.append(Refused("siblings", layer.name, _why_alone(layer)))
    return choices, refused


def merge_siblings(graph: IntegerGraph, names: Collection[str]) -> IntegerGraph:
    """Merge layers that read the same tensor ("siblings") into one layer.

    Layers that are fused with an average pool are not merged if no order of their channels fits
    into memory.

    Args:
        graph: the network.
        names: names of the layers to merge. A layer stays separate if it cannot be merged with any
            other named layer.
    """
    outputs = {layer.output for layer in graph.layers if layer.name in names}
    for layers in _groups(graph, outputs):
        if layers[0].workload.average is None or _order(graph, layers) is not None:
            graph = _replace_siblings(graph, layers)
    return graph


def _groups(graph: IntegerGraph, outputs: Collection[str]) -> list[list[Layer]]:
    """Group layers that can be merged because they read the same tensor in the same way.

    The layers of a group differ only in what is separate for each output channel: weights, biases
    and shifts.

    Args:
        graph: the network.
        outputs: names of the tensors that the layers in question write.

    Returns:
        Groups of two to `MOST` layers.
    """
    by_key: dict[_Key, list[Layer]] = {}
    for layer in graph.layers:
        if layer.output in outputs and _can_join(layer):
            key = layer.data, replace(layer.workload, out_channels=1).with_steps(()), _clips(layer)
            by_key.setdefault(key, []).append(layer)
    return [group[k : k + MOST] for group in by_key.values() for k in range(0, len(group), MOST)
            if len(group[k : k + MOST]) > 1]  # fmt: skip


def _can_join(layer: Layer) -> bool:
    kinds = {op.kind for op in layer.workload.epilogue}
    return (
        layer.weight is not None
        and layer.unfold is None
        and layer.residual is None
        and layer.shortcut is None
        and layer.workload.groups == 1
        and kinds <= {"bias", "offset", "shr", "shr_channel", "min", "max"}
    )


def _why_alone(layer: Layer) -> str:
    """Return why a layer cannot be merged with the other layers that read the same tensor.

    The reason is a clause for the report on fusions.
    """
    if layer.weight is None:
        return "it has no weights of its own"
    if layer.unfold is not None:
        return "its input is rearranged for it alone"
    if layer.residual is not None or layer.shortcut is not None:
        return "a tensor is added to its sums"
    if layer.workload.groups > 1:
        return "its channels are not contiguous"
    return "no other convolution reads the same windows and clips its results in the same way"


def _clips(layer: Layer) -> tuple[EpilogueOp, ...]:
    return tuple(op for op in layer.workload.epilogue if op.kind in ("min", "max"))


def _always_fit(graph: IntegerGraph, layers: Sequence[Layer]) -> bool:
    """Return whether the outputs of every subset of two or more layers fit into one tensor.

    Args:
        graph: the network.
        layers: layers that read the same tensor.
    """
    return all(
        _order(graph, some) is not None
        for count in range(2, len(layers) + 1) for some in combinations(layers, count)
    )  # fmt: skip


def _order(graph: IntegerGraph, layers: Iterable[Layer]) -> Sequence[Layer] | None:
    """Return an order of layers in which their output channels can be adjacent in one tensor.

    Args:
        graph: the network.
        layers: layers that read the same tensor.

    Returns:
        The first order for which every tensor of the network still has one consistent position in
        memory; None if there is none.
    """
    for order in permutations(layers):
        whole, slices = _merged_output(graph, order)
        shapes = {name: value.shape for name, value in graph.values.items()}
        written = {layer.output for layer in graph.layers} - {layer.output for layer in order}
        shapes[whole.name] = whole.shape
        touched = {name for s in (*graph.slices, *slices) for name in (s.part, s.whole)}
        written = (written & touched) | {whole.name}
        if fit((*graph.slices, *slices), shapes, written, graph.blocks):
            return order
    return None


def _merged_output(
    graph: IntegerGraph, layers: Sequence[Layer]
) -> tuple[Value, list[ChannelSlice]]:
    """Return the tensor that contains the outputs of all siblings, and its slice per output.

    Each output begins at a block boundary.

    Args:
        graph: the network.
        layers: the siblings, in the order of their channels.
    """
    name = unused_name(graph, f"{layers[0].data}.siblings")
    first, slices = 0, []
    for layer in layers:
        slices.append(ChannelSlice(layer.output, name, first))
        first += _padded_channels(layer, graph)
    shape = list(graph.values[layers[0].output].shape)
    axis = channel_axis(tuple(shape))
    shape[axis] = first - _padded_channels(layers[-1], graph) + layers[-1].workload.out_channels
    return Value(name, tuple(shape)), slices


def _padded_channels(layer: Layer, graph: IntegerGraph) -> int:
    """Return the number of a layer's output channels, rounded up to whole blocks of channels."""
    block = graph.blocks.out_channels
    return -(-layer.workload.out_channels // block) * block


def _replace_siblings(graph: IntegerGraph, layers: Sequence[Layer]) -> IntegerGraph:
    """Return the network with several layers replaced by one merged layer.

    Args:
        graph: the network.
        layers: layers that read the same tensor. The merged layer takes the position of the first
            one.
    """
    order = _order(graph, layers)
    assert order is not None, "choices() offers no other"
    whole, slices = _merged_output(graph, order)
    together = _layer(graph, order, whole)
    steps: list[Step] = []
    for step in graph.steps:
        if any(step is layer for layer in order):
            steps += [] if together in steps else [together]
        else:
            steps.append(step)
    return with_steps(replace(graph, slices=(*graph.slices, *slices)), steps, [whole])


def _layer(graph: IntegerGraph, layers: Sequence[Layer], whole: Value) -> Layer:
    """Return the merged layer of several siblings.

    The channels of each sibling except the last one are padded with zeros to whole blocks.

    Args:
        graph: the network.
        layers: the siblings, in the order of their channels.
        whole: the tensor that the merged layer writes.
    """
    widths = [_padded_channels(layer, graph) for layer in layers[:-1]]
    widths.append(layers[-1].workload.out_channels)

    def stacked(parts: Sequence[Array], between: int = 0) -> Array:
        filled = [
            np.concatenate([part, np.full((width - len(part), *part.shape[1:]), between)])
            for part, width in zip(parts, widths, strict=True)
        ]
        return np.concatenate(filled)

    epilogue, bias, shifts = _epilogue(layers, stacked)
    workload = replace(layers[0].workload, out_channels=sum(widths)).with_steps(epilogue)
    weights = [layer.weight for layer in layers if layer.weight is not None]
    return Layer(
        name=" + ".join(layer.name for layer in layers),
        names=tuple(name for layer in layers for name in layer.names),
        operator=layers[0].operator,
        workload=workload,
        data=layers[0].data,
        output=whole.name,
        weight=stacked(weights).astype(np.int8),
        bias=bias,
        shifts=shifts,
        macs=sum(layer.macs for layer in layers),
    )


def _epilogue(
    layers: Sequence[Layer], stacked: Stacked
) -> tuple[tuple[EpilogueOp, ...], NDArray[np.int32] | None, NDArray[np.int32] | None]:
    """Return the epilogue of a merged layer, with its bias and shifts per output channel.

    Args:
        layers: the siblings, in the order of their channels.
        stacked: concatenates one array per sibling along the channels, padded to whole blocks.

    Returns:
        The operations, the bias and the shifts. The bias and the shifts are int32 arrays of shape
        (o,), or None if the epilogue needs none.
    """
    epilogues = {layer.workload.epilogue for layer in layers}
    if len(epilogues) == 1 and layers[0].bias is None and layers[0].shifts is None:
        return layers[0].workload.epilogue, None, None
    biases, layer_shifts = zip(*(_numbers(layer) for layer in layers), strict=True)
    bias = stacked(biases).astype(np.int32)
    near = int(np.abs(bias.astype(np.int64)).max(initial=0)) < NEAR_BIAS
    steps = [EpilogueOp("bias", 0 if near else 32)]
    amounts = {int(amount) for part in layer_shifts for amount in part}
    if len(amounts) > 1:
        steps.append(shift_of_channels(np.concatenate(layer_shifts).astype(np.int64)))
        shifts = stacked(layer_shifts, min(amounts)).astype(np.int32)
        return (*steps, *_clips(layers[0])), bias, shifts
    if amounts != {0}:
        steps.append(EpilogueOp("shr", amounts.pop()))
    return (*steps, *_clips(layers[0])), bias, None


def _numbers(layer: Layer) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the constants that a layer's epilogue adds to its accumulators, and its right shifts.

    Returns:
        Two int32 arrays of shape (o,), with one value per output channel.
    """
    channels = layer.workload.out_channels
    bias, shifts = np.zeros(channels, np.int32), np.zeros(channels, np.int32)
    for op in layer.workload.epilogue:
        if op.kind == "offset":
            bias += op.value
        elif op.kind == "bias" and layer.bias is not None:
            bias += layer.bias
        elif op.kind == "shr":
            shifts += op.value
        elif op.kind == "shr_channel" and layer.shifts is not None:
            shifts += layer.shifts
    return bias, shifts
