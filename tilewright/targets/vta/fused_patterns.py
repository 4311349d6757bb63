"""Support of fused patterns on the VTA.

A pattern is a post-operation of a convolution with shapes or tensors of its own: a max-pool, an
average pooling or a shortcut. For each kind of pattern, this module registers a check whether a
workload can be lowered, the functions that lower it, and the effect of the pattern on the lower
bound.
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
from tilewright.targets.vta.bound_terms import (
    BoundTerms,
    fewest_maxima_of,
    needed_pixels,
    needed_rows,
)
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
    """Support of one kind of fused pattern, such as an average pooling after a convolution.

    Workloads with patterns have schedules only in the extended space. A pattern either extends the
    lowering of that space, or replaces it by its own pipeline, which consists of a schedule space,
    a lowering and estimates.

    Attributes:
        kind: class of the pattern.
        check: raises `WorkloadError` if a workload with the pattern cannot be lowered. Its second
            argument says whether the schedule space is the extended one.
        bound: adds the terms of the pattern to the terms of a workload's lower bound.
        pipeline: name of the pattern's own pipeline in `lowering.batch`; empty if it has none.
        space: returns the schedule space, if the pattern has its own pipeline.
        estimator: estimates schedules, if the pattern has its own pipeline.
        lifted: adds a constant to the biases of the pattern, so that the bias can replace the reset
            of the accumulators (see `lowering.bias_lifting`). Its last two arguments, and its
            results, are a geometry and the ALU operations as rows (operand kind, opcode, immediate)
            of `epilogue_steps`, shape (steps, 3).
        sums_sides: returns how many rows and columns of the convolution's results the pattern
            reads; None if it reads all of them.
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
    """Add the cycles of a workload's average pooling to its bound terms.

    Each addition takes two cycles.

    Args:
        workload: the workload with the average.
        terms: terms of the workload without the average.
    """
    average = workload.average
    assert average is not None
    cycles = 2 * (terms.geo.oh * terms.geo.ow - 1) + len(average.epilogue)
    return terms._replace(other=terms.other + terms.planes * cycles)


AVERAGE = VtaPattern(Average, check_averaged, _average_bound)


def pooled_sides(workload: Workload) -> tuple[int, int]:
    """Return how many rows and how many columns of convolution results a fused max-pool reads.

    The pool reads the first rows and columns without gaps, because its windows leave no gaps.
    """
    w, p = workload, workload.pool or Pool(1, 1)
    rows = needed_rows(w.sums_height, w.out_height, p.stride_h, p.kernel_h, 1, p.pad_top)
    cols = needed_rows(w.sums_width, w.out_width, p.stride_w, p.kernel_w, 1, p.pad_left)
    return rows, cols


def _pool_bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
    """Add the cycles of a workload's max-pool to its bound terms.

    Each accumulator is reset, and each maximum takes two cycles. A bias takes at least one cycle
    per pooled value, like the other epilogue operations.

    Args:
        workload: the workload with the pool.
        terms: terms of the workload without the pool.
    """
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
    lift, left = lift_of_shortcut(workload, machine)
    steps = geometry.beside_steps
    first = lifted_epilogue(epilogue[:steps], lift)
    return lifted_shortcut(geometry, lift, left), np.concatenate([first, epilogue[steps:]])


def _shortcut_bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
    """Add the costs of a workload's shortcut to its bound terms.

    The costs are the multiplications and the epilogue of the shortcut, and the transfer of its
    image. The image is stored in place of a residual, so the transfer of a residual is subtracted.

    Args:
        workload: the workload with the shortcut.
        terms: terms of the workload without the shortcut.
    """
    shortcut, g, m = workload.of_shortcut, terms.geo, terms.machine
    assert shortcut is not None
    cycles = terms.results * g.beside_ci + _shortcut_cycles(shortcut, terms.results, m)
    return terms._replace(
        other=terms.other + cycles,
        parameters=terms.parameters - g.res_bytes,
        pixels=terms.pixels + g.batches * g.beside_ci * needed_pixels(shortcut) * m.inp_bytes,
    )


def _shortcut_cycles(shortcut: Workload, outputs: int, m: Machine) -> int:
    """Return a lower bound on the cycles of a shortcut's epilogue.

    The initial value of the accumulators is not counted. A bias either takes at least one cycle per
    accumulator, or is loaded as the initial value.

    Args:
        shortcut: workload of the shortcut.
        outputs: number of accumulators.
        m: the machine.
    """
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


VTA_PATTERNS = {item.kind: item for item in (MAX_POOL, SHORTCUT, AVERAGE)}


def patterns_of(workload: Workload) -> tuple[VtaPattern, ...]:
    """Return the VTA's support of each fused pattern of a workload, in the order of the patterns.

    Raises:
        WorkloadError: the VTA does not support a pattern.
    """
    for pattern in workload.patterns:
        if type(pattern) not in VTA_PATTERNS:
            raise WorkloadError(f"{workload}: the accelerator has no lowering for {pattern.called}")
    return tuple(VTA_PATTERNS[type(pattern)] for pattern in workload.patterns)


def pipeline_of(workload: Workload) -> VtaPattern | None:
    """Return the support of the pattern that replaces the workload's pipeline, or None.

    Such a pattern replaces the schedule space, the lowering and the estimates of the extended
    space.

    Raises:
        WorkloadError: the VTA does not support a pattern.
    """
    return next((pattern for pattern in patterns_of(workload) if pattern.pipeline), None)
