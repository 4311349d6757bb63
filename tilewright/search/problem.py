"""The problem that a tuner solves: one workload on one target, with a seed."""

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
"""Function that computes closed-form estimates of configs (n, knobs), without compiling them.

The result has one row per config. One of its columns has the meaning `latency`.
"""


@dataclass(frozen=True)
class Belief:
    """Predictions of a transferred model, which was trained on other workloads or hardware.

    Attributes:
        log_latency: log2 latency up to an unknown constant, shape (n,). Only differences matter.
        spread: typical error of `log_latency`, shape (n,).
        chance: probability that the config is valid, shape (n,).
    """

    log_latency: NDArray[np.float64]
    spread: NDArray[np.float64]
    chance: NDArray[np.float64]

    def rows(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Belief:
        """Return the predictions of some of the configs.

        Args:
            which: bool mask of shape (n,), or row indices.
        """
        return Belief(self.log_latency[which], self.spread[which], self.chance[which])

    @property
    def table(self) -> NDArray[np.float64]:
        """Array of shape (3, n) with the rows `log_latency`, `spread` and `chance`."""
        return np.stack([self.log_latency, self.spread, self.chance])


TransferredPrior = Callable[[Configs, Features | None], Belief]
"""Function that predicts configs (n, knobs) of the problem by a model that was trained on other
workloads or hardware.

The second argument is None before compilation, and otherwise holds the counters of each program.
"""


@dataclass(frozen=True)
class Problem:
    """The problem that a tuner solves.

    Attributes:
        workload: the workload to tune.
        space: its search space.
        seed: seed of all random generators.
        hardware: properties of the hardware by name.
        estimate: function that computes closed-form estimates, if the target offers them.
        costs: time that compiling and measuring a config take.
        deterministic: whether repeated measurements of a config give the same numbers.
        transferred: model that was trained on other workloads or hardware, if there is one.
    """

    workload: Workload
    space: Space
    seed: int = 0
    hardware: dict[str, float] = field(default_factory=dict)
    estimate: Estimate | None = None
    costs: Costs = UNKNOWN_COSTS
    deterministic: bool = True
    transferred: TransferredPrior | None = None

    def compiles(self, n: int, alpha: float, looking: float) -> int:
        """Return the number of configs to compile for a batch of `n` trials.

        By default, `alpha` configs per trial are compiled in addition to the batch. The number is
        limited such that compiling the additional configs takes at most `looking` times as long as
        measuring the batch. If not even one additional config per trial can be compiled in this
        time, none is compiled, because measuring a config is then the cheaper way to evaluate it.
        If the costs are unknown, compiling and measuring are assumed to take the same time.

        Args:
            n: number of trials of the batch.
            alpha: number of additional configs per trial.
            looking: limit on the compile time of the additional configs, as a multiple of the
                measuring time.
        """
        affordable = self.affordable_configs(looking)
        if affordable < 1:
            return n
        return int(np.ceil((min(alpha, affordable) + 1) * n))

    def affordable_configs(self, looking: float) -> float:
        """Return how many configs can be compiled within a limit on the compile time.

        Args:
            looking: the limit, as a multiple of the time that measuring one config takes.

        Returns:
            The number of configs, which need not be an integer.
        """
        return looking * self.costs.measuring / self.costs.compiling

    def rng(self, round_index: int, stage: str) -> np.random.Generator:
        """Return the random generator of one stage of one round.

        The generator depends only on the problem's seed and on the arguments, so that a resumed run
        draws the same numbers.

        Args:
            round_index: index of the round.
            stage: name of the stage.
        """
        return np.random.default_rng([self.seed, round_index, zlib.crc32(stage.encode())])
