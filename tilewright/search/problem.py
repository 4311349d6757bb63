"""States what an explorer is asked: one workload on one target, with a seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Configs, Space
from tilewright.targets.capabilities import UNKNOWN_COSTS, Costs
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

Estimate = Callable[[Configs], Features]
"""Closed-form numbers of configs, shape (n, knobs), without compiling them: a row a config, one
column of which means `latency`."""


@dataclass(frozen=True)
class Belief:
    """What a model of other hardware or other workloads says of configs, each of shape (n,): log2
    latency up to a constant, how far off that usually is, and the chance that a config is valid."""

    log_latency: NDArray[np.float64]
    spread: NDArray[np.float64]
    chance: NDArray[np.float64]

    def rows(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Belief:
        """Of some configs, by mask (n,) or places."""
        return Belief(self.log_latency[which], self.spread[which], self.chance[which])

    @property
    def table(self) -> NDArray[np.float64]:
        """Latency, spread and chance as rows, shape (3, n)."""
        return np.stack([self.log_latency, self.spread, self.chance])


TransferredPrior = Callable[[Configs, Features | None], Belief]
"""A model learned elsewhere, asked about configs, shape (n, knobs), of the problem: before they are
compiled, or with what compiling revealed of each."""


@dataclass(frozen=True)
class Problem:
    """What an explorer is asked to tune: one workload on one target, with a seed."""

    workload: Workload
    space: Space
    seed: int = 0
    hardware: dict[str, float] = field(default_factory=dict)
    estimate: Estimate | None = None
    costs: Costs = UNKNOWN_COSTS
    deterministic: bool = True  # measuring a config again gives the same numbers
    transferred: TransferredPrior | None = None

    def compiles(self, n: int, alpha: float, looking: float) -> int:
        """How many configs to compile for a batch of `n` trials: `alpha` a trial beyond it, as long
        as that takes no more than `looking` times as long as measuring the batch. Where a compile
        takes longer than a measurement, what compiled had better be measured. A target that does
        not say what trials cost is taken to need as long for either."""
        affordable = self.affordable(looking)
        if affordable < 1:
            return n
        return int(np.ceil((min(alpha, affordable) + 1) * n))

    def affordable(self, looking: float) -> float:
        """How many configs are compiled in `looking` times the time that measuring one takes."""
        return looking * self.costs.measuring / self.costs.compiling

    def rng(self, round_index: int, stage: str) -> np.random.Generator:
        """The generator of one stage of one round: independent of everything drawn before."""
        return np.random.default_rng([self.seed, round_index, zlib.crc32(stage.encode())])
