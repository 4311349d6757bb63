"""What the networks' side knows of an accelerator: its blocks, how workloads are written for it,
and what layers take there and on the CPU beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from networks.cpu_costs import SECONDS, SLOWDOWN
from targets.base import Target
from targets.capabilities import Blocks, Bound, HasHost, Latency, Roofline, blocks_of, capability
from targets.errors import WorkloadError
from targets.workload import Workload

EpilogueMode = Literal["full", "per-channel", "plain"]

MAX_WASTE = 1.0


@dataclass(frozen=True)
class Accelerator:
    """Blocks in elements; `epilogue` as in `networks.int8`; a layer is offloaded where at most
    `max_waste` of its multiplications are by zeros. `bound` is what a workload takes at least, None
    where nobody knows, and raises `WorkloadError` for one that cannot run; `slowdown` is that of
    the CPU beside it (`networks.cpu_costs`)."""

    blocks: Blocks
    epilogue: EpilogueMode = "full"
    max_waste: float = MAX_WASTE
    bound: Callable[[Workload], Latency] | None = None
    slowdown: float = SLOWDOWN

    @classmethod
    def of(
        cls, target: Target, epilogue: EpilogueMode = "full", max_waste: float = MAX_WASTE
    ) -> Accelerator:
        """A target as accelerator."""
        bound, roofline = capability(target, Bound), capability(target, Roofline)
        host = capability(target, HasHost)
        least = None if roofline is None else roofline.roofline
        return cls(
            blocks_of(target),
            epilogue,
            max_waste,
            least if bound is None else bound.bound,
            SLOWDOWN if host is None else host.host_slowdown,
        )

    def seconds(self, workload: Workload) -> float | None:
        """What a call takes at least, unless nobody knows. Raises `WorkloadError` where it cannot
        run."""
        return None if self.bound is None else self.bound(workload).seconds

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
