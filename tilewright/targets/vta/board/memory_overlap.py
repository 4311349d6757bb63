"""Places tensors that share memory: inside one another, or one in the place of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.core.errors import WorkloadError
from tilewright.targets.tensor_aliasing import lay_out, overlapping
from tilewright.targets.vta.board.network import BoardNetwork, BoardTensor
from tilewright.targets.vta.spec import Machine


@dataclass(frozen=True, eq=False)
class Plot:
    """So many bytes of elements of `element` bytes, in use from step `first` to step `last`.
    `members` gives the byte at which a tensor begins, by its `id`; `name` is the largest one's."""

    name: str
    bytes: int
    element: int
    first: int
    last: int
    members: Mapping[int, int]


def plots_of(
    network: BoardNetwork, machine: Machine, shared: Mapping[int, BoardTensor]
) -> list[Plot]:
    """The pieces of memory that a network's tensors need. `shared` is as in `memory.arenas_of`.
    Raises `WorkloadError` where two layers would write one place."""
    tensors = {id(tensor): tensor for tensor in network.tensors}
    written = {
        id(layer.tensors["output"]): layer.tensors["output"].packing.bytes(machine)
        for run in network.runs for layer in run.layers
        if id(layer.tensors["output"]) not in shared
    }  # fmt: skip
    pairs = [
        (id(part), id(whole), blocks * _block_bytes(part, machine))
        for part, whole, blocks in network.inside
    ]
    pairs += [(tensor, id(shared[tensor]), 0) for tensor in tensors if tensor in shared]
    try:
        groups = lay_out(pairs)
    except ValueError as error:
        raise WorkloadError(
            f"{tensors[error.args[0]].value.name} would lie in two places; leave out what joins it"
        ) from None
    of = {tensor: group for group in groups for tensor in group}
    for group in groups:
        pair = overlapping(group, written)
        if pair is not None:
            one, other = (tensors[tensor].value.name for tensor in pair)
            raise WorkloadError(
                f"{one} and {other} would be written to one place; leave out what joins one of them"
            )
    unique = {id(of.get(key, tensor)): of.get(key, {key: 0}) for key, tensor in tensors.items()}
    return [_plot([tensors[key] for key in group], group, machine) for group in unique.values()]


def _plot(members: list[BoardTensor], begins: Mapping[int, int], machine: Machine) -> Plot:
    return Plot(
        max(members, key=lambda each: each.packing.elements).value.name,
        max(begins[id(each)] + each.packing.bytes(machine) for each in members),
        max(each.packing.element_bytes(machine) for each in members),
        min(each.first for each in members),
        max(each.last for each in members),
        begins,
    )


def _block_bytes(tensor: BoardTensor, machine: Machine) -> int:
    """Of a block of channels, in all pixels."""
    p = tensor.packing
    return p.height * p.width * p.element_bytes(machine)
