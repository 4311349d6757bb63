"""Properties of the hardware to which layers are offloaded: block sizes, types and latencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.networks.epilogues import EpilogueMode
from tilewright.networks.offloading.cpu_costs import SECONDS, SLOWDOWN
from tilewright.targets.anchor import DType
from tilewright.targets.base import Target
from tilewright.targets.capabilities import (
    Blocks,
    Bounds,
    Estimates,
    Latency,
    capability,
    least_estimate,
    limit_of,
    traits_of,
)
from tilewright.targets.rounding import rounded_to_even
from tilewright.targets.workload import Workload

MAX_WASTE = 1.0  # no limit: a layer is offloaded even if almost all of its block is padding
SAMPLED = 1 << 16
"""Maximum number of schedules per workload for which the latency is estimated."""


@dataclass(frozen=True)
class Accelerator:
    """Properties of a target on which offloading decisions depend.

    Attributes:
        blocks: sizes of the blocks that the matrix unit multiplies, in elements.
        epilogue: which epilogue operations run on the accelerator (`networks.epilogues`).
        max_waste: a layer is offloaded only if at most this fraction of its multiplications are
            with padding zeros.
        bound: returns a lower bound on the latency of a workload, and raises `WorkloadError` if the
            workload cannot run; None if the target has no bound.
        slowdown: factor by which the CPU beside the accelerator is slower than the CPU on which the
            costs were measured (`networks.offloading.cpu_costs`).
        estimate: returns the estimate for the best schedule of a workload, in the target's cost
            unit; None unless the target can apply max-pools to its accumulators.
        computes_floats: True if the target is the CPU that also runs the rest of the network.
            Nothing is packed or padded for it, and `check` alone decides which workloads it runs.
        float_type: for such a CPU, the type in which it multiplies where it has a kernel for that
            type; otherwise it multiplies in float32.
        check: raises `WorkloadError` for a workload without a schedule.
        rounds_to_even: True if the accelerator rounds ties to even; `form` adapts workloads to
            this.
    """

    blocks: Blocks
    epilogue: EpilogueMode = "full"
    max_waste: float = MAX_WASTE
    bound: Callable[[Workload], Latency] | None = None
    slowdown: float = SLOWDOWN
    estimate: Callable[[Workload], float] | None = None
    computes_floats: bool = False
    float_type: DType = "float32"
    check: Callable[[Workload], object] = lambda workload: None
    rounds_to_even: bool = False

    @classmethod
    def for_target(
        cls,
        target: Target,
        epilogue: EpilogueMode = "full",
        max_waste: float = MAX_WASTE,
        sampled: int = SAMPLED,
    ) -> Accelerator:
        """Return the properties of a target.

        Args:
            target: the target.
            epilogue: which epilogue operations run on the accelerator (`networks.epilogues`).
            max_waste: maximum fraction of multiplications with padding zeros.
            sampled: maximum number of schedules per workload whose latency is estimated.
        """
        traits = traits_of(target)
        if "float32" in traits.dtypes:
            return cls(
                Blocks(), epilogue, max_waste, computes_floats=True,
                float_type=traits.float_type, check=target.space,
            )  # fmt: skip
        known = capability(target, Bounds)
        return cls(
            traits.blocks,
            epilogue,
            max_waste,
            None if known is None else partial(limit_of, known),
            SLOWDOWN if traits.host_slowdown is None else traits.host_slowdown,
            _estimate_of(target, sampled) if traits.pools_sums else None,
            check=target.space if traits.rounds_to_even else lambda workload: None,
            rounds_to_even=traits.rounds_to_even,
        )

    def form(self, workload: Workload) -> Workload:
        """Return a workload with its epilogue in the form that the accelerator computes.

        If the accelerator rounds ties to even, the epilogue does so as well. Otherwise, the
        workload is returned unchanged.
        """
        return rounded_to_even(workload) if self.rounds_to_even else workload

    def accept(self, workload: Workload) -> None:
        """Check that a workload has a schedule on the accelerator.

        Raises:
            WorkloadError: the workload has no schedule.
        """
        self.check(self.form(workload))

    def seconds(self, workload: Workload) -> float | None:
        """Return a lower bound on the time that one call of a workload takes on the accelerator.

        Returns:
            The bound in seconds, or None if the target has no bound.

        Raises:
            WorkloadError: the workload cannot run.
        """
        return None if self.bound is None else self.bound(workload).seconds

    def estimate_call(self, workload: Workload) -> float | None:
        """Return the target's estimate for one call of a workload with its best schedule.

        Returns:
            The estimate in the target's cost unit, or None if the target has no estimates.

        Raises:
            WorkloadError: the workload cannot run.
        """
        return None if self.estimate is None else self.estimate(workload)

    def image_seconds(self, elements: int) -> float:
        """Return the seconds that the CPU needs to pack an image into blocks, or to unpack it.

        Quantising and dequantising cost nothing extra, because they are fused into the loops of the
        neighbouring operators.

        Args:
            elements: number of elements of the image.
        """
        return self.slowdown * SECONDS["pack"] * elements

    def unfold_seconds(self, elements: int, unfolded_bytes: int) -> float:
        """Return the seconds that the CPU needs to quantise an image and to unfold it (im2col).

        Args:
            elements: number of elements of the image.
            unfolded_bytes: size of the unfolded image in bytes.
        """
        quantising = SECONDS["elementwise"] * elements
        return self.slowdown * (quantising + SECONDS["unfold"] * unfolded_bytes)

    def seconds_or_never(self, workload: Workload) -> float:
        """Return a lower bound on the time of one call of a workload, even if it cannot run.

        Returns:
            The bound in seconds. It is infinite if the workload cannot run, and 0 if the target has
            no bound.
        """
        try:
            return self.seconds(workload) or 0.0
        except WorkloadError:
            return math.inf


def _estimate_of(target: Target, sampled: int) -> Callable[[Workload], float]:
    """Return a function that computes the lowest estimate over a workload's valid schedules.

    Args:
        target: the target, which estimates the cost of a schedule.
        sampled: maximum number of schedules per workload that are estimated. A larger space is
            sampled.

    Returns:
        Function from a workload to the estimate in the target's cost unit. It raises
        `WorkloadError` if the target has no estimates or if no schedule is valid.
    """

    @cache
    def least(workload: Workload) -> float:
        estimates, space = capability(target, Estimates), target.space(workload)
        if estimates is None or space.listed is not None:
            raise WorkloadError(
                f"{target.name} has no latency estimate for {workload}; measure it instead"
            )
        estimate = least_estimate(estimates, workload, space, sampled, np.random.default_rng(0))
        if estimate is None:
            raise WorkloadError(
                f"{workload}: according to the estimates of {target.name}, no schedule fits"
            )
        return estimate

    return least
