"""Data types for possible fusions, and helpers for editing the steps of an integer graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.networks.integer.graph import CpuIsland, IntegerGraph, Step
from tilewright.targets.layer import Layer, Value
from tilewright.targets.workload import Workload

Kind = Literal["activation", "pool", "shortcut", "average", "siblings"]
"""Kinds of fusion choices.

- `activation`: fuse a ReLU or clip into the layer before it.
- `pool`: fuse a max-pool into the convolution before it, where it works on the accumulators.
- `shortcut`: fuse the 1×1 convolution on the shortcut of a residual block into the last convolution
  of the block. Both convolutions then add to the same accumulators.
- `average`: fuse a global average pool into the convolution before it.
- `siblings`: merge layers that read the same tensor ("siblings"). The merged layer writes the
  channels of all of them. At least two siblings have to be chosen.
"""


@dataclass(frozen=True)
class FusionChoice:
    """A possible fusion. A labelling (one bool per possible fusion) tells whether it is applied.

    Attributes:
        kind: the kind of fusion.
        name: name of the layer that is fused or kept separate.
        layers: output tensors of the layers that would be fused, producers first.
        group: for siblings (layers that read the same tensor), the tensor that they all read;
            otherwise "".
    """

    kind: Kind
    name: str
    layers: tuple[str, ...]
    group: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Refused:
    """A fusion of a known kind that is not possible for this network.

    Attributes:
        kind: the kind of fusion.
        name: name of the layer.
        reason: why the layer cannot be fused.
    """

    kind: Kind
    name: str
    reason: str


@dataclass(frozen=True)
class Choices:
    """All possible fusions of a network.

    A labelling holds one bool per entry of `offered`, in order. The results of the network are the
    same for every labelling.

    Attributes:
        offered: the possible fusions.
        refused: fusions that are not possible, with reasons.
    """

    offered: tuple[FusionChoice, ...]
    refused: tuple[Refused, ...]

    def __len__(self) -> int:
        return len(self.offered)


def split_candidates(
    kind: Kind, looked_at: Iterable[tuple[str, tuple[str, ...], str]]
) -> tuple[list[FusionChoice], list[Refused]]:
    """Split candidates for a fusion into possible fusions and refused ones.

    Args:
        kind: the kind of fusion.
        looked_at: one tuple (name of the layer, output tensors of the layers to fuse, reason) per
            candidate. The reason is "" if the fusion is possible.

    Returns:
        The possible fusions, and the refused ones.
    """
    accepted: list[FusionChoice] = []
    refused: list[Refused] = []
    for name, outputs, reason in looked_at:
        if reason:
            refused.append(Refused(kind, name, reason))
        else:
            accepted.append(FusionChoice(kind, name, outputs))
    return accepted, refused


def read_by(step: Step) -> tuple[str, ...]:
    """Return the names of the tensors that a step (a layer or a CPU island) reads."""
    if isinstance(step, CpuIsland):
        return step.inputs
    return step.reads


def is_read_once(graph: IntegerGraph, names: Collection[str]) -> bool:
    """Return whether the steps of a network read a group of tensors exactly once in total.

    The result is False if a tensor of the group is an output of the network, or if it shares memory
    with a tensor outside the group.

    Args:
        graph: the network.
        names: name of one tensor, or names of a tensor and the tensors that are slices of it.
    """
    reads = sum(name in names for step in graph.steps for name in read_by(step))
    around = any((s.part in names) != (s.whole in names) for s in graph.slices)
    return reads == 1 and not around and not set(names) & set(graph.results.values())


def with_steps(
    graph: IntegerGraph, steps: Sequence[Step], new: Sequence[Value] = ()
) -> IntegerGraph:
    """Return a copy of a graph with other steps.

    Tensors to which no step, input, result or slice refers any more are removed.

    Args:
        graph: the network.
        steps: the new steps, which are layers and CPU islands in execution order.
        new: tensors that the steps use and that the graph does not have yet.
    """
    values = dict(graph.values) | {value.name: value for value in new}
    used = {name for step in steps for name in (*read_by(step), *_written_tensors(step))}
    used |= {value.name for value in graph.inputs} | set(graph.results.values())
    used |= {name for s in graph.slices for name in (s.part, s.whole)}
    used |= {graph.quantised[name] for name in used if name in graph.quantised}
    return replace(graph, steps=tuple(steps), values={n: v for n, v in values.items() if n in used})


def with_layers(
    graph: IntegerGraph, made: Mapping[str, Layer], gone: Collection[str]
) -> IntegerGraph:
    """Return a copy of the graph with some layers replaced and others removed.

    Args:
        graph: the network.
        made: replacement layers, by the name of the tensor that the replaced layer writes.
        gone: names of the tensors whose layers are removed.
    """
    # By identity, since comparing layers would compare their arrays.
    layers = {id(layer): made.get(layer.output, layer) for layer in graph.layers}
    kept = [s for s in graph.steps if not isinstance(s, Layer) or s.output not in gone]
    return with_steps(graph, [layers.get(id(step), step) for step in kept])


def unused_name(graph: IntegerGraph, name: str) -> str:
    """Return a tensor name that a graph does not use yet.

    Args:
        graph: the network.
        name: preferred name. If it is taken, a number is appended.
    """
    free, count = name, 1
    while free in graph.values:
        count += 1
        free = f"{name}#{count}"
    return free


def is_cut(w: Workload) -> bool:
    """Return whether a layer clips its results to int8, so that int8 stores them exactly.

    Args:
        w: workload of the layer.
    """
    clips = {op.kind: op.value for op in w.epilogue[-2:]}
    return clips.get("min", 128) <= 127 and clips.get("max", -129) >= -128


def _written_tensors(step: Step) -> tuple[str, ...]:
    return (step.output,) if isinstance(step, Layer) else step.outputs
