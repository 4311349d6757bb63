"""What the published methods search: points of a machine and a schedule of every layer.

A point is a row of places, one per knob: the hardware's, then those of layer after layer. Layers
differ from machine to machine, and so do the values of their knobs. So a layer is identified by the
first operator of the networks that it computes. A knob of a layer has as many places as the most
values that it has anywhere. The same place is the same share of the values on every machine.

What layers are is asked of one machine of every core (block sizes), the largest. On another machine
of that core a layer may be missing, or have other values. It is measured with its own values, and
the cost model sees it as on the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.problem import CodesignLayer, CodesignProblem, Design
from tilewright.targets.base import Configs

Places = NDArray[np.int64]
"""Points, shape (points, knobs)."""
Floats = NDArray[np.float64]

CORE = ("log_batch", "log_block_in", "log_block_out")
"""Hardware knobs that shape layers."""


@dataclass(frozen=True)
class JointSlots:
    """Layers of some cores, by core and slot (and knob, and value); NaN where there is none."""

    names: tuple[tuple[str, str], ...]
    knobs: tuple[str, ...]
    calls: Floats  # (cores, slots); 0 where the core does not run it
    shapes: Floats  # (cores, slots, sizes)
    counts: NDArray[np.int64]  # (cores, slots, knobs): values; 0 where it lacks the knob
    values: Floats  # (cores, slots, knobs, values)
    cpu: Floats  # (cores,): seconds that all networks leave to the CPU


SHAPE = (
    "batch", "in_channels", "height", "width", "out_channels", "out_height", "out_width",
    "kernel_h", "kernel_w", "stride_h", "stride_w", "groups", "macs",
)  # fmt: skip
"""What is told of a layer."""


class JointSpace:
    """All points of a problem."""

    def __init__(self, problem: CodesignProblem) -> None:
        self.problem, self.hardware = problem, problem.hardware
        self.machine = self.hardware.space.cardinalities
        cores = self._core(self.hardware.points.astype(np.int64))
        self._known_cores, last = np.unique(cores[::-1], return_index=True)
        largest = len(cores) - 1 - last
        self.slots = _slots([problem.design(int(row)) for row in largest])
        most = self.slots.counts.max(axis=0)
        self.column = np.full(most.shape, -1)
        """Of each knob of each slot, shape (slots, knobs); -1 where nothing is to choose."""
        self.column[most > 1] = len(self.machine) + np.arange((most > 1).sum())
        self.cardinalities = np.concatenate([self.machine, most[most > 1]])

    @property
    def hardware_columns(self) -> NDArray[np.int64]:
        """Columns of a point that are the machine's, shape (knobs,)."""
        return np.arange(len(self.machine))

    def machines(self, places: Places) -> Floats:
        """Values of the hardware's knobs, shape (points, knobs)."""
        return self._machine_values[np.arange(len(self.machine)), places[:, : len(self.machine)]]

    @cached_property
    def _machine_values(self) -> Floats:
        found = np.full((len(self.machine), int(self.machine.max())), np.nan)
        for k, knob in enumerate(self.hardware.space.knobs):
            found[k, : len(knob.values)] = knob.values
        return found

    def random(self, count: int, rng: np.random.Generator) -> Places:
        """So many points, shape (count, knobs), of machines and places drawn evenly."""
        places = rng.integers(0, self.cardinalities, (count, len(self.cardinalities)))
        rows = rng.integers(0, len(self.hardware.points), count)
        places[:, : len(self.machine)] = self.hardware.points[rows]
        return places

    def rows(self, places: Places) -> NDArray[np.int64]:
        """Machines, as rows of `Hardware.points`, shape (points,); -1 where there is none."""
        flat = self._flat(places)
        at = np.searchsorted(self._sorted[0], flat)
        at = np.minimum(at, len(self._sorted[0]) - 1)
        return np.where(self._sorted[0][at] == flat, self._sorted[1][at], -1)

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        flat = self._flat(self.hardware.points.astype(np.int64))
        order = np.argsort(flat)
        return flat[order], order

    def _flat(self, places: Places) -> NDArray[np.int64]:
        return self.hardware.space.ravel(places[:, : len(self.machine)].astype(np.int32))

    def keys(self, places: Places) -> NDArray[np.int64]:
        """A number of each point, shape (points,), not negative; equal ones about never."""
        rng = np.random.default_rng(0)
        odd = rng.integers(0, 1 << 63, len(self.cardinalities), dtype=np.uint64) * 2 + 1
        mixed = (places.astype(np.uint64) + 1) @ odd
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        return (mixed >> np.uint64(1)).astype(np.int64)

    def cores(self, places: Places) -> NDArray[np.int64]:
        """Which core each point has, shape (points,); that of no machine counts as a near one."""
        at = np.searchsorted(self._known_cores, self._core(places[:, : len(self.machine)]))
        return np.minimum(at, len(self._known_cores) - 1)

    def _core(self, machines: Places) -> NDArray[np.int64]:
        names = [knob.name for knob in self.hardware.space.knobs]
        number = np.zeros(len(machines), np.int64)
        for k, name in enumerate(names):
            if name in CORE:
                number = number * self.machine[k] + machines[:, k]
        return number

    def indices(self, places: Places) -> NDArray[np.int64]:
        """Of each knob's values, shape (points, slots, knobs), on the machine's core."""
        return np.floor(self.shares(places) * self.slots.counts[self.cores(places)]).astype(int)

    def shares(self, places: Places) -> Floats:
        """Where each knob of each slot is among its values, from 0 to below 1, shape (points,
        slots, knobs); 0 where nothing is to choose."""
        found = (places[:, self.column] + 0.5) / self.cardinalities[self.column]
        return np.where(self.column >= 0, found, 0.0)

    def values(self, places: Places) -> Floats:
        """Of each knob of each slot, shape (points, slots, knobs); NaN where it lacks the knob."""
        slots, knobs = np.indices(self.column.shape)
        cores = self.cores(places)[:, None, None]
        return np.asarray(self.slots.values[cores, slots, knobs, self.indices(places)])

    def schedules(
        self, design: Design, point: NDArray[np.int64]
    ) -> Iterator[tuple[int, CodesignLayer, Configs]]:
        """What a point measures on its machine: slot, layer and its config, shape (1, knobs)."""
        for layer in design.layers:
            slot = next((self._of[name] for name in layer.names if name in self._of), -1)
            yield slot, layer, self.schedule(design, layer, slot, point)

    def schedule(
        self, design: Design, layer: CodesignLayer, slot: int, point: NDArray[np.int64]
    ) -> Configs:
        """A layer's config at a point, shape (1, knobs); in slot -1, that of no core, the middle of
        every knob."""
        space, shares = design.target.space(layer.workload), self.shares(point[None])[0]
        place = {name: k for k, name in enumerate(self.slots.knobs)}
        share = [
            0.5 if slot < 0 or knob.name not in place else shares[slot, place[knob.name]]
            for knob in space.knobs
        ]
        return np.floor(share * space.cardinalities).astype(np.int32)[None]

    def redraw_schedule(
        self, point: NDArray[np.int64], slot: int, rng: np.random.Generator
    ) -> Places:
        """A point, shape (knobs,), with another schedule of a slot, drawn evenly."""
        columns = self.column[slot][self.column[slot] >= 0]
        moved = point.copy()
        moved[columns] = rng.integers(0, self.cardinalities[columns])
        return moved

    @cached_property
    def _of(self) -> dict[tuple[str, str], int]:
        return {name: slot for slot, name in enumerate(self.slots.names)}


def _slots(designs: list[Design]) -> JointSlots:
    names: dict[tuple[str, str], int] = {}
    knobs: dict[str, int] = {}
    spaces = [[each.target.space(layer.workload) for layer in each.layers] for each in designs]
    for design, own in zip(designs, spaces, strict=True):
        for layer, space in zip(design.layers, own, strict=True):
            names.setdefault(layer.names[0], len(names))
            for knob in space.knobs:
                knobs.setdefault(knob.name, len(knobs))
    most = max(len(knob.values) for own in spaces for space in own for knob in space.knobs)
    size = (len(designs), len(names))
    calls, shapes = np.zeros(size), np.full((*size, len(SHAPE)), np.nan)
    counts = np.zeros((*size, len(knobs)), np.int64)
    values = np.full((*size, len(knobs), most), np.nan)
    for core, (design, own) in enumerate(zip(designs, spaces, strict=True)):
        for layer, space in zip(design.layers, own, strict=True):
            slot = names[layer.names[0]]
            calls[core, slot] += layer.calls
            shapes[core, slot] = [getattr(layer.workload, each) for each in SHAPE]
            for knob in space.knobs:
                counts[core, slot, knobs[knob.name]] = len(knob.values)
                values[core, slot, knobs[knob.name], : len(knob.values)] = knob.values
    cpu = np.array([sum(design.cpu_seconds) for design in designs])
    return JointSlots(tuple(names), tuple(knobs), calls, shapes, counts, values, cpu)
