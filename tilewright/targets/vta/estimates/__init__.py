"""Estimates a schedule in closed form: cycles, traffic and scratchpad use without compiling it.

Nothing here knows whether a schedule can be compiled: a share above 1 only says that it is
unlikely.
"""

from collections.abc import Callable, Mapping

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

Estimator = Callable[[Geometry, Machine, int, int, NDArray[np.int64]], NDArray[np.float64]]

OF_SPACE: Mapping[str, Estimator] = {
    "template": estimate_template,
    "extended": estimate_extended,
    "unchecked": estimate_unchecked,
}


__all__ = [
    "CYCLES", "ESTIMATES", "OF_SPACE", "SHARES", "estimate_extended", "estimate_pool",
    "estimate_pooled", "estimate_summed", "estimate_template", "estimate_unchecked",
]  # fmt: skip
