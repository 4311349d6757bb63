"""What networks take whose layers are mostly the same: each layer is lowered once, each proof about
a program's memory is made once, and only streams and addresses are made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from targets.built import HostStep, LayerCost, LayerGraph, Pick, StreamCost
from targets.layer import Layer, Value
from targets.vta.board.build import linked
from targets.vta.board.device import Addresses
from targets.vta.board.in_place import is_legal
from targets.vta.board.lower import LayerProgram, lower_layer
from targets.vta.board.network import Placed
from targets.vta.spec import VtaSpec
from targets.vta.timing import simulate_batch, simulate_program
from targets.vta.timing.batch import BatchCycles
from targets.workload import Workload

_Schedule = tuple[Workload, str, tuple[int, ...]]
"""What decides a program, all but its constants: workload, space and config."""
_Key = tuple[object, ...]


class VtaStreamTimer:
    """Keeps `targets.built.StreamTimer`."""

    def __init__(self, spec: VtaSpec) -> None:
        self.spec = spec
        self._programs: dict[_Key, LayerProgram] = {}
        self._legal: dict[tuple[_Schedule, str], bool] = {}
        self._alone: dict[_Schedule, LayerCost] = {}

    @property
    def lowered(self) -> int:
        """How many layers were lowered so far."""
        return len(self._programs)

    def cost(self, graph: LayerGraph, schedules: Sequence[Pick]) -> StreamCost:
        picks = iter(schedules)
        steps = [
            self._program(step, graph.values, next(picks)) if isinstance(step, Layer) else step
            for step in graph.steps
        ]
        made = linked(steps, graph, self.spec, self._is_legal)
        placed = Addresses(made.board)
        offsets = np.array(
            [0, *(segment.first + segment.count for segment in made.board.segments)], np.int64
        )
        timed = simulate_batch(placed.insns, offsets, self.spec, placed.insn_addresses, threads=1)
        for k in np.flatnonzero(timed.cycles < 0).tolist():  # says why
            stream = placed.insns[offsets[k] : offsets[k + 1]]
            simulate_program(stream, self.spec, int(placed.insn_addresses[k]))
        moved = _beats(timed) * self.spec.machine.bus_bytes
        return StreamCost(int(timed.cycles.sum()), int(moved.sum()), self._each_alone(steps))

    def _program(self, layer: Layer, values: Mapping[str, Value], pick: Pick) -> LayerProgram:
        key = (
            layer.name, layer.names, layer.workload, layer.data, layer.output, layer.residual,
            layer.weight_from, values[layer.data].shape, values[layer.output].shape, pick,
        )  # fmt: skip
        found = self._programs.get(key)
        if found is None:
            found = lower_layer(layer, values, self.spec, pick.space, pick.config)
            self._programs[key] = found
        return found

    def _is_legal(self, layer: Placed, role: str) -> bool:
        key = _schedule(layer.program), role
        if key not in self._legal:
            self._legal[key] = is_legal(layer, role)
        return self._legal[key]

    def _each_alone(self, steps: Sequence[LayerProgram | HostStep]) -> tuple[LayerCost, ...]:
        """What layers take by themselves, on memory of their own."""
        programs = [step for step in steps if isinstance(step, LayerProgram)]
        new = {_schedule(program): program for program in programs}
        new = {key: program for key, program in new.items() if key not in self._alone}
        if new:
            parts = list(new.values())
            offsets = np.cumsum([0, *(len(program.insns) for program in parts)])
            addresses = np.array([p.lowering.geometry.insn_bytes_at for p in parts])
            insns = np.concatenate([program.insns for program in parts])
            timed = simulate_batch(insns, offsets, self.spec, addresses)
            moved = _beats(timed) * self.spec.machine.bus_bytes
            for key, cycles, size in zip(new, timed.cycles.tolist(), moved.tolist(), strict=True):
                self._alone[key] = LayerCost(cycles, size)
        return tuple(self._alone[_schedule(program)] for program in programs)


def _schedule(program: LayerProgram) -> _Schedule:
    return program.layer.workload, program.space, program.config


def _beats(timed: BatchCycles) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Words of the bus that each program reads and writes, (programs,)."""
    return timed.read_beats + timed.write_beats
