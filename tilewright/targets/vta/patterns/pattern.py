"""Defines what the accelerator says of a pattern.

That is which workloads it lowers, by which pipeline, and what that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Space
from tilewright.targets.patterns.pattern import Pattern
from tilewright.targets.vta.bound_terms import BoundTerms
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

Estimator = Callable[[Geometry, Machine, int, int, NDArray[np.int64]], NDArray[np.float64]]
Lifted = tuple[Geometry, NDArray[np.int64]]


def _as_it_is(
    workload: Workload, machine: Machine, geometry: Geometry, epilogue: NDArray[np.int64]
) -> Lifted:
    return geometry, epilogue


@dataclass(frozen=True)
class VtaPattern:
    """A kind of pattern on the accelerator. It has schedules in the extended space alone.

    `check` raises `WorkloadError` for a workload with one that has no lowering, given whether the
    space is the extended one. `bound` gives the terms of a workload's bound with those of the
    pattern. `sums_sides` are the rows and columns of the sums that it reads, where these are not
    all. One with a pipeline of its own has its number in compiled code (`lowering.codes`), its
    `space` and its `estimator`. `lifted` lifts biases of its own (`lowering.bias_lifting`), in a
    geometry and the steps of `epilogue_steps`, shape (steps, 3).
    """

    kind: type[Pattern]
    check: Callable[[Workload, bool], None]
    bound: Callable[[Workload, BoundTerms], BoundTerms]
    code: int | None = None
    space: Callable[[Geometry], Space] | None = None
    estimator: Estimator | None = None
    lifted: Callable[[Workload, Machine, Geometry, NDArray[np.int64]], Lifted] = _as_it_is
    sums_sides: Callable[[Workload], tuple[int, int]] | None = None
