"""Makes the rows of a cell: draws schedules from a space, compiles, measures and describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.datasets.plan import DatasetPlan, PlanPart, fitted
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


def part_order(plan: DatasetPlan, part: PlanPart) -> dict[str, Any]:
    """Describe all that the rows of a part depend on, as JSON, so that any process can make them.

    Args:
        plan: the plan of the dataset.
        part: a part of the plan.

    Returns:
        The seed, the hardware with its specification, and the cells: the place of the workload in
        the plan, the workload, and the number of rows.
    """
    hardware = plan.hardware[part.hardware]
    return {
        "seed": plan.options.seed,
        "plan": plan.digest,
        "hardware": asdict(hardware),
        "cells": [[c.workload, plan.workloads[c.workload], c.rows] for c in part.cells],
    }


def measure_rows(order: Mapping[str, Any], target: Target, tell: Progress) -> Sample:
    """Draw, lower and measure the rows of a part. Equal orders draw equal configs.

    Args:
        order: the part, as `part_order` describes it.
        target: the target of its hardware.
        tell: called with the number of rows that were measured since the last call.

    Raises:
        WorkloadError: the target has no schedule for a workload.
    """
    hardware = order["hardware"]
    rows = []
    for place, written, count in order["cells"]:
        described = Workload.from_json(written)
        workload = fitted(described, target)
        space = target.space(workload)
        text = f"{hardware['id']} {described.id}".encode()  # of a cell, wherever in the plan it is
        rng = np.random.default_rng([order["seed"], int.from_bytes(text, "little")])
        places = rng.choice(space.size, count, replace=False)
        flat = places if space.listed is None else np.asarray(space.listed)[places]
        for first in range(0, count, _AT_ONCE):
            configs = space.unravel(flat[first : first + _AT_ONCE])
            lowered, measured = _measured(target, workload, configs, tell)
            rows.append(
                _described(hardware["features"], target, place, workload, lowered, measured)
            )
    return Sample.joined(rows)


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
    features: dict[str, float], target: Target, place: int, workload: Workload,
    lowered: Lowered, measured: Measurements,
) -> Sample:  # fmt: skip
    space = target.space(workload)
    known = columns_of(workload, space, lowered.configs, features, lowered.hidden)
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
