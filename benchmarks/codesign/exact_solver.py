"""Finds the fastest schedule of each layer on each machine, with a proof or a lower bound.

For each layer, the schedules with the lowest estimates are simulated first. Further schedules are
simulated if their lower bound, which is known without compiling, is below the fastest cycles so
far. The solver alternates between the lowest bounds and the lowest estimates. If no such schedule
is left, the fastest one is proven to be optimal. Otherwise, the lowest bound among the remaining
schedules is a lower bound of the optimum. So `best_cycles` is always reached by a schedule, and no
schedule takes fewer than `bound_cycles`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_int, as_list, as_number, as_object, as_text
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.hardware_search.problem import CodesignProblem, Design, read_networks
from tilewright.targets.base import Configs, Space, Target
from tilewright.targets.capabilities import (
    Bounds,
    Estimates,
    MeasuresInOnePass,
    bound_of,
    capability,
)
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

PART = 8
"""Number of machines per part of a truth. A part is the unit that is stored and resumed."""
_BATCH, _MANY = 32, 1024


class TruthError(TilewrightError):
    """Error: a problem cannot be solved exactly, or a folder contains something else."""


@dataclass(frozen=True)
class TruthOptions:
    """Options of an exact solution: the co-design problem, and the effort per layer.

    The problem is a set of networks on machines around `base` within `bounds` and a maximum area,
    as in `HardwareSpace`. Per layer, the `near` schedules with the lowest estimates are simulated,
    and then at most `proofs` more, until the best schedule is within the fraction `gap` of the
    bound.
    """

    networks: tuple[str, ...]
    base: str
    area: float
    bounds: tuple[tuple[str, int, int], ...] = ()
    clock: str = "fixed"
    near: int = 32
    proofs: int = 512
    gap: float = 0.01

    def problem(self) -> CodesignProblem:
        """Return the co-design problem that the options describe.

        Raises:
            ImpossibleHardware: no machine is within the bounds and the area.
            NothingToOffload: a network has no layer for the accelerator.

        Errors of `read_networks` are passed on.
        """
        bounds = {name: (low, high) for name, low, high in self.bounds}
        hardware = HardwareSpace(make_target(self.base), self.area, bounds, self.clock)
        problem = CodesignProblem(read_networks(self.networks), hardware)
        problem.check()
        return problem

    def to_json(self) -> dict[str, Json]:
        """Return the options as a JSON object."""
        result: dict[str, Json] = asdict(self)
        return result | {
            "networks": list(self.networks), "bounds": [list(bound) for bound in self.bounds]
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> TruthOptions:
        """Return the options that `to_json` wrote.

        Raises:
            ValueError: `value` was not written by `to_json`.
        """
        document = as_object(value)
        if set(document) != set(cls.__dataclass_fields__):
            raise ValueError(f"it has the unexpected keys {', '.join(sorted(document)):.200}")
        bounds = [as_list(bound) for bound in as_list(document["bounds"])]
        return cls(
            tuple(as_text(network) for network in as_list(document["networks"])),
            as_text(document["base"]),
            as_number(document["area"]),
            tuple((as_text(name), as_int(low), as_int(high)) for name, low, high in bounds),
            as_text(document["clock"]),
            as_int(document["near"]), as_int(document["proofs"]), as_number(document["gap"]),
        )  # fmt: skip


@dataclass(frozen=True)
class Solved:
    """Solution of a layer on a machine.

    Attributes:
        best_cycles: cycles of the fastest schedule found; -1 if no schedule was found.
        bound_cycles: lower bound of the cycles of all schedules; -1 if there is no schedule.
        config: flat index of the fastest schedule; -1 if no schedule was found.
        schedules: number of schedules that may fit the scratchpads.
        tried: number of schedules that were simulated.
    """

    best_cycles: int
    bound_cycles: int
    config: int
    schedules: int
    tried: int

    @property
    def exact(self) -> bool:
        """True if the fastest schedule is proven to be optimal."""
        return self.best_cycles == self.bound_cycles


def solve(target: Target, workload: Workload, options: TruthOptions) -> Solved:
    """Find the fastest schedule of a layer on a machine, and a lower bound of all schedules.

    Raises:
        TruthError: the target has no bounds of schedules, or cannot compile and measure in one
            step.
    """
    search = _Search(target, workload)
    search.simulate(search.left(search.by_estimate)[: options.near])
    spent = 0
    while np.isinf(search.best) and len(rows := search.left(search.by_estimate)[:_MANY]):
        search.simulate(rows)  # few compile, and what does not takes no time
    while spent < options.proofs and search.best > search.bound * (1 + options.gap):
        # The lowest schedule bounds raise the bound, the lowest estimates lower the best.
        lowest = search.left(search.by_bound)[: min(_BATCH, options.proofs - spent)]
        room = min(_BATCH, options.proofs - spent - len(lowest))
        rows = np.union1d(lowest, search.left(search.by_estimate)[:room])
        if not len(rows):
            break
        search.simulate(rows)
        spent += len(rows)
    result, bound = search.best, search.bound
    if not np.isfinite(result):
        bound = -1.0 if np.isinf(bound) else bound
        return Solved(-1, int(np.ceil(bound)), -1, len(search.flat), search.tried)
    return Solved(
        int(result), int(np.ceil(bound)), search.best_flat, len(search.flat), search.tried
    )


class _Search:
    """Branch and bound over the schedules of a layer that may fit the scratchpads."""

    def __init__(self, target: Target, workload: Workload) -> None:
        bounds, once = capability(target, Bounds), capability(target, MeasuresInOnePass)
        estimates = capability(target, Estimates)
        refusal = f"{target.name} cannot bound schedules; choose a VTA, such as vta-pynq"
        if bounds is None or once is None or estimates is None:  # before a space is written out
            raise TruthError(refusal)
        every = _whole(target.space(workload))
        schedule_bounds = bounds.schedule_bounds(workload, every)
        if schedule_bounds is None:
            raise TruthError(refusal)
        self._once, self._workload = once, workload
        self.flat = np.flatnonzero(np.isfinite(schedule_bounds))
        self._configs, self._bounds = every[self.flat], schedule_bounds[self.flat]
        features = estimates.estimate(workload, self._configs)
        meanings = np.array([column.meaning for column in features.columns])
        self._estimate = features.matrix[:, meanings == "latency"][:, 0]
        self._unlikely = (features.matrix[:, meanings == "share"] > 1).any(axis=1)
        self._open = np.ones(len(self.flat), np.bool_)
        self.best, self.best_flat, self.tried = np.inf, -1, 0

    @cached_property
    def by_estimate(self) -> NDArray[np.int64]:
        """Rows by ascending estimate, shape (rows,).

        Schedules that probably do not compile come last.
        """
        return np.lexsort((self._bounds, self._estimate, self._unlikely))

    @cached_property
    def by_bound(self) -> NDArray[np.int64]:
        """Rows by ascending bound, shape (rows,)."""
        return np.lexsort((self._estimate, self._bounds))

    def left(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the given rows that are not simulated yet and may be faster than the best one."""
        return rows[self._open[rows] & (self._bounds[rows] < self.best)]

    @property
    def bound(self) -> float:
        """Lower bound of the cycles of all schedules; infinite if there is no schedule."""
        lowest = self._bounds[self._open]
        return float(min(lowest.min(initial=np.inf), self.best))

    def simulate(self, rows: NDArray[np.int64]) -> None:
        """Compile and simulate the schedules in the given rows."""
        if not len(rows):
            return
        _, measured = self._once.lower_and_measure(self._workload, self._configs[rows])
        cycles = np.where(measured.valid, measured.cycles.astype(float), np.inf)
        self._open[rows] = False
        self.tried += len(rows)
        k = int(np.argmin(cycles))
        if cycles[k] < self.best:
            self.best, self.best_flat = float(cycles[k]), int(self.flat[rows[k]])


@lru_cache(maxsize=32)
def _whole(space: Space) -> Configs:
    return space.unravel(np.arange(space.size))


# -- a machine after the other ---------------------------------------------------------------------

Listing = dict[str, list[object]]


def rows_of(problem: CodesignProblem, machine: int, options: TruthOptions) -> Listing:
    """Solve each layer of a machine, and return one row per layer, by column.

    Raises:
        TruthError: see `solve`.
    """
    design = problem.design(machine)
    rows: list[Mapping[str, object]] = []
    for layer in design.layers:
        solved = solve(design.target, layer.workload, options)
        counts = dict(zip(problem.networks, layer.counts, strict=True))
        rows.append(
            _machine_columns(problem, design)
            | {"workload": layer.workload.id, "layer": str(layer.workload)}
            | {f"calls_{name}": count for name, count in counts.items()}
            | {**asdict(solved), "exact": solved.exact}
        )
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _machine_columns(problem: CodesignProblem, design: Design) -> dict[str, object]:
    cpu = dict(zip(problem.networks, design.cpu_seconds, strict=True))
    latency = bound_of(design.target, design.layers[0].workload) if design.layers else None
    mhz = 0.0
    if latency is not None:
        mhz = latency.cycles / latency.seconds / 1e6
    return {
        "machine": design.row, "name": design.name, "area": design.area, "mhz": round(mhz, 6),
        **{f"cpu_seconds_{name}": seconds for name, seconds in cpu.items()},
    }  # fmt: skip


def parts_of(problem: CodesignProblem) -> Iterator[range]:
    """Yield the machines of each part, as indices into `problem.hardware.points`."""
    machines = len(problem.hardware.points)
    for begin in range(0, machines, PART):
        yield range(begin, min(begin + PART, machines))
