"""What an explorer is asked: one workload on one target, with a seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from targets.base import Configs, Space
from targets.features import Features
from targets.workload import Workload

Estimate = Callable[[Configs], Features]
"""Closed-form numbers of configs, shape (n, knobs), without compiling them: a row a config, one
column of which means `latency`."""


@dataclass(frozen=True)
class Problem:
    """What an explorer is asked to tune: one workload on one target, with a seed."""

    workload: Workload
    space: Space
    seed: int = 0
    hardware: dict[str, float] = field(default_factory=dict)
    estimate: Estimate | None = None

    def rng(self, round_index: int, stage: str) -> np.random.Generator:
        """The generator of one stage of one round: independent of everything drawn before."""
        return np.random.default_rng([self.seed, round_index, zlib.crc32(stage.encode())])
