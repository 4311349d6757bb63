"""Closed-form estimates of a schedule: cycles, traffic and scratchpad use without compiling it.

Nothing here knows whether a schedule can be compiled: a share above 1 only says that it is
unlikely.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates.columns import CYCLES, ESTIMATES, SHARES
from tilewright.targets.vta.estimates.extended import estimate_extended
from tilewright.targets.vta.estimates.fused_max_pool import estimate_pooled
from tilewright.targets.vta.estimates.fused_shortcut import estimate_summed
from tilewright.targets.vta.estimates.max_pool import estimate_pool
from tilewright.targets.vta.estimates.ml2tuner_space import estimate_unchecked
from tilewright.targets.vta.estimates.template import estimate_template
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

Estimator = Callable[[Geometry, Machine, int, int, NDArray[np.int64]], NDArray[np.float64]]

_OF_SPACE: dict[str, Estimator] = {
    "template": estimate_template,
    "extended": estimate_extended,
    "unchecked": estimate_unchecked,
}


def estimator(workload: Workload, space: str) -> Estimator:
    """What estimates the schedules of a workload in the space of that name: a function of knob
    values, shape (n, knobs), that gives shape (n, columns)."""
    if workload.operator == "max_pool":
        return estimate_pool
    if workload.shortcut is not None:
        return estimate_summed
    return _OF_SPACE[space] if workload.pool is None else estimate_pooled


__all__ = [
    "CYCLES",
    "ESTIMATES",
    "SHARES",
    "estimate_extended",
    "estimate_pool",
    "estimate_pooled",
    "estimate_summed",
    "estimate_template",
    "estimate_unchecked",
    "estimator",
]
