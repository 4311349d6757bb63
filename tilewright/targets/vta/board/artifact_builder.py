"""Builds a network for a VTA board: converts layers and schedules to files, and loads such files.

The module implements the protocol `targets.capabilities.Builds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.targets.artifact_types import (
    BorderWork,
    Built,
    HostStep,
    LayerCheck,
    LayerGraph,
    Pick,
    StreamTimes,
    Tensors,
)
from tilewright.targets.layer import Layer, Value
from tilewright.targets.vta.board.layer_check import (
    Checked,
    check_described,
    check_layers,
    read_layer,
)
from tilewright.targets.vta.board.layer_program import LayerProgram, lower_layer
from tilewright.targets.vta.board.network_program import Linked, link_layers
from tilewright.targets.vta.board.program import BoardProgram, Port
from tilewright.targets.vta.board.program_check import why_not_bare
from tilewright.targets.vta.board.program_image import image_files, read_image
from tilewright.targets.vta.board.runtime import sources_digest
from tilewright.targets.vta.board.simulated_board import Device, VtaImages, room_bytes
from tilewright.targets.vta.energy import energy_of
from tilewright.targets.vta.instruction_format import (
    ACC,
    ALU,
    GEMM,
    INP,
    OUT,
    UOP,
    WGT,
    Words,
    field,
    fields_of,
    layout_of,
    memories,
    moves,
    opcodes,
)
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import simulate_batch, simulate_program
from tilewright.targets.vta.workload_bound import roofline_cycles


class VtaProgram:
    """Built network that is loaded into the memory of a simulated board.

    It implements the protocol `targets.artifact_types.BuiltProgram`. A segment is a sequence of
    layers that runs as one instruction stream, without the host.
    """

    def __init__(self, program: BoardProgram, layers: Sequence[Checked]) -> None:
        self.program = program
        self.layers = layers
        self.device = Device(program)

    @classmethod
    def open(
        cls, files: Mapping[str, bytes], layers: Sequence[Mapping[str, Json]], spec: VtaSpec
    ) -> VtaProgram:
        """Load a built network from the files of an artifact.

        Args:
            files: content of the artifact's files, by file name.
            layers: JSON description of each layer, as `build` returns them in `Built.layers`.
            spec: the machine.

        Raises:
            BoardError: the files are damaged, or the layers do not belong to the program.
            ValueError: the description of a layer is invalid.
            KeyError: the description of a layer is incomplete.
        """
        program, described = read_image(files, spec), [read_layer(layer) for layer in layers]
        check_described(program, described)
        return cls(program, described)

    @property
    def ports(self) -> list[tuple[list[Value], list[Value]]]:
        """Inputs and outputs of each segment, in their shapes and types on the host.

        A segment is a sequence of layers that runs as one instruction stream.
        """
        return [(_values(step.loads), _values(step.stores)) for step in self.program.steps]

    def run(self, segment: int, tensors: Tensors) -> dict[str, NDArray[np.generic]]:
        """Run one segment, a sequence of layers, on the simulated board.

        Args:
            segment: index of the segment.
            tensors: inputs by name, in the shapes and types of the segment's input ports.

        Returns:
            Outputs by name, in the shapes and types of the segment's output ports.
        """
        return self.device.run(segment, tensors)

    def times(self) -> list[StreamTimes]:
        """Simulate the cycles of each segment and of its layers.

        A segment is a sequence of layers that runs as one instruction stream.
        """
        counts = [0] * len(self.program.segments)
        for layer in self.layers:
            counts[layer.segment] += 1
        ends = [layer.first + layer.count for layer in self.layers]
        begins = np.array([0, *ends], np.int64)
        return stream_times(self.device, begins, counts)

    def verify(self, seed: int = 0) -> Iterator[LayerCheck]:
        """Compare the output of every layer with the integer reference, on random data.

        Args:
            seed: seed of the random activations.

        Yields:
            One result per layer.
        """
        return check_layers(self.program, self.layers, seed)

    def c_files(self, header: str) -> None:
        """Return None, because a VTA program has no C form.

        The VTA reads its instructions from memory.
        """
        return

    def with_room(self, images: int) -> VtaImages:
        """Load the program again, with separate activation buffers for `images` images."""
        return VtaImages(self.program, images)

    def room_bytes(self, images: int) -> int:
        """Return the memory in bytes that the program needs with buffers for `images` images."""
        return room_bytes(self.program, images)

    def border_work(self) -> list[tuple[BorderWork, BorderWork]]:
        """Return the work of the host before each segment (packing) and after it (unpacking).

        A segment is a sequence of layers that runs as one instruction stream.
        """
        return [(_border(step.loads), _border(step.stores)) for step in self.program.steps]


def _values(ports: Sequence[Port]) -> list[Value]:
    return [Value(port.name, port.shape, port.dtype) for port in ports]


def _border(ports: Sequence[Port]) -> BorderWork:
    plain = [prod(port.shape) for port in ports if port.unfold is None]
    read, written = 0, 0
    for port in ports:
        if port.unfold is not None:
            read += prod(port.shape)
            written += port.unfold.data(np.zeros(port.shape, np.int8)).nbytes
    return BorderWork(sum(plain), read, written)


def build(graph: LayerGraph, schedules: Sequence[Pick], spec: VtaSpec) -> Built:
    """Lower the layers of a network, link them, and lay out their memory.

    Args:
        graph: the network.
        schedules: one schedule per layer, in order.
        spec: the machine.

    Raises:
        WorkloadError: a layer cannot be lowered, or no board could load the network.
    """
    picks = iter(schedules)
    steps: list[LayerProgram | HostStep] = []
    for step in graph.steps:
        if isinstance(step, Layer):
            pick = next(picks)
            steps.append(lower_layer(step, graph.values, spec, pick.space, pick.config))
        else:
            steps.append(step)
    built = link_layers(steps, graph, spec)
    device = Device(built.board)
    counts = [len(run.layers) for run in built.network.runs]
    times = stream_times(device, built.begins, counts)
    host_work = [step.name for step in graph.steps if isinstance(step, HostStep)]
    host_work += graph.host_work
    steps_of = built.board.steps
    return Built(
        files=image_files(built.board, host_work),
        layers=_describe_layers(built, [cycles for time in times for cycles in time.layers]),
        order=[("segment", run) if run >= 0 else ("host", host) for run, host in
               built.network.order],
        memory=_memory(built),
        bytes=device.bytes,
        stream_cycles=sum(time.total for time in times),
        ports=[
            (tuple(port.name for port in step.loads), tuple(port.name for port in step.stores))
            for step in steps_of
        ],
        why_not_bare=why_not_bare(built.board, host_work),
        runtime_sha256=sources_digest(),
    )  # fmt: skip


def stream_times(
    device: Device, begins: NDArray[np.int64], counts: Sequence[int]
) -> list[StreamTimes]:
    """Simulate the cycles of each segment of a loaded program, and of its layers.

    A segment is a sequence of layers that runs as one instruction stream, without the host.

    Args:
        device: the loaded program.
        begins: index of the first instruction of each layer, followed by the number of all
            instructions, shape (layers + 1,).
        counts: number of layers per segment.
    """
    times, done = [], 0
    for number, segment in enumerate(device.program.segments):
        insns = device.insns[segment.first : segment.first + segment.count]
        address = int(device.insn_addresses[number])
        report = simulate_program(insns, device.program.spec, address)
        inside = begins[done : done + counts[number] + 1] - segment.first
        ends = [0, *(int(report.ends[a:b].max()) for a, b in pairwise(inside.tolist()))]
        ends[-1] = report.total
        spans = np.diff(np.maximum.accumulate(ends)).tolist()
        spent = energy_of(device.program.spec, counters_of(insns, device.program.spec))
        microjoules = 1e-6 * float(sum(item[0] for item in spent.values()))
        times.append(StreamTimes(report.total, tuple(spans), report, microjoules))
        done += counts[number]
    return times


def alone_cycles(programs: Sequence[LayerProgram], spec: VtaSpec) -> list[int]:
    """Simulate the cycles of each layer when it runs alone, with its own memory.

    Args:
        programs: the lowered layers.
        spec: the machine.

    Returns:
        Cycles of each layer from launch to FINISH.
    """
    offsets = np.cumsum([0, *(len(program.insns) for program in programs)])
    insns = np.concatenate([program.insns for program in programs])
    addresses = np.array([program.lowering.geometry.insn_bytes_at for program in programs])
    return simulate_batch(insns, offsets, spec, addresses).cycles.tolist()


def _describe_layers(built: Linked, in_stream: Sequence[int]) -> list[dict[str, Json]]:
    """Return the JSON description of each layer, which the artifact stores.

    Args:
        built: the linked network.
        in_stream: cycles of each layer within its segment's instruction stream.
    """
    programs = [placed.program for placed in built.layers]
    spec = built.board.spec
    alone = alone_cycles(programs, spec)
    segments = [k for k, run in enumerate(built.network.runs) for _ in run.layers]
    rows: list[dict[str, Json]] = []
    for k, (placed, places) in enumerate(zip(built.layers, built.places, strict=True)):
        program, layer = placed.program, placed.program.layer
        lowering = program.lowering
        rows.append(
            {
                "cycles": alone[k],
                "stream_cycles": in_stream[k],
                "roofline_cycles": roofline_cycles(layer.workload, spec),
                "workload": str(layer.workload),
                "epilogue": layer.workload.epilogue_text,
                "space": program.space,
                "config": list(program.config),
                "knobs": lowering.space.describe(program.config),
                "segment": segments[k],
                "instructions": [int(built.begins[k]), int(built.begins[k + 1] - built.begins[k])],
                "places": {
                    name: [[p.first, p.last, p.buffer, p.offset] for p in pieces]
                    for name, pieces in places.items() if pieces
                },
            }
        )  # fmt: skip
    return rows


def _memory(built: Linked) -> dict[str, Json]:
    """Return the memory layout as JSON: the buffers, and the tensors in them, in bytes."""
    first = len(built.board.buffers) - sum(b.kind == "activations" for b in built.board.buffers)
    m = built.board.spec.machine
    tensors: list[dict[str, Json]] = []
    seen: set[int] = set()
    for placed, places in zip(built.layers, built.places, strict=True):
        for role, tensor in placed.tensors.items():
            piece = places[role][0]
            # A repacked tensor may stay in its old place, with blocks of another size.
            if id(tensor) in seen or piece.buffer < first:
                continue
            seen.add(id(tensor))
            tensors.append(
                {
                    "name": tensor.value.name, "buffer": piece.buffer, "offset": piece.offset,
                    "bytes": tensor.packing.bytes(m), "first_step": tensor.first,
                    "last_step": tensor.last,
                }
            )  # fmt: skip
    return {
        "buffers": [
            {"name": buffer.name, "kind": buffer.kind, "bytes": buffer.bytes}
            for buffer in built.board.buffers
        ],
        "instructions": [segment.count * 16 for segment in built.board.segments],
        "tensors": tensors,
    }


def counters_of(words: Words, spec: VtaSpec) -> dict[str, NDArray[np.int64]]:
    """Count the bytes that a program transfers and the iterations that it executes.

    Args:
        words: instructions, shape (n, 2).
        spec: the machine.

    Returns:
        Totals by counter name, int64, shape (1,) each. The names are those of the counters in
        `Measurements`. Bytes exclude padding, and iterations exclude resets of accumulators.
    """
    m, moved = spec.machine, words[moves(words)]
    elements = field(moved, 64, 16) * field(moved, 80, 16)
    memory = memories(moved)
    sizes = {
        "inp_load_bytes": (INP, m.inp_bytes), "wgt_load_bytes": (WGT, m.wgt_bytes),
        "acc_load_bytes": (ACC, m.acc_bytes), "uop_load_bytes": (UOP, m.uop_bytes),
        "out_store_bytes": (OUT, m.out_bytes),
    }  # fmt: skip
    totals = {name: elements[memory == kind].sum() * size for name, (kind, size) in sizes.items()}
    totals |= {
        "gemm_iterations": _iterations(words, GEMM, spec),
        "alu_iterations": _iterations(words, ALU, spec),
        "instructions": np.int64(len(words)),
    }
    return {name: np.array([value], np.int64) for name, value in totals.items()}


def _iterations(words: Words, opcode: int, spec: VtaSpec) -> np.int64:
    """Count the iterations of all GEMM or all ALU instructions of a program.

    Instructions that only reset accumulators are not counted.

    Args:
        words: instructions, shape (n, 2).
        opcode: `GEMM` or `ALU`.
        spec: the machine.
    """
    selected = words[opcodes(words) == opcode]
    values = {
        part.name: field(selected, part.offset, part.width)
        for part in fields_of(opcode, layout_of(spec))[:5]
    }
    iterations = (values["uop_end"] - values["uop_bgn"]) * values["iter_out"] * values["iter_in"]
    return np.int64(iterations[values["reset_reg"] == 0].sum())
