"""The problem that an explorer solves: one workload on one target, with a seed."""

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
"""Function that estimates configs (n, knobs) in closed form, without compiling them.

The result has one row per config. One of its columns has the meaning `latency`.
"""


@dataclass(frozen=True)
class Belief:
    """Predictions of a transferred model, which was trained on other workloads or hardware.

    Attributes:
        log_latency: log2 latency up to a constant, so only differences matter, shape (n,).
        spread: typical error of `log_latency`, shape (n,).
        chance: probability that the config is valid, shape (n,).
    """

    log_latency: NDArray[np.float64]
    spread: NDArray[np.float64]
    chance: NDArray[np.float64]

    def rows(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Belief:
        """Select configs by a mask (n,) or by indices."""
        return Belief(self.log_latency[which], self.spread[which], self.chance[which])

    @property
    def table(self) -> NDArray[np.float64]:
        """`log_latency`, `spread` and `chance` as the rows of an array of shape (3, n)."""
        return np.stack([self.log_latency, self.spread, self.chance])


TransferredPrior = Callable[[Configs, Features | None], Belief]
"""Model that was trained elsewhere and predicts configs (n, knobs) of the problem.

The second argument is None before compilation, and otherwise holds the counters of each program.
"""


@dataclass(frozen=True)
class Problem:
    """The problem that an explorer solves.

    Attributes:
        workload: the workload to tune.
        space: its search space.
        seed: seed of all random generators.
        hardware: properties of the hardware by name.
        estimate: closed-form estimates, if the target offers them.
        costs: time that compiling and measuring take.
        deterministic: whether measuring a config again gives the same numbers.
        transferred: model that was trained elsewhere, if there is one.
    """

    workload: Workload
    space: Space
    seed: int = 0
    hardware: dict[str, float] = field(default_factory=dict)
    estimate: Estimate | None = None
    costs: Costs = UNKNOWN_COSTS
    deterministic: bool = True  # measuring a config again gives the same numbers
    transferred: TransferredPrior | None = None

    def compiles(self, n: int, alpha: float, looking: float) -> int:
        """Return how many configs to compile for a batch of `n` trials.

        It is `alpha` configs per trial beyond the batch, unless compiling them would take more than
        `looking` times as long as measuring the batch. If compiling is slower than measuring, it is
        better to measure what compiled. If the costs are unknown, both are assumed to take equally
        long.

        Args:
            n: number of trials of the batch.
            alpha: number of additional configs per trial.
            looking: limit on the compile time, as a multiple of the measuring time.
        """
        affordable = self.affordable_configs(looking)
        if affordable < 1:
            return n
        return int(np.ceil((min(alpha, affordable) + 1) * n))

    def affordable_configs(self, looking: float) -> float:
        """Return how many configs can be compiled within a multiple of the time of one measurement.

        Args:
            looking: limit on the compile time, as a multiple of the time of one measurement.
        """
        return looking * self.costs.measuring / self.costs.compiling

    def rng(self, round_index: int, stage: str) -> np.random.Generator:
        """Return the random generator of one stage of one round.

        It depends only on the seed and the arguments, so a resumed run draws the same numbers.

        Args:
            round_index: index of the round.
            stage: name of the stage.
        """
        return np.random.default_rng([self.seed, round_index, zlib.crc32(stage.encode())])
