"""Implements pooled sums on the accelerator; `lowering.fused_max_pool` writes them."""

from __future__ import annotations

from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.vta.bound_terms import BoundTerms, fewest_maxima_of, needed
from tilewright.targets.vta.estimates.fused_max_pool import estimate_pooled
from tilewright.targets.vta.lowering.codes import POOLED
from tilewright.targets.vta.lowering.fused_max_pool import check_pooled, pooled_space
from tilewright.targets.vta.patterns.pattern import VtaPattern
from tilewright.targets.workload import Workload


def pooled_sides(workload: Workload) -> tuple[int, int]:
    """Rows and columns of the sums that a pool behind them reads: the first ones, since its windows
    leave none out between."""
    w, p = workload, workload.pool or Pool(1, 1)
    rows = needed(w.sums_height, w.out_height, p.stride_h, p.kernel_h, 1, p.pad_top)
    cols = needed(w.sums_width, w.out_width, p.stride_w, p.kernel_w, 1, p.pad_left)
    return rows, cols


def _bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
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
    Pool, check_pooled, _bound, POOLED, pooled_space, estimate_pooled, sums_sides=pooled_sides
)
