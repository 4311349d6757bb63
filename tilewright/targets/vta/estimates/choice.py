"""Finds what estimates the schedules of a workload."""

from __future__ import annotations

from tilewright.targets.vta.estimates import OF_SPACE, estimate_pool
from tilewright.targets.vta.patterns.pattern import Estimator
from tilewright.targets.vta.patterns.registry import pipeline_of
from tilewright.targets.workload import Workload


def estimator(workload: Workload, space: str) -> Estimator:
    """What estimates the schedules of a workload in the space of that name: a function of knob
    values, shape (n, knobs), that gives shape (n, columns)."""
    if workload.operator == "max_pool":
        return estimate_pool
    pipeline = pipeline_of(workload)
    return (None if pipeline is None else pipeline.estimator) or OF_SPACE[space]
