"""The machines that a co-design search may choose, within bounds and an area budget."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import SpecError, TilewrightError
from tilewright.targets.base import Configs, Knob, Space, Target
from tilewright.targets.capabilities import HasArea, HasDesigns, capability


class ImpossibleHardware(TilewrightError):
    """Error for bounds and an area budget that no machine satisfies."""


class HardwareSpace:
    """The accelerators ("machines") that a co-design search may choose.

    A machine is the base machine with other values of its hardware knobs, such as block and buffer
    sizes. The space contains the machines whose knob values lie within bounds, that can be built,
    and whose area does not exceed the budget. Areas are relative to the stock machine, which is the
    default configuration of the accelerator, such as the VTA with 16×16 blocks.

    Args:
        base: machine whose hardware knobs are varied.
        budget: maximum area, relative to the stock machine.
        bounds: lowest and highest value of hardware knobs, by name of the knob.
        clock: rule for the clock frequency of each machine: "fixed" for the frequency of the base
            machine, or "tree" for a frequency that decreases with the depth of the adder trees.

    Raises:
        ImpossibleHardware: the base machine has no hardware knobs, a bound names no knob or leaves
            it without a value, or the budget is not positive. If no machine satisfies the limits,
            `points` and `areas` raise it.
    """

    def __init__(
        self,
        base: Target,
        budget: float,
        bounds: Mapping[str, tuple[int, int]] | None = None,
        clock: str = "fixed",
    ) -> None:
        family = capability(base, HasDesigns)
        if family is None or capability(base, HasArea) is None:
            raise ImpossibleHardware(
                f"{base.name} has no hardware knobs; choose a VTA or a Gemmini, such as vta-pynq"
            )
        self.base, self.budget, self.clock, self._family = base, budget, clock, family
        self.space = _restrict_space(family.designs(), bounds or {})
        self._made: dict[int, Target] = {}
        if not budget > 0 or not np.isfinite(budget):
            raise ImpossibleHardware(
                f"--budget {budget:g} is impossible; the area must be larger than 0"
            )

    @cached_property
    def points(self) -> Configs:
        """Knob indices of the machines, by ascending area, int array of shape (machines, knobs)."""
        return self._known[0]

    @cached_property
    def areas(self) -> NDArray[np.float64]:
        """Area of each machine relative to the stock machine, float array of shape (machines,)."""
        return self._known[1]

    @cached_property
    def _known(self) -> tuple[Configs, NDArray[np.float64]]:
        every = self.space.unravel(np.arange(self.space.size))
        areas, refused = np.full(len(every), np.inf), ""
        for row, point in enumerate(every):
            try:
                areas[row] = area_of(self._build(point))
            except SpecError as error:
                refused = str(error)
        within = np.flatnonzero(areas <= self.budget)
        if not len(within):
            smallest = float(areas.min(initial=np.inf))
            if np.isfinite(smallest):
                raise ImpossibleHardware(
                    f"no machine within these bounds has an area of at most {self.budget:g}; "
                    f"the smallest has {smallest:.3f} (the stock machine has 1); raise "
                    "--budget or lower a bound"
                )
            raise ImpossibleHardware(f"no machine within these bounds can be built: {refused}")
        order = within[np.argsort(areas[within], kind="stable")]
        return every[order], areas[order]

    def target(self, row: int) -> Target:
        """Return a machine of the space as a target. Targets are cached.

        Args:
            row: row of the machine in `points`.
        """
        if row not in self._made:
            self._made[row] = self._build(self.points[row])
        return self._made[row]

    def _build(self, point: NDArray[np.int32]) -> Target:
        return self._family.redesign(self.space.describe(point.tolist()), self.clock)

    def row_of(self, point: NDArray[np.integer]) -> int | None:
        """Return the row of a machine in `points`.

        Args:
            point: knob indices of the machine, int array of shape (knobs,).

        Returns:
            The row, or None if the machine cannot be built or is too large.
        """
        return self._rows.get(int(self.space.ravel(np.asarray(point, np.int32)[None])[0]))

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {int(flat): row for row, flat in enumerate(self.space.ravel(self.points))}

    def neighbours(self, row: int) -> list[int]:
        """Return the machines that differ from a machine by one step of one knob.

        Args:
            row: row of the machine in `points`.

        Returns:
            Rows of the neighbours in `points`.
        """
        rows = []
        for knob in range(len(self.space.knobs)):
            for step in (-1, 1):
                point = self.points[row].copy()
                point[knob] += step
                if 0 <= point[knob] < len(self.space.knobs[knob].values):
                    other = self.row_of(point)
                    if other is not None:
                        rows.append(other)
        return rows


def area_of(target: Target) -> float:
    """Return the area of a machine, relative to the stock machine, whose area is 1.

    Args:
        target: the machine.
    """
    return cast(HasArea, target).area()["relative"]  # `HardwareSpace` has checked this


def _restrict_space(space: Space, bounds: Mapping[str, tuple[int, int]]) -> Space:
    """Return a copy of a space that has only the knob values within the given bounds.

    Args:
        space: the space.
        bounds: lowest and highest value of knobs, by name of the knob. Other knobs keep all values.

    Raises:
        ImpossibleHardware: a knob does not exist or has no value left.
    """
    names = [knob.name for knob in space.knobs]
    for name in bounds:
        if name not in names:
            raise ImpossibleHardware(
                f"there is no hardware knob {name}; the knobs are {', '.join(names)}"
            )
    return Space(
        space.name, tuple(_restrict_knob(knob, bounds.get(knob.name)) for knob in space.knobs)
    )


def _restrict_knob(knob: Knob, bound: tuple[int, int] | None) -> Knob:
    if bound is None:
        return knob
    low, high = bound
    values = tuple(value for value in knob.values if low <= value <= high)
    if not values:
        why = (
            "the lower bound is above the upper bound"
            if low > high
            else "no value lies between the bounds"
        )
        raise ImpossibleHardware(
            f"{knob.name} has the bounds {low}:{high} and the values "
            f"{', '.join(map(str, knob.values))}: {why}"
        )
    return Knob(knob.name, values)
