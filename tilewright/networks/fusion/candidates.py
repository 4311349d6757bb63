"""Finds what may be fused, and what may not, and tells who writes and who reads a tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.networks.integer.graph import CpuIsland, IntegerGraph, Step
from tilewright.targets.layer import Layer, Value
from tilewright.targets.workload import Workload

Kind = Literal["activation", "pool", "shortcut", "average", "siblings"]
"""`activation`: a relu or clip with the layer before it, not as a layer of its own. `pool`: a
max-pool with the sums of the convolution before it. `shortcut`: the 1×1 convolution of a block's
shortcut with the sums of the block's last one, which adds its result. `average`: a global average
with the results of the convolution before it. `siblings`: a layer together with others that read
the same tensor, as one layer that writes the channels of all; needs two at least."""


@dataclass(frozen=True)
class FusionChoice:
    """Something that may be fused. `group` is that of siblings: the tensor they all read, else
    empty. `layers` are the outputs of the layers concerned, producers first."""

    kind: Kind
    name: str
    layers: tuple[str, ...]
    group: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Refused:
    """Something that looks as if it could be fused, and why it is not."""

    kind: Kind
    name: str
    reason: str


@dataclass(frozen=True)
class Choices:
    """Of a network: a labelling has a bit for each that is offered, in this order; any labelling
    makes a network that computes the same."""

    offered: tuple[FusionChoice, ...]
    refused: tuple[Refused, ...]

    def __len__(self) -> int:
        return len(self.offered)


def divided(
    kind: Kind, looked_at: Iterable[tuple[str, tuple[str, ...], str]]
) -> tuple[list[FusionChoice], list[Refused]]:
    """What may be fused and what may not, of names, the outputs of the layers concerned, and the
    reason against it, which is empty where there is none."""
    found: list[FusionChoice] = []
    refused: list[Refused] = []
    for name, outputs, reason in looked_at:
        if reason:
            refused.append(Refused(kind, name, reason))
        else:
            found.append(FusionChoice(kind, name, outputs))
    return found, refused


def read_by(step: Step) -> tuple[str, ...]:
    """The tensors that a step reads."""
    if isinstance(step, CpuIsland):
        return step.inputs
    return step.reads


def is_read_once(graph: IntegerGraph, names: Collection[str]) -> bool:
    """Whether a step reads a tensor, or one of some that lie inside one another, in one place, and
    nothing else does: they are no result of the network, nor inside others or around any."""
    reads = sum(name in names for step in graph.steps for name in read_by(step))
    around = any((each.part in names) != (each.whole in names) for each in graph.slices)
    return reads == 1 and not around and not set(names) & set(graph.results.values())


def with_steps(
    graph: IntegerGraph, steps: Sequence[Step], new: Sequence[Value] = ()
) -> IntegerGraph:
    """The graph with other steps, and with tensors that they read and write beside its own; those
    that no step touches any more are gone."""
    values = dict(graph.values) | {value.name: value for value in new}
    used = {name for step in steps for name in (*read_by(step), *_written(step))}
    used |= {value.name for value in graph.inputs} | set(graph.results.values())
    used |= {name for each in graph.slices for name in (each.part, each.whole)}
    used |= {graph.quantised[name] for name in used if name in graph.quantised}
    return replace(graph, steps=tuple(steps), values={n: v for n, v in values.items() if n in used})


def with_layers(
    graph: IntegerGraph, made: Mapping[str, Layer], gone: Collection[str]
) -> IntegerGraph:
    """With the layers `made` in the place of those that write these tensors, and without those that
    write tensors that are `gone`."""
    layers = {id(layer): made.get(layer.output, layer) for layer in graph.layers}
    kept = [s for s in graph.steps if not isinstance(s, Layer) or s.output not in gone]
    return with_steps(graph, [layers.get(id(step), step) for step in kept])


def unused(graph: IntegerGraph, name: str) -> str:
    """A name for a tensor that no other has."""
    free, count = name, 1
    while free in graph.values:
        count += 1
        free = f"{name}#{count}"
    return free


def is_cut(w: Workload) -> bool:
    """Whether a layer's results are stored as they are, without losing bits."""
    clips = {op.kind: op.value for op in w.epilogue[-2:]}
    return clips.get("min", 128) <= 127 and clips.get("max", -129) >= -128


def _written(step: Step) -> tuple[str, ...]:
    return (step.output,) if isinstance(step, Layer) else step.outputs
