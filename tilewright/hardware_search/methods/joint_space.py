"""The search space of the published methods: a machine together with a schedule for every layer.

A point of the space has one index per knob: first the hardware knobs of the machine, then the
schedule knobs of each layer. Points of different machines must have the same knobs, although the
layers and their knobs differ between machines. This is solved as follows:

- A slot stands for a layer on all machines. It is identified by the first operator of the networks
  that the layer computes.
- A knob of a slot has as many indices as it has values on the machine where it has the most values.
  On another machine, an index selects the value at the same relative position.

A core is a group of machines with the same block sizes. The layers are determined once per core, on
its largest machine. On another machine of the core, a layer may be missing, or its knobs may have
other values. Measurements use the values of the machine itself; the cost model uses the values of
the largest machine.
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
"""Points as knob indices, int array of shape (points, knobs)."""
Floats = NDArray[np.float64]

CORE = ("log_batch", "log_block_in", "log_block_out")
"""Hardware knobs that determine the block sizes, and with them the layers."""


@dataclass(frozen=True)
class JointSlots:
    """The layers of all machines as arrays, indexed by core and slot.

    A core is a group of machines with the same block sizes, which therefore run the same layers. A
    slot stands for the layer that computes a certain operator of a network; the layer differs
    between cores. Missing entries are NaN unless stated otherwise.

    Attributes:
        names: network and operator that identify each slot.
        knobs: names of the schedule knobs.
        calls: calls of the layer in one inference of each network, summed over the networks, shape
            (cores, slots); 0 if the core does not run the layer.
        shapes: sizes of the layer (`SHAPE`), shape (cores, slots, sizes).
        counts: number of values of each knob, shape (cores, slots, knobs); 0 if the layer does not
            have the knob.
        values: values of each knob, shape (cores, slots, knobs, values).
        cpu: seconds that operators on the CPU take for one inference of each network, summed over
            the networks, shape (cores,).
    """

    names: tuple[tuple[str, str], ...]
    knobs: tuple[str, ...]
    calls: Floats
    shapes: Floats
    counts: NDArray[np.int64]
    values: Floats
    cpu: Floats


SHAPE = (
    "batch", "in_channels", "height", "width", "out_channels", "out_height", "out_width",
    "kernel_h", "kernel_w", "stride_h", "stride_w", "groups", "macs",
)  # fmt: skip
"""Sizes of a layer that cost models and agents use."""


class JointSpace:
    """Search space that combines the knobs of a machine with the schedule knobs of all layers.

    A point consists of the hardware knobs of a machine, followed by the schedule knobs of every
    slot. A slot is a layer of the networks (see `JointSlots`). In all methods, `places` are points
    as knob indices, int array of shape (points, knobs).

    Args:
        problem: the co-design problem.

    Attributes:
        slots: the layers of all machines.
        machine: number of values of each hardware knob.
        cardinalities: number of indices of each knob of a point.
        column: column of each slot's knobs in a point, int array of shape (slots, knobs); -1 for a
            knob that the layer does not have or that has a single value, which has no column.
    """

    def __init__(self, problem: CodesignProblem) -> None:
        self.problem, self.hardware = problem, problem.hardware
        self.machine = self.hardware.space.cardinalities
        cores = self._core(self.hardware.points.astype(np.int64))
        self._known_cores, last = np.unique(cores[::-1], return_index=True)
        largest = len(cores) - 1 - last
        self.slots = _slots([problem.design(int(row)) for row in largest])
        most = self.slots.counts.max(axis=0)
        self.column = np.full(most.shape, -1)
        self.column[most > 1] = len(self.machine) + np.arange((most > 1).sum())
        self.cardinalities = np.concatenate([self.machine, most[most > 1]])

    @property
    def hardware_columns(self) -> NDArray[np.int64]:
        """Columns of the hardware knobs in a point, int array of shape (hardware knobs,)."""
        return np.arange(len(self.machine))

    def machines(self, places: Places) -> Floats:
        """Return the values of the hardware knobs of points.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Float array of shape (points, hardware knobs).
        """
        return self._machine_values[np.arange(len(self.machine)), places[:, : len(self.machine)]]

    @cached_property
    def _machine_values(self) -> Floats:
        result = np.full((len(self.machine), int(self.machine.max())), np.nan)
        for k, knob in enumerate(self.hardware.space.knobs):
            result[k, : len(knob.values)] = knob.values
        return result

    def random(self, count: int, rng: np.random.Generator) -> Places:
        """Draw random points. Machines are drawn uniformly from the machines that can be built.

        Args:
            count: number of points.
            rng: random generator.

        Returns:
            The points, int array of shape (count, knobs).
        """
        places = rng.integers(0, self.cardinalities, (count, len(self.cardinalities)))
        rows = rng.integers(0, len(self.hardware.points), count)
        places[:, : len(self.machine)] = self.hardware.points[rows]
        return places

    def rows(self, places: Places) -> NDArray[np.int64]:
        """Return the row of each point's machine in `HardwareSpace.points`.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Int array of shape (points,); -1 if the machine cannot be built or is too large.
        """
        flat = self._flat(places)
        at = np.searchsorted(self._sorted_rows[0], flat)
        at = np.minimum(at, len(self._sorted_rows[0]) - 1)
        return np.where(self._sorted_rows[0][at] == flat, self._sorted_rows[1][at], -1)

    @cached_property
    def _sorted_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        flat = self._flat(self.hardware.points.astype(np.int64))
        order = np.argsort(flat)
        return flat[order], order

    def _flat(self, places: Places) -> NDArray[np.int64]:
        return self.hardware.space.ravel(places[:, : len(self.machine)].astype(np.int32))

    def keys(self, places: Places) -> NDArray[np.int64]:
        """Return a non-negative hash of each point, by which points are compared.

        The probability that different points have the same hash is negligible.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Int array of shape (points,).
        """
        rng = np.random.default_rng(0)
        odd = rng.integers(0, 1 << 63, len(self.cardinalities), dtype=np.uint64) * 2 + 1
        mixed = (places.astype(np.uint64) + 1) @ odd
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        return (mixed >> np.uint64(1)).astype(np.int64)

    def cores(self, places: Places) -> NDArray[np.int64]:
        """Return the core of each point's machine, as an index into the arrays of `slots`.

        Machines with the same block sizes have the same core. A point whose machine cannot be built
        gets the index of a similar core.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Int array of shape (points,).
        """
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
        """Return the index of each schedule knob's value in `slots.values`.

        The knob indices of a point are scaled to the number of values that the knob has on the
        machine's core.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Int array of shape (points, slots, knobs).
        """
        return np.floor(self.shares(places) * self.slots.counts[self.cores(places)]).astype(int)

    def shares(self, places: Places) -> Floats:
        """Return the relative position of each schedule knob in its range, from 0 to below 1.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Float array of shape (points, slots, knobs); 0 for a knob that the layer does not have
            or that has a single value.
        """
        result = (places[:, self.column] + 0.5) / self.cardinalities[self.column]
        return np.where(self.column >= 0, result, 0.0)

    def values(self, places: Places) -> Floats:
        """Return the value of each schedule knob, on the largest machine of the point's core.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Float array of shape (points, slots, knobs); NaN for a knob that the layer does not
            have.
        """
        slots, knobs = np.indices(self.column.shape)
        cores = self.cores(places)[:, None, None]
        return np.asarray(self.slots.values[cores, slots, knobs, self.indices(places)])

    def schedules(
        self, design: Design, point: NDArray[np.int64]
    ) -> Iterator[tuple[int, CodesignLayer, Configs]]:
        """Yield the layers of a machine, each with the config that a point gives it.

        Args:
            design: the machine.
            point: knob indices of the point, int array of shape (knobs,).

        Yields:
            Slot of the layer (-1 if it has none), the layer, and its config, int array of shape (1,
            knobs of the schedule).
        """
        for layer in design.layers:
            slot = next(
                (self._index_by_name[name] for name in layer.names if name in self._index_by_name),
                -1,
            )
            yield slot, layer, self.schedule(design, layer, slot, point)

    def schedule(
        self, design: Design, layer: CodesignLayer, slot: int, point: NDArray[np.int64]
    ) -> Configs:
        """Return the config that a point gives to a layer.

        A point selects a relative position in the range of each knob, so that it also applies to
        machines on which the knob has fewer values. A knob that is not part of the search space
        gets its middle value.

        Args:
            design: the machine.
            layer: the layer.
            slot: slot of the layer; -1 for a layer without a slot, which gets the middle value of
                every knob.
            point: knob indices of the point, int array of shape (knobs,).

        Returns:
            Knob indices of the config, int array of shape (1, knobs of the schedule).
        """
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
        """Return a copy of a point in which one layer has a random schedule.

        Args:
            point: knob indices of the point, int array of shape (knobs,).
            slot: slot of the layer.
            rng: random generator.

        Returns:
            The changed copy, int array of shape (knobs,).
        """
        columns = self.column[slot][self.column[slot] >= 0]
        moved = point.copy()
        moved[columns] = rng.integers(0, self.cardinalities[columns])
        return moved

    @cached_property
    def _index_by_name(self) -> dict[tuple[str, str], int]:
        return {name: slot for slot, name in enumerate(self.slots.names)}


def _slots(designs: list[Design]) -> JointSlots:
    """Collect the layers of several machines into arrays.

    Args:
        designs: the largest machine of each core, with its layers.

    Returns:
        The layers, with one core per machine, in the order of `designs`.
    """
    names: dict[tuple[str, str], int] = {}
    knobs: dict[str, int] = {}
    spaces = [
        [design.target.space(layer.workload) for layer in design.layers] for design in designs
    ]
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
            shapes[core, slot] = [getattr(layer.workload, item) for item in SHAPE]
            for knob in space.knobs:
                counts[core, slot, knobs[knob.name]] = len(knob.values)
                values[core, slot, knobs[knob.name], : len(knob.values)] = knob.values
    cpu = np.array([sum(design.cpu_seconds) for design in designs])
    return JointSlots(tuple(names), tuple(knobs), calls, shapes, counts, values, cpu)
