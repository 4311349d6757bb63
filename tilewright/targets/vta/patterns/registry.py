"""Lists what the accelerator does with each pattern."""

from __future__ import annotations

from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.patterns.average import AVERAGE
from tilewright.targets.vta.patterns.max_pool import MAX_POOL
from tilewright.targets.vta.patterns.pattern import VtaPattern
from tilewright.targets.vta.patterns.shortcut import SHORTCUT
from tilewright.targets.workload import Workload

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
    return next((each for each in patterns_of(workload) if each.code is not None), None)
