"""Places everything in memory: buffers of the driver, none larger than it gives, and offsets in
them.

Tensors that are not in use at the same time share memory. Offsets are multiples of an element's
bytes, and buffers begin on pages, so that every tensor begins at a whole element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.board.memory_overlap import Plot, plots_of
from tilewright.targets.vta.board.network import BoardNetwork, BoardTensor
from tilewright.targets.vta.board.program import MAX_BUFFER_BYTES, Buffer, BufferKind
from tilewright.targets.vta.spec import Machine


@dataclass(frozen=True)
class MemoryPiece:
    """Bytes `first` to `last` of something that begins at byte `offset` of a buffer there."""

    first: int
    last: int
    buffer: int
    offset: int


@dataclass(eq=False)
class Filled:
    """Constants, or micro-ops, packed into buffers of one kind."""

    kind: BufferKind
    parts: list[list[NDArray[np.uint8]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    places: dict[bytes, list[MemoryPiece]] = field(default_factory=dict)

    def put(self, data: NDArray[np.uint8], element: int) -> list[MemoryPiece]:
        """Where `data` (bytes,) lies, in elements of so many bytes: in one buffer, unless it is
        larger. What was put before, as some micro-ops are, is not put again. Buffers count from
        the first of this kind."""
        known = data.tobytes() if len(data) <= 1 << 16 else b""
        if known and known in self.places:
            return self.places[known]
        pieces, done = [], 0
        while done < len(data):
            left = len(data) - done
            where, at = self._room(min(left, MAX_BUFFER_BYTES), element)
            size = min(left, (MAX_BUFFER_BYTES - at) // element * element)
            self._append(where, at, data[done : done + size])
            pieces.append(MemoryPiece(done, done + size, where, at))
            done += size
        if known:
            self.places[known] = pieces
        return pieces

    def buffers(self) -> list[Buffer]:
        """All of them, each filled from where the one before it ends in the file."""
        begins = np.cumsum([0, *self.sizes]).tolist()
        return [
            Buffer(f"{self.kind}{k}", self.kind, size, begins[k])
            for k, size in enumerate(self.sizes)
        ]

    def content(self) -> NDArray[np.uint8]:
        """The file they are filled from, (bytes,)."""
        nothing = np.zeros(0, np.uint8)
        return np.concatenate([nothing, *(part for parts in self.parts for part in parts)])

    def _room(self, size: int, element: int) -> tuple[int, int]:
        """The first buffer that has room for so many bytes, and where."""
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
    """Memory that activations share."""

    sizes: list[int]
    places: dict[int, tuple[int, int]]
    """Arena and byte offset of a tensor, by its `id`."""

    def buffers(self) -> list[Buffer]:
        """One an arena."""
        return [Buffer(f"activations{k}", "activations", size) for k, size in enumerate(self.sizes)]


def arenas_of(network: BoardNetwork, machine: Machine, shared: dict[int, BoardTensor]) -> Arenas:
    """A place for every tensor, the largest first, in the smallest gap between those in use at the
    same time. `shared` gives, by the `id` of a tensor, the one in whose place it may lie; those
    that lie inside others have one place with them. Raises `WorkloadError` for a tensor beyond
    what the driver allocates."""
    arenas = Arenas([], {})
    placed: list[tuple[Plot, int, int]] = []
    for plot in sorted(plots_of(network, machine, shared), key=lambda plot: -plot.bytes):
        if plot.bytes > MAX_BUFFER_BYTES:
            raise WorkloadError(
                f"tensor {plot.name} takes {plot.bytes:,} bytes; the driver allocates at most "
                f"{MAX_BUFFER_BYTES:,} at once. Lower the batch or the size of the image"
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
    """Arena and offset: the smallest gap that holds `size` bytes, else behind the last rival of the
    first arena that may grow so far."""
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
