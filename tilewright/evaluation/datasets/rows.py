"""Makes the rows of a cell: draws schedules from a space, compiles, measures and describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.datasets.hardware import DatasetHardware
from tilewright.evaluation.datasets.plan import DatasetPlan, PlanCell, fitted
from tilewright.models.transfer.columns import columns_of
from tilewright.targets.base import STATUSES, Configs, Lowered, Measurements, Target
from tilewright.targets.capabilities import MeasuresInOnePass, capability
from tilewright.targets.features import Feature
from tilewright.targets.workload import Workload

Progress = Callable[[int], None]
"""Told how many rows more are done."""

_AT_ONCE = 4096  # configs whose programs are in memory together, on targets that keep programs
_CODES = {status: code for code, status in enumerate(STATUSES)}


@dataclass(frozen=True)
class Sample:
    """Rows of one piece of hardware, arrays of shape (rows,). `columns` are float32 of the same
    shape by name, NaN where a row has no such thing, and `about` says what they are. `workload` is
    the place in the plan, `config` the flat index in the space, `status` the place in
    `targets.base.STATUSES`."""

    workload: NDArray[np.int32]
    config: NDArray[np.int64]
    status: NDArray[np.int8]
    log_latency: NDArray[np.float64]
    columns: dict[str, NDArray[np.float32]]
    about: dict[str, Feature]

    def __len__(self) -> int:
        return len(self.workload)

    @staticmethod
    def joined(parts: Sequence[Sample]) -> Sample:
        """Rows behind each other; columns by name, NaN where a part lacks one."""
        about = {name: column for part in parts for name, column in part.about.items()}
        names = in_order([tuple(part.about) for part in parts])
        return Sample(
            np.concatenate([part.workload for part in parts]),
            np.concatenate([part.config for part in parts]),
            np.concatenate([part.status for part in parts]),
            np.concatenate([part.log_latency for part in parts]),
            {name: np.concatenate([part._column(name) for part in parts]) for name in names},
            {name: about[name] for name in names},
        )

    def _column(self, name: str) -> NDArray[np.float32]:
        if name in self.columns:
            return self.columns[name]
        return np.full(len(self), np.nan, np.float32)


def in_order(every: Sequence[tuple[str, ...]]) -> list[str]:
    """All names once, those of each in its own order as far as they agree: a name that is new comes
    behind the one before it. So columns of schedules stand in the order of a space's decisions."""
    found: list[str] = []
    for names in dict.fromkeys(every):
        place = 0
        for name in names:
            if name in found:
                place = found.index(name) + 1
            else:
                found.insert(place, name)
                place += 1
    return found


def rows_of(
    plan: DatasetPlan, hardware: DatasetHardware, target: Target, cell: PlanCell, tell: Progress
) -> Sample:
    """The rows of a cell on its hardware, `target`; equal plans draw equal configs. Raises
    `WorkloadError`."""
    workload = fitted(plan.workload(cell.workload), target)
    space = target.space(workload)
    rng = np.random.default_rng(_seed(plan, hardware, cell))
    places = rng.choice(space.size, cell.rows, replace=False)
    flat = places if space.listed is None else np.asarray(space.listed)[places]
    parts = [
        _measured(target, workload, space.unravel(flat[first : first + _AT_ONCE]), tell)
        for first in range(0, cell.rows, _AT_ONCE)
    ]
    return Sample.joined(
        [
            _described(plan, hardware, target, cell.workload, workload, lowered, measured)
            for lowered, measured in parts
        ]
    )


def _seed(plan: DatasetPlan, hardware: DatasetHardware, cell: PlanCell) -> list[int]:
    """Of a cell, wherever in the plan it is."""
    text = f"{hardware.id} {plan.workload(cell.workload).id}".encode()
    return [plan.options.seed, int.from_bytes(text, "little")]


def _measured(
    target: Target, workload: Workload, configs: Configs, tell: Progress
) -> tuple[Lowered, Measurements]:
    at_once = capability(target, MeasuresInOnePass)
    if at_once is not None:
        lowered, measured = at_once.lower_and_measure(workload, configs)
    else:
        lowered = target.lower(workload, configs)
        measured = target.measure(lowered)
    tell(len(configs))
    return lowered, measured


def _described(
    plan: DatasetPlan, hardware: DatasetHardware, target: Target, place: int, workload: Workload,
    lowered: Lowered, measured: Measurements,
) -> Sample:  # fmt: skip
    space = target.space(workload)
    known = columns_of(workload, space, lowered.configs, hardware.features, lowered.hidden)
    valid = measured.valid
    latency = np.full(len(lowered), np.nan)
    latency[valid] = np.log2(measured.latency[valid])
    matrix = known.matrix.astype(np.float32)
    return Sample(
        np.full(len(lowered), place, np.int32),
        space.ravel(lowered.configs),
        np.array([_CODES[status] for status in measured.status], np.int8),
        latency,
        {name: matrix[:, k] for k, name in enumerate(known.names)},
        dict(zip(known.names, known.columns, strict=True)),
    )
