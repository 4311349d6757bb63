"""Memory plan of a network: the driver's buffers, and the position of each tensor in them.

Tensors that are not in use at the same time share memory. Offsets are multiples of the element size
and buffers begin on pages, so that every tensor begins at a whole element.

The output of a layer may overwrite one of the layer's inputs if this is proved safe for the layer's
program. Three conditions must hold: no later layer reads the input; no instruction reads what an
earlier instruction of the same program has stored; and each store waits, by dependency tokens, for
the loads of the data that it overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.tensor_aliasing import find_overlap, lay_out
from tilewright.targets.vta.board.layer_program import regions
from tilewright.targets.vta.board.program import MAX_BUFFER_BYTES, Buffer, BufferKind, MemoryPiece
from tilewright.targets.vta.board.relocate import placed_transfers
from tilewright.targets.vta.board.segments import BoardNetwork, BoardTensor, Placed
from tilewright.targets.vta.functional.execution_order import QUEUES_OF_FLAGS, issue_order
from tilewright.targets.vta.functional.kernel import outcome
from tilewright.targets.vta.instruction_format import (
    dram_bases,
    element_bytes,
    memories,
    moves,
    with_dram_bases,
)
from tilewright.targets.vta.lint.findings import empty_log
from tilewright.targets.vta.lint.memory import EVERYWHERE, memory_races, rereads
from tilewright.targets.vta.lint.token_order import CONSUMERS, clocks_of
from tilewright.targets.vta.spec import Machine


@dataclass(eq=False)
class Filled:
    """Memory buffers of constants or of micro-ops, to which the data of all layers is appended.

    Attributes:
        kind: kind of the buffers, "constants" or "uops".
        parts: content of each buffer, in parts.
        sizes: number of bytes used in each buffer.
        places: locations of small data that is already stored, by content.
    """

    kind: BufferKind
    parts: list[list[NDArray[np.uint8]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    places: dict[bytes, list[MemoryPiece]] = field(default_factory=dict)

    def store(self, data: NDArray[np.uint8], element: int) -> list[MemoryPiece]:
        """Append data to the buffers and return its location.

        Small data that was stored before, such as common micro-ops, is not stored again. Data is
        split only if it exceeds the maximum buffer size.

        Args:
            data: the data, uint8, shape (bytes,).
            element: element size in bytes.

        Returns:
            The pieces of the data. Their buffer indices begin at 0 for the first buffer of this
            kind.
        """
        content = data.tobytes() if len(data) <= 1 << 16 else b""
        if content and content in self.places:
            return self.places[content]
        pieces, done = [], 0
        while done < len(data):
            left = len(data) - done
            where, at = self._room(min(left, MAX_BUFFER_BYTES), element)
            size = min(left, (MAX_BUFFER_BYTES - at) // element * element)
            self._append(where, at, data[done : done + size])
            pieces.append(MemoryPiece(done, done + size, where, at))
            done += size
        if content:
            self.places[content] = pieces
        return pieces

    def buffers(self) -> list[Buffer]:
        """Return the descriptions of all buffers of this kind.

        The buffers are filled from one file. In the file, each buffer's bytes follow those of the
        previous buffer.
        """
        begins = np.cumsum([0, *self.sizes]).tolist()
        return [
            Buffer(f"{self.kind}{k}", self.kind, size, begins[k])
            for k, size in enumerate(self.sizes)
        ]

    def content(self) -> NDArray[np.uint8]:
        """Return the content of the file that fills the buffers, shape (bytes,)."""
        nothing = np.zeros(0, np.uint8)
        return np.concatenate([nothing, *(part for parts in self.parts for part in parts)])

    def _room(self, size: int, element: int) -> tuple[int, int]:
        """Return a position for some data in the first buffer with enough space.

        An empty buffer is appended if no buffer has enough space.

        Args:
            size: size of the data in bytes.
            element: element size in bytes; the offset is a multiple of it.

        Returns:
            The index of the buffer, and the byte offset in it.
        """
        for k, used in enumerate(self.sizes):
            at = -(-used // element) * element
            if at + size <= MAX_BUFFER_BYTES:
                return k, at
        self.parts.append([])
        self.sizes.append(0)
        return len(self.sizes) - 1, 0

    def _append(self, where: int, at: int, data: NDArray[np.uint8]) -> None:
        gap = at - self.sizes[where]
        self.parts[where] += [np.zeros(gap, np.uint8), data]
        self.sizes[where] = at + len(data)


@dataclass(eq=False)
class Arenas:
    """Memory blocks (arenas) for the activations of a network, and the position of each activation.

    Activations that are not in use at the same time may occupy the same memory.

    Attributes:
        sizes: size of each arena in bytes.
        places: (arena index, byte offset) of each tensor, by the Python `id` of the tensor object.
    """

    sizes: list[int]
    places: dict[int, tuple[int, int]]

    def buffers(self) -> list[Buffer]:
        """Return one buffer per arena."""
        return [Buffer(f"activations{k}", "activations", size) for k, size in enumerate(self.sizes)]


def arenas_of(network: BoardNetwork, machine: Machine, shared: dict[int, BoardTensor]) -> Arenas:
    """Assign a memory position to every activation of a network.

    Tensors are placed in descending order of size. Each tensor goes into the smallest gap between
    the tensors that are in use at the same time.

    Args:
        network: the network.
        machine: the machine.
        shared: in-place outputs: the input tensor that is overwritten, by the `id` of the output
            tensor.

    Raises:
        WorkloadError: a tensor is larger than the driver's maximum allocation.
    """
    arenas = Arenas([], {})
    placed: list[tuple[Plot, int, int]] = []
    for plot in sorted(plots_of(network, machine, shared), key=lambda plot: -plot.bytes):
        if plot.bytes > MAX_BUFFER_BYTES:
            raise WorkloadError(
                f"the tensor {plot.name} takes {plot.bytes:,} bytes, but the driver "
                f"allocates at most {MAX_BUFFER_BYTES:,} at once; use a smaller batch or "
                "image"
            )
        rivals = [
            (arena, at, at + other.bytes)
            for other, arena, at in placed
            if other.first <= plot.last and plot.first <= other.last
        ]
        arena, at = _gap(rivals, arenas.sizes, plot.bytes, plot.element)
        if arena == len(arenas.sizes):
            arenas.sizes.append(0)
        arenas.sizes[arena] = max(arenas.sizes[arena], at + plot.bytes)
        placed.append((plot, arena, at))
        for tensor, offset in plot.members.items():
            arenas.places[tensor] = arena, at + offset
    return arenas


def _gap(
    rivals: Sequence[tuple[int, int, int]], sizes: Sequence[int], size: int, element: int
) -> tuple[int, int]:
    """Choose the position of a new tensor in the arenas (memory blocks) by best fit.

    The tensor goes into the smallest free gap of at least `size` bytes. If there is no such gap, it
    goes after the last conflicting tensor in the first arena that can still grow.

    Args:
        rivals: (arena, begin, end) of each conflicting tensor, which is a tensor that is in use at
            the same time.
        sizes: current sizes of the arenas in bytes.
        size: size of the new tensor in bytes.
        element: element size of the new tensor in bytes; the offset is a multiple of it.

    Returns:
        The index of the arena, and the byte offset in it.
    """
    best: tuple[int, int, int] | None = None
    behind: tuple[int, int] | None = None
    for arena in range(len(sizes)):
        end = 0
        for _, first, last in sorted(rival for rival in rivals if rival[0] == arena):
            at = -(-end // element) * element
            if first - at >= size and (best is None or first - at < best[0]):
                best = first - at, arena, at
            end = max(end, last)
        at = -(-end // element) * element
        if sizes[arena] - at >= size and (best is None or sizes[arena] - at < best[0]):
            best = sizes[arena] - at, arena, at
        if behind is None and at + size <= MAX_BUFFER_BYTES:
            behind = arena, at
    if best is not None:
        return best[1:]
    return behind if behind is not None else (len(sizes), 0)


@dataclass(frozen=True, eq=False)
class Plot:
    """Range of memory for one tensor, or for several tensors that are stored inside one another.

    A step is one layer or one step of the host; steps are numbered in execution order.

    Attributes:
        name: name of the largest tensor.
        bytes: size in bytes.
        element: size of the largest element in bytes.
        first: first step in which the memory is in use.
        last: last step in which the memory is in use.
        members: byte offset of each tensor within the range, by the tensor's `id`.
    """

    name: str
    bytes: int
    element: int
    first: int
    last: int
    members: Mapping[int, int]


def plots_of(
    network: BoardNetwork, machine: Machine, shared: Mapping[int, BoardTensor]
) -> list[Plot]:
    """List the ranges of memory that a network's activations need, without their positions.

    Args:
        network: the network.
        machine: the machine.
        shared: in-place outputs: the input tensor that is overwritten, by the `id` of the output
            tensor.

    Raises:
        WorkloadError: two layers would write to the same memory.
    """
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
            f"{tensors[error.args[0]].value.name} would be stored in two places; export the "
            "model without the operators that join it"
        ) from None
    of = {tensor: group for group in groups for tensor in group}
    for group in groups:
        pair = find_overlap(group, written)
        if pair is not None:
            one, other = (tensors[tensor].value.name for tensor in pair)
            raise WorkloadError(
                f"{one} and {other} would be stored in the same place; export the model "
                "without the operators that join one of them"
            )
    unique = {id(of.get(key, tensor)): of.get(key, {key: 0}) for key, tensor in tensors.items()}
    return [_plot([tensors[key] for key in group], group, machine) for group in unique.values()]


def _plot(members: list[BoardTensor], begins: Mapping[int, int], machine: Machine) -> Plot:
    return Plot(
        max(members, key=lambda tensor: tensor.packing.elements).value.name,
        max(begins[id(tensor)] + tensor.packing.bytes(machine) for tensor in members),
        max(tensor.packing.element_bytes(machine) for tensor in members),
        min(tensor.first for tensor in members),
        max(tensor.last for tensor in members),
        begins,
    )


def _block_bytes(tensor: BoardTensor, machine: Machine) -> int:
    """Return the size in bytes of one block of a tensor's channels, including all of its pixels.

    Args:
        tensor: the tensor.
        machine: the machine.
    """
    p = tensor.packing
    return p.height * p.width * p.element_bytes(machine)


_APART = 1 << 27
"""Distance in bytes between the start addresses of the buffers in a program that is only checked,
not run. No tensor is larger."""


Legal = Callable[[Placed, str], bool]


def in_place(network: BoardNetwork, legal: Legal | None = None) -> dict[int, BoardTensor]:
    """Find the layers whose output can overwrite one of the layer's inputs, which saves memory.

    Args:
        network: the network.
        legal: function to use instead of `is_legal`, for example one with a cache.

    Returns:
        The input tensor that is overwritten, by the `id` of the output tensor.
    """
    legal = legal or is_legal
    shared: dict[int, BoardTensor] = {}
    sliced = {id(tensor) for part, whole, _ in network.inside for tensor in (part, whole)}
    for run in network.runs:
        for layer in run.layers:
            output = layer.tensors["output"]
            if id(output) in sliced:
                continue
            for role in ("residual", "shortcut", "data"):
                tensor = layer.tensors.get(role)
                uses = sum(used is tensor for used in layer.tensors.values())
                if (
                    tensor is not None
                    and uses == 1
                    and id(tensor) not in sliced
                    and tensor.last == layer.at
                    and tensor.stored < 0
                    and tensor.packing.elements == output.packing.elements
                    and tensor.packing.block == output.packing.block
                    and tensor.packing.form != "weights"
                    and legal(layer, role)
                ):
                    shared[id(output)] = tensor
                    sliced.add(id(tensor))
                    break
    return shared


def is_legal(layer: Placed, role: str) -> bool:
    """Return whether a layer still computes the correct result if its output overwrites an input.

    Args:
        layer: the layer with its tensors.
        role: the input that is overwritten: "data", "residual" or "shortcut".
    """
    program, m = layer.program, layer.program.lowering.machine
    element = element_bytes(m)
    names = [region.name for region in regions(program.lowering.geometry, m)]
    places: dict[str, list[MemoryPiece]] = {}
    for region in regions(program.lowering.geometry, m):
        at = names.index(role if region.name == "output" else region.name)
        places[region.name] = [MemoryPiece(0, region.elements * int(element[region.memory]), at, 0)]
    words, buffers = placed_transfers(program, places)
    moving = moves(words)
    kinds = memories(words)[moving]
    bases = dram_bases(words)[moving] + buffers[moving] * (_APART // element[kinds])
    words[moving] = with_dram_bases(words[moving], bases)
    order, clocks = _clocks(words, m.token_limit)
    return not rereads(words, order, m) and not memory_races(words, order, clocks, m, EVERYWHERE)


def _clocks(
    words: NDArray[np.uint64], token_limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the order in which a program's instructions issue, and their clocks.

    `lint.token_order` explains the clocks, which show which instructions can run at the same time.

    Args:
        words: instructions, shape (n, 2).
        token_limit: number of tokens that a dependency queue can hold.

    Returns:
        The issue order, shape (n,), and the clocks, shape (n, 3).
    """
    result, none = outcome(), np.zeros(4, np.int64)
    words = np.ascontiguousarray(words)
    order = issue_order(words, QUEUES_OF_FLAGS, result.tokens, result.heads)
    clocks = clocks_of(words, order, QUEUES_OF_FLAGS, CONSUMERS, none, token_limit, empty_log())
    return order, clocks
