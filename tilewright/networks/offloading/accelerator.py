"""Describes the hardware that layers are offloaded to: its blocks, its number types, the form of
its workloads, and how long layers take there.
"""

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

MAX_WASTE = 1.0
SAMPLED = 1 << 16
"""Schedules of a larger space that an estimate is asked about."""


@dataclass(frozen=True)
class Accelerator:
    """What offloading has to know of a target.

    Attributes:
        blocks: sizes of the blocks that the matrix unit multiplies, in elements.
        epilogue: form of epilogues (`networks.epilogues`).
        max_waste: a layer is offloaded only if at most this share of its multiplications are with
            padding zeros.
        bound: returns a lower bound on the latency of a workload, and raises `WorkloadError` for a
            workload that cannot run; None if there is no bound.
        slowdown: slowdown of the CPU beside the accelerator (`networks.offloading.cpu_costs`).
        estimate: returns the estimate of the best schedule of a workload; None unless the target
            pools sums.
        computes_floats: the target is the processor that runs the rest of the network. Nothing is
            packed or padded for it, and `check` alone decides.
        float_type: type in which such a processor multiplies if it has a kernel, else float32.
        check: raises `WorkloadError` for a workload without a schedule.
        rounds_to_even: the accelerator rounds halves to even; `form` returns the workload with the
            steps that it computes.
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
    def of(
        cls,
        target: Target,
        epilogue: EpilogueMode = "full",
        max_waste: float = MAX_WASTE,
        sampled: int = SAMPLED,
    ) -> Accelerator:
        """Return the description of a target. Estimates are computed for `sampled` schedules of a
        workload at most."""
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
        """Return a workload with the steps that the accelerator computes."""
        return rounded_to_even(workload) if self.rounds_to_even else workload

    def accept(self, workload: Workload) -> None:
        """Raise `WorkloadError` for a workload without a schedule."""
        self.check(self.form(workload))

    def seconds(self, workload: Workload) -> float | None:
        """Return a lower bound on the latency of a call, None if there is none. Raises
        `WorkloadError` for a workload that cannot run."""
        return None if self.bound is None else self.bound(workload).seconds

    def estimated(self, workload: Workload) -> float | None:
        """Return the target's estimate for a call, in the target's unit, None if there is none.
        Raises `WorkloadError` for a workload that cannot run."""
        return None if self.estimate is None else self.estimate(workload)

    def image_seconds(self, elements: int) -> float:
        """Return how long the CPU takes to pack an image into blocks, or to unpack it. Quantising
        and dequantising cost nothing here: the loops of the neighbouring operators do it."""
        return self.slowdown * SECONDS["pack"] * elements

    def unfold_seconds(self, elements: int, unfolded_bytes: int) -> float:
        """Return how long the CPU takes to quantise an image and to rearrange it."""
        quantising = SECONDS["elementwise"] * elements
        return self.slowdown * (quantising + SECONDS["unfold"] * unfolded_bytes)

    def seconds_or_never(self, workload: Workload) -> float:
        """Return a lower bound on the latency of a call: infinite if it cannot run, 0 if there is
        no bound."""
        try:
            return self.seconds(workload) or 0.0
        except WorkloadError:
            return math.inf


def _estimate_of(target: Target, sampled: int) -> Callable[[Workload], float]:
    """Return a function that returns the least estimate of the valid schedules of a workload. Of a
    large space, only `sampled` schedules are estimated."""

    @cache
    def least(workload: Workload) -> float:
        estimates, space = capability(target, Estimates), target.space(workload)
        if estimates is None or space.listed is not None:
            raise WorkloadError(f"{target.name} estimates nothing of {workload}; measure it")
        found = least_estimate(estimates, workload, space, sampled, np.random.default_rng(0))
        if found is None:
            raise WorkloadError(f"{workload}: no schedule fits {target.name}, by its estimate")
        return found

    return least
