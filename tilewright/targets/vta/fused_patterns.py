"""Lists what the accelerator does with fused patterns, the post-operations that have shapes or
tensors of their own.

For each pattern, it says which workloads are lowered, by which pipeline, and what that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Space
from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.pattern import Pattern
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.vta.bound_terms import BoundTerms, fewest_maxima_of, needed, needed_pixels
from tilewright.targets.vta.estimates.extended import estimate_summed
from tilewright.targets.vta.estimates.max_pool import estimate_pooled
from tilewright.targets.vta.lowering.bias_lifting import (
    lift_of_shortcut,
    lifted_epilogue,
    lifted_shortcut,
)
from tilewright.targets.vta.lowering.extended import extended_space
from tilewright.targets.vta.lowering.fused_avg_pool import check_averaged
from tilewright.targets.vta.lowering.fused_max_pool import check_pooled, pooled_space
from tilewright.targets.vta.lowering.fused_shortcut import check_summed
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
    all. A pattern with a pipeline of its own has the name by which `lowering.batch` knows it, a
    `space` and an `estimator`. `lifted` lifts biases of its own (`lowering.bias_lifting`), in a
    geometry and the steps of `epilogue_steps`, shape (steps, 3).
    """

    kind: type[Pattern]
    check: Callable[[Workload, bool], None]
    bound: Callable[[Workload, BoundTerms], BoundTerms]
    pipeline: str = ""
    space: Callable[[Geometry], Space] | None = None
    estimator: Estimator | None = None
    lifted: Callable[[Workload, Machine, Geometry, NDArray[np.int64]], Lifted] = _as_it_is
    sums_sides: Callable[[Workload], tuple[int, int]] | None = None


def _average_bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
    """Additions take two cycles each."""
    own = workload.average
    assert own is not None
    each = 2 * (terms.geo.oh * terms.geo.ow - 1) + len(own.epilogue)
    return terms._replace(other=terms.other + terms.planes * each)


AVERAGE = VtaPattern(Average, check_averaged, _average_bound)


def pooled_sides(workload: Workload) -> tuple[int, int]:
    """Rows and columns of the sums that a pool behind them reads: the first ones, since its windows
    leave none out between."""
    w, p = workload, workload.pool or Pool(1, 1)
    rows = needed(w.sums_height, w.out_height, p.stride_h, p.kernel_h, 1, p.pad_top)
    cols = needed(w.sums_width, w.out_width, p.stride_w, p.kernel_w, 1, p.pad_left)
    return rows, cols


def _pool_bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
    """Each of the sums is reset, and maxima take two cycles each; a bias takes one cycle at least
    of what is left, as other operations do."""
    pool, g, (rows, cols) = workload.pool, terms.geo, pooled_sides(workload)
    assert pool is not None
    sums, outputs = terms.planes * rows * cols, g.oh * g.ow
    maxima = fewest_maxima_of(pool, g.oh, g.ow, rows, cols)
    operations = len(workload.epilogue)
    operations += sum(op.kind == "shr_channel" for op in workload.epilogue)
    other = sums + terms.planes * (2 * maxima + outputs * operations)
    return terms._replace(sums=sums, other=other)


MAX_POOL = VtaPattern(
    Pool,
    check_pooled,
    _pool_bound,
    "fused_max_pool",
    pooled_space,
    estimate_pooled,
    sums_sides=pooled_sides,
)


def _shortcut_lifted(
    workload: Workload, machine: Machine, geometry: Geometry, epilogue: NDArray[np.int64]
) -> Lifted:
    own, left = lift_of_shortcut(workload, machine)
    steps = geometry.beside_steps
    first = lifted_epilogue(epilogue[:steps], own)
    return lifted_shortcut(geometry, own, left), np.concatenate([first, epilogue[steps:]])


def _shortcut_bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
    """Its own reduction and epilogue, and its image in the place of a residual."""
    own, g, m = workload.of_shortcut, terms.geo, terms.machine
    assert own is not None
    cycles = terms.results * g.beside_ci + _shortcut_cycles(own, terms.results, m)
    return terms._replace(
        other=terms.other + cycles,
        parameters=terms.parameters - g.res_bytes,
        pixels=terms.pixels + g.batches * g.beside_ci * needed_pixels(own) * m.inp_bytes,
    )


def _shortcut_cycles(shortcut: Workload, outputs: int, m: Machine) -> int:
    """Cycles of what follows a shortcut's sums, for so many accumulators, besides the first value
    of these: a bias takes one at least, or is loaded."""
    kinds = [op.kind for op in shortcut.epilogue]
    plain = sum(kind != "bias" for kind in kinds) + kinds.count("shr_channel")
    bias = min(outputs, outputs * m.acc_bytes // m.bus_bytes) if "bias" in kinds else 0
    return outputs * plain + bias


SHORTCUT = VtaPattern(
    Shortcut,
    check_summed,
    _shortcut_bound,
    "fused_shortcut",
    extended_space,
    estimate_summed,
    _shortcut_lifted,
)


VTA_PATTERNS = {each.kind: each for each in (MAX_POOL, SHORTCUT, AVERAGE)}


def patterns_of(workload: Workload) -> tuple[VtaPattern, ...]:
    """Those of a workload, in its order. Raises `WorkloadError` for one that the accelerator does
    not know."""
    for each in workload.patterns:
        if type(each) not in VTA_PATTERNS:
            raise WorkloadError(f"{workload}: the accelerator has no lowering for {each.called}")
    return tuple(VTA_PATTERNS[type(each)] for each in workload.patterns)


def pipeline_of(workload: Workload) -> VtaPattern | None:
    """The pattern whose pipeline takes the place of the space's; None where none has one of its
    own. Raises as `patterns_of` does."""
    return next((each for each in patterns_of(workload) if each.pipeline), None)
