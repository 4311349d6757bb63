"""Layers with their schedules → a program that a board can load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from targets.capabilities import HostStep
from targets.errors import WorkloadError
from targets.layer import Value
from targets.vta.board.forms import image_shape
from targets.vta.board.link import Part, link
from targets.vta.board.lower import LayerProgram
from targets.vta.board.memory import Arenas, Filled, Piece, arenas_of
from targets.vta.board.network import Network, Placed, Tensor, network_of
from targets.vta.board.program import (
    MAX_BUFFER_BYTES,
    BoardProgram,
    Buffer,
    Port,
    Segment,
    Step,
)
from targets.vta.board.relocate import placed_transfers, relocations
from targets.vta.spec import Machine, VtaSpec

INSTRUCTION_BYTES = 16


@dataclass(frozen=True, eq=False)
class Linked:
    """A network as a board runs it. `programs` are its layers, `begins` (layers + 1,) where each
    begins in `board.insns`, `segment_of` (layers,) the segment it belongs to. `order` are segments
    and steps of the host in the order they run: of an entry (segment, host step) one is -1."""

    board: BoardProgram
    programs: Sequence[LayerProgram]
    begins: NDArray[np.int64]
    segment_of: NDArray[np.int64]
    order: Sequence[tuple[int, int]]
    network: Network
    tensors: Sequence[tuple[Tensor, int, int]]
    """Each packed tensor with its buffer and its byte offset there."""


def linked(
    steps: Sequence[LayerProgram | HostStep],
    values: Mapping[str, Value],
    outputs: Sequence[str],
    spec: VtaSpec,
) -> Linked:
    """Link a network's layers and lay out its memory; `outputs` are the values it gives. Raises
    `WorkloadError` for what no board could load."""
    m = spec.machine
    network = network_of(steps, values, outputs)
    placed = [layer for run in network.runs for layer in run.layers]
    uops, constants = Filled("uops"), Filled("constants")
    filled = [_fill(layer.program, uops, constants, m) for layer in placed]
    arenas = arenas_of(network, m, {})
    buffers = [*uops.buffers(), *constants.buffers(), *arenas.buffers()]
    shift = {
        "uops": 0,
        "constants": len(uops.sizes),
        "activations": len(uops.sizes) + len(constants.sizes),
    }
    parts = [
        _part(layer, own, arenas, shift, buffers, m)
        for layer, own in zip(placed, filled, strict=True)
    ]
    streams, begins, segment_of, done = [], [0], [], 0
    for number, run in enumerate(network.runs):
        stream, inside = link(parts[done : done + len(run.layers)])
        if len(stream) * INSTRUCTION_BYTES > MAX_BUFFER_BYTES:
            raise WorkloadError(
                f"segment {number} has {len(stream):,} instructions, more than the driver's "
                f"largest buffer of {MAX_BUFFER_BYTES:,} bytes holds; choose larger tiles"
            )
        begins += (begins[-1] + inside[1:]).tolist()
        segment_of += [number] * len(run.layers)
        streams.append(stream)
        done += len(run.layers)
    words = np.concatenate([stream.words for stream in streams])
    where = np.concatenate([stream.buffers for stream in streams])
    counts = np.cumsum([0, *map(len, streams)]).tolist()
    segments = [
        Segment(first, last - first) for first, last in zip(counts, counts[1:], strict=False)
    ]
    shifted = shift["activations"]
    places = [
        (tensor, arenas.places[id(tensor)][0] + shifted, arenas.places[id(tensor)][1])
        for tensor in network.tensors
    ]
    board = BoardProgram(
        spec, words, relocations(words, where), uops.content(), constants.content(), buffers,
        segments, _steps(network, places),
    )  # fmt: skip
    return Linked(
        board, [layer.program for layer in placed], np.array(begins, np.int64),
        np.array(segment_of, np.int64), network.order, network, places,
    )  # fmt: skip


def _fill(
    program: LayerProgram, uops: Filled, constants: Filled, m: Machine
) -> dict[str, list[Piece]]:
    """Where a layer's micro-ops, weights and bias lie, buffers counted by kind."""
    return {
        "uops": uops.put(program.uops, m.uop_bytes),
        "weights": constants.put(program.weights, m.wgt_bytes),
        "bias": constants.put(program.bias, m.acc_bytes),
    }


def _part(
    layer: Placed, filled: dict[str, list[Piece]], arenas: Arenas, shift: Mapping[str, int],
    buffers: Sequence[Buffer], m: Machine,
) -> Part:  # fmt: skip
    """A layer's instructions with offsets in buffers."""
    places: dict[str, Sequence[Piece]] = {}
    for name, pieces in filled.items():
        first = shift["uops" if name == "uops" else "constants"]
        places[name] = [
            Piece(piece.first, piece.last, piece.buffer + first, piece.offset) for piece in pieces
        ]
    for name, tensor in layer.tensors.items():
        arena, offset = arenas.places[id(tensor)]
        size = tensor.packing.bytes(m)
        places[name] = [Piece(0, size, arena + shift["activations"], offset)]
    words, where = placed_transfers(layer.program, places)
    fixed = np.array([buffer.kind != "activations" for buffer in buffers])
    return Part(words, where, (where >= 0) & fixed[where])


def _steps(network: Network, places: Sequence[tuple[Tensor, int, int]]) -> list[Step]:
    """The segments with what the host packs and unpacks around each."""
    ports = {id(tensor): _port(tensor, buffer, at) for tensor, buffer, at in places}
    return [
        Step(
            number,
            tuple(ports[id(tensor)] for tensor in run.loads),
            tuple(ports[id(tensor)] for tensor in run.stores),
        )
        for number, run in enumerate(network.runs)
    ]


def _port(tensor: Tensor, buffer: int, offset: int) -> Port:
    value, form = tensor.value, tensor.packing.form
    shape = image_shape(value.shape) if form == "image" else value.shape
    return Port(
        value.name, shape, value.dtype, value.exponent or 0, form, buffer, offset, tensor.unfold
    )
