"""Builds a program that a board can load, from lowered layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.artifact_types import HostStep, LayerGraph
from tilewright.targets.layer import Scale, Value
from tilewright.targets.vta.board.layer_program import LayerProgram
from tilewright.targets.vta.board.layouts import image_shape
from tilewright.targets.vta.board.link import LinkedPart, link
from tilewright.targets.vta.board.memory_plan import Arenas, Filled, Legal, arenas_of, in_place
from tilewright.targets.vta.board.program import (
    MAX_BUFFER_BYTES,
    BoardProgram,
    MemoryPiece,
    Port,
    ProgramStep,
    Segment,
    crossing,
)
from tilewright.targets.vta.board.relocate import placed_transfers, relocations
from tilewright.targets.vta.board.segments import BoardNetwork, BoardTensor, Placed, network_of
from tilewright.targets.vta.board.simulated_board import packing_of
from tilewright.targets.vta.spec import Machine, VtaSpec

INSTRUCTION_BYTES = 16


@dataclass(frozen=True, eq=False)
class Linked:
    """Network in the form in which a board runs it.

    Attributes:
        board: the program.
        network: segments and tensors of the network.
        layers: the layers with their tensors.
        places: locations of each layer's tensors, weights and bias, by region name.
        begins: index of the first instruction of each layer in `board.insns`, followed by the
            number of all instructions, shape (layers + 1,).
    """

    board: BoardProgram
    network: BoardNetwork
    layers: Sequence[Placed]
    places: Sequence[Mapping[str, Sequence[MemoryPiece]]]
    begins: NDArray[np.int64]


def link_layers(
    steps: Sequence[LayerProgram | HostStep],
    graph: LayerGraph,
    spec: VtaSpec,
    legal: Legal | None = None,
) -> Linked:
    """Link the layers of a network, and lay out its memory.

    Args:
        steps: lowered layers and host steps, in the order of the graph.
        graph: the network.
        spec: the machine.
        legal: function to use instead of `memory_plan.is_legal`, for example one with a cache.

    Raises:
        WorkloadError: no board could load the network.
    """
    m = spec.machine
    network = network_of(steps, graph.values, graph.outputs, graph.slices)
    placed = [layer for run in network.runs for layer in run.layers]
    uops, constants = Filled("uops"), Filled("constants")
    filled = [_fill(layer.program, uops, constants, m) for layer in placed]
    arenas = arenas_of(network, m, in_place(network, legal))
    buffers = [*uops.buffers(), *constants.buffers(), *arenas.buffers()]
    first = {"uops": 0, "constants": len(uops.sizes)}
    first["activations"] = len(uops.sizes) + len(constants.sizes)
    places = [
        _places(layer, placed_tensors, arenas, first, m)
        for layer, placed_tensors in zip(placed, filled, strict=True)
    ]
    fixed = np.array([buffer.kind != "activations" for buffer in buffers])
    parts = [
        _part(layer, placed_tensors, fixed)
        for layer, placed_tensors in zip(placed, places, strict=True)
    ]
    streams, begins, done = [], [0], 0
    for number, run in enumerate(network.runs):
        stream, inside = link(parts[done : done + len(run.layers)])
        if len(stream) * INSTRUCTION_BYTES > MAX_BUFFER_BYTES:
            raise WorkloadError(
                f"segment {number} has {len(stream):,} instructions, which do not fit into "
                f"the driver's largest buffer of {MAX_BUFFER_BYTES:,} bytes; choose larger "
                "tiles"
            )
        begins += (begins[-1] + inside[1:]).tolist()
        streams.append(stream)
        done += len(run.layers)
    words = np.concatenate([stream.words for stream in streams])
    where = np.concatenate([stream.buffers for stream in streams])
    ends = np.cumsum([0, *map(len, streams)]).tolist()
    crossed = _steps(network, graph, arenas, first["activations"])
    board = BoardProgram(
        spec, words, relocations(words, where), uops.content(), constants.content(), buffers,
        [Segment(at, end - at) for at, end in pairwise(ends)],
        crossed, *_border(graph, crossed),
    )  # fmt: skip
    _check_packings(network, board)
    return Linked(board, network, placed, places, np.array(begins, np.int64))


def _fill(
    program: LayerProgram, uops: Filled, constants: Filled, m: Machine
) -> dict[str, list[MemoryPiece]]:
    """Append the micro-ops and constants of a layer to the memory buffers that all layers share.

    Args:
        program: the lowered layer.
        uops: buffers of micro-ops, to which data is added.
        constants: buffers of constants, to which data is added.
        m: the machine.

    Returns:
        Locations of the data, by region name (the role of the tensor). The buffers of each kind are
        counted from 0.
    """
    return {
        "uops": uops.store(program.uops, m.uop_bytes),
        "weights": constants.store(program.weights, m.wgt_bytes),
        "bias": constants.store(program.bias, m.acc_bytes),
        "add": constants.store(program.add, m.acc_bytes),
    }


def _places(
    layer: Placed,
    filled: Mapping[str, Sequence[MemoryPiece]],
    arenas: Arenas,
    first: Mapping[str, int],
    m: Machine,
) -> dict[str, Sequence[MemoryPiece]]:
    """Return the memory locations of all of a layer's tensors.

    Args:
        layer: the layer.
        filled: locations of the layer's constants and micro-ops, as `_fill` returns them.
        arenas: locations of the activations.
        first: index of the first buffer of each kind in the whole program.
        m: the machine.

    Returns:
        The pieces of each tensor, by region name (the role of the tensor, such as "data").
    """
    places: dict[str, Sequence[MemoryPiece]] = {}
    for name, pieces in filled.items():
        shift = first["uops" if name == "uops" else "constants"]
        places[name] = [replace(piece, buffer=piece.buffer + shift) for piece in pieces]
    for name, tensor in layer.tensors.items():
        arena, offset = arenas.places[id(tensor)]
        size = tensor.packing.bytes(m)
        places[name] = [MemoryPiece(0, size, arena + first["activations"], offset)]
    return places


def _part(
    layer: Placed, places: Mapping[str, Sequence[MemoryPiece]], fixed: NDArray[np.bool_]
) -> LinkedPart:
    """Return a layer's instructions, with addresses replaced by offsets in memory buffers.

    Args:
        layer: the layer.
        places: locations of the layer's tensors, by region name (the role of the tensor).
        fixed: mask of the buffers whose content never changes, shape (buffers,).
    """
    words, where = placed_transfers(layer.program, places)
    return LinkedPart(words, where, (where >= 0) & fixed[where])


def _border(
    graph: LayerGraph, steps: Sequence[ProgramStep]
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the tensors that the whole network takes from its caller and returns to it.

    Args:
        graph: the network, which defines the order of the tensors.
        steps: the segments (layers that run as one instruction stream), with the tensors that they
            exchange with the host.

    Returns:
        The inputs and the outputs.
    """
    by_host = [name for s in graph.steps if isinstance(s, HostStep) for name in s.writes]
    inputs, outputs = crossing(steps, by_host)
    if graph.inputs is not None:
        inputs = tuple(Value(v.name, v.shape, v.dtype) for v in graph.inputs)
    if graph.results is not None:
        outputs = tuple(Value(v.name, v.shape, v.dtype) for v in graph.results)
    return inputs, outputs


def _check_packings(network: BoardNetwork, board: BoardProgram) -> None:
    """Check that the host and the layers use the same memory layout for each exchanged tensor.

    Args:
        network: segments with the layouts that the layers use.
        board: program with the layouts that the host uses.

    Raises:
        WorkloadError: the layouts of a tensor differ.
    """
    for run, step in zip(network.runs, board.steps, strict=True):
        for load, tensors, ports in (
            (True, run.loads, step.loads),
            (False, run.stores, step.stores),
        ):
            for tensor, port in zip(tensors, ports, strict=True):
                by_host = packing_of(port, board.spec, load=load)
                if by_host.place != tensor.packing.place:
                    raise WorkloadError(
                        f"the tensor {tensor.value.name} is stored as {tensor.packing}, but "
                        f"the host packs it as {by_host}; keep the operators around it in "
                        "floating point"
                    )


def _steps(
    network: BoardNetwork, graph: LayerGraph, arenas: Arenas, first: int
) -> list[ProgramStep]:
    """Return the segments of a program, each with the tensors that it exchanges with the host.

    The host packs the input tensors before a segment runs, and unpacks the output tensors after it.

    Args:
        network: the segments and their tensors.
        graph: the network, which contains the shapes and types of tensors on the host.
        arenas: locations of the activations.
        first: index of the first buffer of activations.
    """
    repacked = {tensor.value.name for run in network.runs for tensor in run.loads}
    stored_as = {name: host for name, host in graph.stored_as.items() if name not in repacked}

    def port(tensor: BoardTensor, outside: Value, scale: Scale | None) -> Port:
        value, packing = tensor.value, tensor.packing
        arena, offset = arenas.places[id(tensor)]
        shape = value.shape
        if packing.form == "image" and len(shape) != 4:
            shape = image_shape(shape)
        return Port(
            outside.name, shape, outside.dtype, _as_float32(scale or Scale(1.0)), packing.form,
            arena + first, offset, tensor.unfold,
        )  # fmt: skip

    def load(tensor: BoardTensor) -> Port:
        return port(tensor, graph.loaded_as.get(tensor.value.name, tensor.value),
                    tensor.value.scale)  # fmt: skip

    def store(tensor: BoardTensor) -> Port:
        # The host may use another scale for the tensor than the layers that read it.
        outside = stored_as.get(tensor.value.name, tensor.value)
        return port(tensor, outside, outside.scale or tensor.value.scale)

    return [
        ProgramStep(
            number,
            tuple(load(tensor) for tensor in run.loads),
            tuple(store(tensor) for tensor in run.stores),
        )
        for number, run in enumerate(network.runs)
    ]


def _as_float32(scale: Scale) -> Scale:
    """Return a quantisation scale with its step rounded to float32, as the host computes."""
    with np.errstate(over="ignore"):
        return Scale(float(np.float32(scale.step)), scale.zero_point)
