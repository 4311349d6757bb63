"""Selects the function that estimates the schedules of a workload."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.targets.vta.estimates.extended import estimate_extended
from tilewright.targets.vta.estimates.max_pool import estimate_pool
from tilewright.targets.vta.estimates.template import estimate_template, estimate_unchecked
from tilewright.targets.vta.fused_patterns import Estimator, pipeline_of
from tilewright.targets.workload import Workload

OF_SPACE: Mapping[str, Estimator] = {
    "template": estimate_template,
    "extended": estimate_extended,
    "unchecked": estimate_unchecked,
}


def estimator(workload: Workload, space: str) -> Estimator:
    """Return the function that estimates the schedules of a workload.

    Args:
        workload: the workload.
        space: name of the schedule space.

    Returns:
        A function with the signature of `estimate_extended`. It returns the columns `ESTIMATES`,
        shape (n, columns), for knob values of shape (n, knobs).
    """
    if workload.operator == "max_pool":
        return estimate_pool
    pipeline = pipeline_of(workload)
    return (None if pipeline is None else pipeline.estimator) or OF_SPACE[space]
