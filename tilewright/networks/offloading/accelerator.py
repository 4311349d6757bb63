"""Describes an accelerator to the importer: its blocks, number types and form of workloads, and
what layers take there and on the CPU beside it.
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
    HasHost,
    Latency,
    PoolsSums,
    RoundsToEven,
    blocks_of,
    capability,
    dtypes_of,
    float_type_of,
    least_estimate,
    limit_of,
)
from tilewright.targets.rounding import rounded_to_even
from tilewright.targets.workload import Workload

MAX_WASTE = 1.0
SAMPLED = 1 << 16
"""Schedules of a larger space that an estimate is asked about."""


@dataclass(frozen=True)
class Accelerator:
    """Blocks in elements; `epilogue` as in `networks.epilogues`; a layer is
    offloaded where at most `max_waste` of its multiplications are by zeros. `bound` is what a
    workload takes at least, None where nobody knows, and raises `WorkloadError` for one that cannot
    run; `slowdown` is that of the CPU beside it (`networks.offloading.cpu_costs`).

    Where it `rounds_to_even`, `form` gives a workload the steps that it computes, and `check`
    raises `WorkloadError` for what it has no schedule of.

    One that `computes_floats` is the processor that the rest of the network runs on, too: nothing
    is packed or padded for it, and `check` is all there is to decide. It multiplies in `float_type`
    where it has a kernel for that, else in float32."""

    blocks: Blocks
    epilogue: EpilogueMode = "full"
    max_waste: float = MAX_WASTE
    bound: Callable[[Workload], Latency] | None = None
    slowdown: float = SLOWDOWN
    estimate: Callable[[Workload], float] | None = None
    """What the schedule of a workload takes that its target's estimate thinks best, where the
    target pools sums."""
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
        """A target as accelerator; estimates are asked about `sampled` schedules of a workload."""
        if "float32" in dtypes_of(target):
            return cls(
                Blocks(), epilogue, max_waste, computes_floats=True,
                float_type=float_type_of(target), check=target.space,
            )  # fmt: skip
        known = capability(target, Bounds)
        host, pools = capability(target, HasHost), capability(target, PoolsSums)
        rounds = capability(target, RoundsToEven)
        even = rounds is not None and rounds.rounds_to_even
        return cls(
            blocks_of(target),
            epilogue,
            max_waste,
            None if known is None else partial(limit_of, known),
            SLOWDOWN if host is None else host.host_slowdown,
            _estimate_of(target, sampled) if pools is not None and pools.pools_sums else None,
            check=target.space if even else lambda workload: None,
            rounds_to_even=even,
        )

    def form(self, workload: Workload) -> Workload:
        """A workload as the accelerator computes it."""
        return rounded_to_even(workload) if self.rounds_to_even else workload

    def accept(self, workload: Workload) -> None:
        """Raises `WorkloadError` where it has no schedule."""
        self.check(self.form(workload))

    def seconds(self, workload: Workload) -> float | None:
        """What a call takes at least, unless nobody knows. Raises `WorkloadError` where it cannot
        run."""
        return None if self.bound is None else self.bound(workload).seconds

    def estimated(self, workload: Workload) -> float | None:
        """What a call takes by the target's estimate, in the target's unit; None where nobody
        knows. Raises `WorkloadError` where it cannot run."""
        return None if self.estimate is None else self.estimate(workload)

    def image_seconds(self, elements: int) -> float:
        """Packing an image into blocks on the CPU, or unpacking it. Quantising and going back is
        part of the loops of the operators beside it, which have its values at hand."""
        return self.slowdown * SECONDS["pack"] * elements

    def unfold_seconds(self, elements: int, unfolded_bytes: int) -> float:
        """Quantising an image of so many elements and rearranging it on the CPU."""
        quantising = SECONDS["elementwise"] * elements
        return self.slowdown * (quantising + SECONDS["unfold"] * unfolded_bytes)

    def seconds_or_never(self, workload: Workload) -> float:
        """What a call takes at least; infinite where it cannot run, 0 where nobody knows."""
        try:
            return self.seconds(workload) or 0.0
        except WorkloadError:
            return math.inf


def _estimate_of(target: Target, sampled: int) -> Callable[[Workload], float]:
    """The least estimate of the schedules of a workload that fit, of some in a large space."""

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
