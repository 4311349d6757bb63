"""Times networks that share most of their layers, for example the candidates of a search.

Each distinct layer is lowered only once, and each proof that an output may overwrite an input is
made only once. Only the instruction streams and the addresses are computed for each network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.artifact_types import HostStep, LayerCost, LayerGraph, Pick, StreamCost
from tilewright.targets.layer import Layer, Value
from tilewright.targets.vta.board.layer_program import LayerProgram, lower_layer
from tilewright.targets.vta.board.memory_plan import is_legal
from tilewright.targets.vta.board.network_program import link_layers
from tilewright.targets.vta.board.segments import Placed
from tilewright.targets.vta.board.simulated_board import DeviceAddresses
from tilewright.targets.vta.instruction_format import MODULE_NAMES, Words
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import simulate_batch, simulate_program
from tilewright.targets.vta.timing.simulate import simulate_one
from tilewright.targets.vta.timing.simulator import (
    BREAKDOWN_COLUMNS,
    RD_BEATS,
    STOP,
    TIMES_COLUMNS,
    WR_BEATS,
    simulator_of,
)
from tilewright.targets.workload import Workload

_Schedule = tuple[Workload, str, tuple[int, ...]]
"""Properties that determine a program except for its constants: workload, name of the schedule
space, and config."""
_Key = tuple[object, ...]


class VtaStreamTimer:
    """Timer for networks that share layers. It caches the programs and cycles of layers.

    It implements `targets.artifact_types.StreamTimer`.
    """

    def __init__(self, spec: VtaSpec) -> None:
        self.spec = spec
        self._programs: dict[_Key, LayerProgram] = {}
        self._legal: dict[tuple[_Schedule, str], bool] = {}
        self._alone: dict[_Schedule, tuple[int, int]] = {}

    @property
    def lowered(self) -> int:
        """Number of distinct layers that have been lowered so far."""
        return len(self._programs)

    def cost(self, graph: LayerGraph, schedules: Sequence[Pick]) -> StreamCost:
        """Simulate the cycles of a network's instruction streams.

        Args:
            graph: the network.
            schedules: one schedule per layer, in the order of `graph.layers`.
        """
        picks = iter(schedules)
        steps = [
            self._program(step, graph.values, next(picks)) if isinstance(step, Layer) else step
            for step in graph.steps
        ]
        built = link_layers(steps, graph, self.spec, self._is_legal)
        placed = DeviceAddresses(built.board)
        counts = [len(run.layers) for run in built.network.runs]
        cycles, in_stream, moved = 0, list[int](), 0
        for number, segment in enumerate(built.board.segments):
            begins = built.begins[len(in_stream) : len(in_stream) + counts[number] + 1]
            insns = placed.insns[segment.first : segment.first + segment.count]
            address = int(placed.insn_addresses[number])
            total, size, ends = self._simulated(insns, address, begins - segment.first)
            cycles, moved = cycles + total, moved + size
            in_stream += ends
        alone = self._each_alone(steps)
        layers = [
            LayerCost(*item, stream) for item, stream in zip(alone, in_stream, strict=True)
        ]  # fmt: skip
        return StreamCost(cycles, moved, tuple(layers))

    def _simulated(
        self, insns: Words, address: int, begins: NDArray[np.int64]
    ) -> tuple[int, int, list[int]]:
        """Simulate the cycles of an instruction stream.

        Unlike `simulate_program`, the function creates no report of single instructions.

        Args:
            insns: instructions, shape (n, 2).
            address: byte address of the first instruction.
            begins: index of each layer's first instruction, and the number of instructions, shape
                (layers + 1,).

        Returns:
            The cycles of the stream, the bytes transferred, and the cycles of each layer.
        """
        sim = simulator_of(self.spec)
        times = np.empty((len(insns), TIMES_COLUMNS), np.int64)
        breakdown = np.empty((len(MODULE_NAMES), BREAKDOWN_COLUMNS), np.int64)
        insns = np.ascontiguousarray(insns)
        total = simulate_one(insns, address, np.zeros(4, np.int64), times, breakdown, sim)
        if total < 0:
            simulate_program(insns, self.spec, address)  # raises an error with the reason
        beats = int(sim.outcome[RD_BEATS] + sim.outcome[WR_BEATS])
        ends = np.maximum.reduceat(times[:, STOP], begins[:-1])
        ends[-1] = total
        spans = np.diff(np.maximum.accumulate(ends), prepend=0).tolist()
        return total, beats * self.spec.machine.bus_bytes, spans

    def _program(self, layer: Layer, values: Mapping[str, Value], pick: Pick) -> LayerProgram:
        key = (
            layer.name, layer.names, layer.workload, layer.reads, layer.output,
            values[layer.data].shape, values[layer.output].shape, pick,
        )  # fmt: skip
        program = self._programs.get(key)
        if program is None:
            program = lower_layer(layer, values, self.spec, pick.space, pick.config)
            self._programs[key] = program
        return program

    def _is_legal(self, layer: Placed, role: str) -> bool:
        key = _schedule(layer.program), role
        if key not in self._legal:
            self._legal[key] = is_legal(layer, role)
        return self._legal[key]

    def _each_alone(self, steps: Sequence[LayerProgram | HostStep]) -> list[tuple[int, int]]:
        """Simulate each layer of a network on its own.

        Args:
            steps: lowered layers and host steps; host steps are skipped.

        Returns:
            Cycles and transferred bytes of each layer.
        """
        programs = [step for step in steps if isinstance(step, LayerProgram)]
        new = {_schedule(program): program for program in programs}
        new = {key: program for key, program in new.items() if key not in self._alone}
        if new:
            parts = list(new.values())
            offsets = np.cumsum([0, *(len(program.insns) for program in parts)])
            addresses = np.array([p.lowering.geometry.insn_bytes_at for p in parts])
            insns = np.concatenate([program.insns for program in parts])
            timed = simulate_batch(insns, offsets, self.spec, addresses)
            moved = (timed.read_beats + timed.write_beats) * self.spec.machine.bus_bytes
            self._alone.update(
                zip(new, zip(timed.cycles.tolist(), moved.tolist(), strict=True), strict=True)
            )
        return [self._alone[_schedule(program)] for program in programs]


def _schedule(program: LayerProgram) -> _Schedule:
    return program.layer.workload, program.space, program.config
