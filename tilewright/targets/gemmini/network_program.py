"""Runs a built network on the simulated accelerator.

The module implements the protocol `targets.artifact_types.BuiltProgram`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_int, as_list, as_object, as_text, read_json
from tilewright.targets.artifact_types import LayerCheck, StreamTimes, Tensors
from tilewright.targets.gemmini.c_export import SegmentCommands, c_network
from tilewright.targets.gemmini.functional import execute_stream
from tilewright.targets.gemmini.isa import FENCE
from tilewright.targets.gemmini.lowering.batch import stream_from
from tilewright.targets.gemmini.lowering.command_encoding import CommandTable, commands
from tilewright.targets.gemmini.lowering.geometry import MEMORY_BASE, MEMORY_BYTES, BlockGeometry
from tilewright.targets.gemmini.lowering.memory_layout import unpack_bias, unpack_weight
from tilewright.targets.gemmini.network_memory import HostTensor, rows_at
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.timing import time_stream
from tilewright.targets.integer_reference import reference
from tilewright.targets.layer import Value
from tilewright.targets.workload import Workload, parse_workload

COMMANDS, CONSTANTS, PROGRAM = "commands.bin", "constants.bin", "program.json"
"""Names of the three files of a program: the commands of all layers, little-endian uint64 of shape
(n, 3); the constants, one after another; and a JSON file that states where the constants are in
memory and which tensors each segment reads and writes."""


class ProgramDamaged(TilewrightError):
    """Raised if the files of an artifact are not a valid Gemmini program."""


@dataclass(frozen=True, eq=False)
class BuiltLayer:
    """A layer of a built program.

    Attributes:
        workload: the workload of the layer.
        segment: index of the layer's segment.
        commands: commands of the layer, shape (n, 3) with the columns function code, first and
            second operand.
        geometry: sizes of the layer and addresses of its tensors in memory.
    """

    workload: Workload
    segment: int
    commands: CommandTable
    geometry: BlockGeometry


class GemminiProgram:
    """The program of a network, loaded into the memory of a simulated machine.

    A program consists of segments: sequences of layers without work of the host in between.
    """

    def __init__(
        self, spec: GemminiSpec, memory: NDArray[np.uint8], layers: Sequence[BuiltLayer],
        segments: Sequence[tuple[Sequence[HostTensor], Sequence[HostTensor]]],
        constants: Sequence[tuple[int, bytes]],
    ) -> None:  # fmt: skip
        self.spec, self.memory, self.layers, self.segments = spec, memory, layers, segments
        self.constants = constants  # list of address and bytes

    @classmethod
    def open(
        cls, files: Mapping[str, bytes], layers: Sequence[Mapping[str, Json]], spec: GemminiSpec
    ) -> GemminiProgram:
        """Load a built program.

        Args:
            files: content of the artifact's files, by name.
            layers: descriptions of the layers, as `network_build.build` wrote them.
            spec: the machine.

        Raises:
            ProgramDamaged: a size is invalid, or the layers and the command file contradict each
                other.
            KeyError: the description of a layer is incomplete.
            ValueError: the description of a layer is invalid.
            TypeError: the description of a layer has values of the wrong type.
        """
        described = as_object(read_json(files[PROGRAM].decode()))
        size = as_int(described["memory_bytes"])
        if not 0 < size <= MEMORY_BYTES or len(files[COMMANDS]) % 24:
            raise ProgramDamaged("the sizes of its memory or commands are invalid; build it again")
        memory, at, constants = np.zeros(size, np.uint8), 0, []
        for piece in as_list(described["constants"]):
            address, count = map(as_int, as_list(piece))
            part = np.frombuffer(files[CONSTANTS], np.uint8)[at : at + count]
            rows_at(memory, address, 1, count)[0] = part.view(np.int8)
            constants.append((address, part.tobytes()))
            at += count
        every = np.frombuffer(files[COMMANDS], "<u8").astype(np.uint64).reshape(-1, 3)
        segments = [
            tuple(
                [HostTensor.from_json(as_object(port)) for port in as_list(as_object(item)[side])]
                for side in ("loads", "stores")
            )
            for item in as_list(described["segments"])
        ]
        built = [_layer(as_object(dict(layer)), every) for layer in layers]
        if sum(len(layer.commands) for layer in built) != len(every):
            raise ProgramDamaged("the layers have other commands than the program; build it again")
        ports = [(loads, stores) for loads, stores in segments]
        return cls(spec, memory, built, ports, constants)

    @property
    def ports(self) -> list[tuple[list[Value], list[Value]]]:
        """Tensors that each segment takes and returns, in their shapes and types on the host.

        A segment is a sequence of layers without work of the host in between.
        """
        return [
            ([Value(p.name, p.shape, p.dtype) for p in loads],
             [Value(p.name, p.shape, p.dtype) for p in stores])
            for loads, stores in self.segments
        ]  # fmt: skip

    def run(self, segment: int, tensors: Tensors) -> dict[str, NDArray[np.generic]]:
        """Run a segment, a sequence of layers, on the functional simulator.

        Args:
            segment: index of the segment.
            tensors: inputs by name, in the shapes of the segment's input ports.

        Returns:
            Outputs by name, in the shapes of the segment's output ports.

        Raises:
            StreamError: a command of the segment is invalid.
        """
        loads, stores = self.segments[segment]
        for port in loads:
            port.load(self.memory, tensors[port.name])
        stream = stream_from(segment_commands(self._tables_of_segment(segment)))
        self.memory = execute_stream(stream, self.memory, MEMORY_BASE, self.spec)
        return {port.name: port.store(self.memory) for port in stores}

    def times(self) -> list[StreamTimes]:
        """Simulate the timing of all segments, each with its layers in sequence.

        A layer ends when the accelerator is idle, which is when its fence is accepted.

        Returns:
            Cycles per segment: in total, per layer, and the events of all commands.
        """
        segment_times = []
        for segment in range(len(self.segments)):
            stream = stream_from(segment_commands(self._tables_of_segment(segment)))
            times = time_stream(stream, self.spec)
            ends = times.events["accept"][stream.funct == FENCE].tolist()
            spans = [end - begin for begin, end in pairwise([0, *ends[:-1], times.total])]
            segment_times.append(StreamTimes(times.total, tuple(spans), times))
        return segment_times

    def verify(self, seed: int = 0) -> Iterator[LayerCheck]:
        """Check each layer on random input activations, with the weights from memory.

        The reference is the integer arithmetic of `targets.integer_reference`.

        Args:
            seed: seed of the random activations.

        Yields:
            One result per layer.
        """
        rng = np.random.default_rng(seed)
        for number, layer in enumerate(self.layers):
            yield _check_layer(number, layer, self.memory, self.spec, rng)

    def c_files(self, header: str) -> tuple[str, str]:
        """Return the C file of the network and its header, see `c_export.c_network`."""
        segments = [
            SegmentCommands(segment_commands(self._tables_of_segment(number)), loads, stores)
            for number, (loads, stores) in enumerate(self.segments)
        ]
        return c_network(self.spec, len(self.memory), self.constants, segments, header)

    def _tables_of_segment(self, segment: int) -> list[CommandTable]:
        return [layer.commands for layer in self.layers if layer.segment == segment]


def segment_commands(parts: Sequence[CommandTable]) -> CommandTable:
    """Concatenate the commands of several layers, with a fence after each layer.

    The fence makes a layer finish before the next one reads its output.

    Args:
        parts: commands of each layer, shape (n, 3).

    Returns:
        Commands of the segment, shape (total, 3).
    """
    fence = commands([(FENCE, 0, 0)])
    return np.concatenate([part for layer in parts for part in (layer, fence)])


def _layer(row: Mapping[str, Json], every: CommandTable) -> BuiltLayer:
    first, count = map(as_int, as_list(row["instructions"]))
    workload = parse_workload(as_text(row["workload"]), as_text(row["epilogue"]))
    data, residual, output, weight = map(as_int, as_list(row["strides"]))
    addresses = {role: as_int(at) for role, at in as_object(row["addresses"]).items()}
    geometry = replace(
        BlockGeometry.for_workload(workload), data_stride=data, residual_stride=residual,
        output_stride=output, weight_stride=weight, addresses=addresses,
    )  # fmt: skip
    return BuiltLayer(workload, as_int(row["segment"]), every[first : first + count], geometry)


def _check_layer(
    number: int, layer: BuiltLayer, memory: NDArray[np.uint8], spec: GemminiSpec,
    rng: np.random.Generator,
) -> LayerCheck:  # fmt: skip
    g, w, image = layer.geometry, layer.workload, memory.copy()
    tensors: dict[str, NDArray[np.generic]] = {}
    activations = {
        "data": ((w.batch, w.in_channels, w.height, w.width), g.data_stride),
        "residual": ((w.batch, w.out_channels, w.out_height, w.out_width), g.residual_stride),
    }
    rows = {
        role: rows_at(image, g.addresses[role], shape[0] * shape[2] * shape[3], stride)
        for role, (shape, stride) in activations.items()
        if role in g.addresses
    }
    for role, tensor in rows.items():
        channels = activations[role][0][1]
        tensor[:, :channels] = rng.integers(-128, 128, (len(tensor), channels), np.int8)
    for role, tensor in rows.items():  # two roles may have the same tensor
        n, c, height, width = activations[role][0]
        tensors[role] = tensor[:, :c].reshape(n, height, width, c).transpose(0, 3, 1, 2).copy()
    tensors["weight"] = unpack_weight(g, w, image)
    if g.epilogue.has_bias:
        tensors["bias"] = unpack_bias(g, image)
    after = execute_stream(stream_from(layer.commands), image, MEMORY_BASE, spec)
    got = rows_at(after, g.addresses["output"], g.pixels, g.output_stride)[:, : w.out_channels]
    expected = reference(w, tensors).transpose(0, 2, 3, 1).reshape(got.shape)
    return LayerCheck(number, expected.size, int((got != expected).sum()))
