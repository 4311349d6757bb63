"""Holds what a transferred model learns from and is asked about: rows of many tasks, as plain
arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.features import Features


@dataclass(frozen=True)
class TrainingTable:
    """Programs on hardware. A task is one workload on one piece of hardware: only latencies of the
    same task are compared.

    `features` has a row a program, NaN where the hardware or the program has no such thing (never
    0 for "unknown"). `log_latency` (rows,) is log2 of the latency, in cycles where the hardware
    counts them and else in seconds; NaN where the program is not valid. `task`, `workload` and
    `hardware` (rows,) number what a row belongs to.
    """

    features: Features
    log_latency: NDArray[np.float64]
    task: NDArray[np.int64]
    workload: NDArray[np.int64]
    hardware: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_latency)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which programs have a latency, shape (rows,)."""
        return np.asarray(np.isfinite(self.log_latency), dtype=np.bool_)

    def rows(self, which: NDArray[Any]) -> TrainingTable:
        """The rows of the given indices or mask, shape (rows,)."""
        return replace(
            self,
            features=self.features.rows(which),
            log_latency=self.log_latency[which],
            task=self.task[which],
            workload=self.workload[which],
            hardware=self.hardware[which],
        )
