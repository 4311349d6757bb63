"""Implements averages of results on the accelerator; `lowering.fused_avg_pool` writes them."""

from __future__ import annotations

from tilewright.targets.patterns.average import Average
from tilewright.targets.vta.bound_terms import BoundTerms
from tilewright.targets.vta.lowering.fused_avg_pool import check_averaged
from tilewright.targets.vta.patterns.pattern import VtaPattern
from tilewright.targets.workload import Workload


def _bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
    """Additions take two cycles each."""
    own = workload.average
    assert own is not None
    each = 2 * (terms.geo.oh * terms.geo.ow - 1) + len(own.epilogue)
    return terms._replace(other=terms.other + terms.planes * each)


AVERAGE = VtaPattern(Average, check_averaged, _bound)
