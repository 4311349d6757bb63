"""Estimates schedules of convolutions with a shortcut, in closed form, without lowering them.

The estimate adds what both need of each module. To the slowest module it adds what one of them does
not overlap. It is vectorised over a batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates.columns import CYCLES, SHARES
from tilewright.targets.vta.estimates.extended import estimate_extended
from tilewright.targets.vta.lowering.fused_shortcut_plan import beside_of
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.spec import Machine

_BUSY = slice(1, 4)  # cycles of load, compute and store
_COUNTS = slice(4, 7)  # instructions and bytes


def estimate_summed(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Columns as `estimate_template` of knob values (n, knobs): shape (n, 10), float64.
    `operations` and `tensors` are those behind both sums, the shortcut's own the geometry's."""
    beside, planes = beside_of(geo), geo.groups * geo.co
    vectors = geo.bias_bytes // m.acc_bytes // planes
    before = vectors - (geo.beside_bias_base - geo.bias_base) // planes
    own = geo._replace(res_bytes=0)
    total = estimate_extended(own, m, operations, tensors, values, geo.beside_ci)
    other = estimate_extended(beside, m, geo.beside_steps, before, values, geo.ci)
    busy = total[:, _BUSY] + other[:, _BUSY]
    # Accumulators begin once, and nothing is stored between the two.
    busy[:, 1] -= geo.batches * planes * geo.oh * geo.ow
    busy[:, 2] = total[:, 3]
    total[:, CYCLES] += busy.max(axis=1) - total[:, _BUSY].max(axis=1)
    total[:, _BUSY] = busy
    total[:, _COUNTS] += other[:, _COUNTS]
    total[:, SHARES] = np.maximum(total[:, SHARES], other[:, SHARES])
    return total
