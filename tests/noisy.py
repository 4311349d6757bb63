"""Targets for tests whose repeated measurements differ.

`NoisyTarget` knows its true latencies. `TimedProduct` times a real matrix product on this machine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Configs, Knob, Lowered, Measurements, Ragged, Space, Target
from tilewright.targets.capabilities import (
    Baseline,
    BaselineSchedule,
    Bounds,
    Latency,
    RooflineAlone,
    offers,
)
from tilewright.targets.features import Feature, Features
from tilewright.targets.registry import TargetKind, target_kinds
from tilewright.targets.workload import Workload

KNOBS = (
    Knob("rows", (1, 2, 4, 8, 16, 32)),
    Knob("columns", (1, 2, 4, 8, 16, 32)),
    Knob("depth", (1, 2, 4, 8)),
)
HIDDEN = (Feature("blocks", "work", "compute", "products of blocks"),)
REPEATS = 3
_NUMBERS = itertools.count()


class NoisyTarget(RooflineAlone):
    """A target with noisy latencies, like a machine whose clock frequency varies.

    A latency is a smooth function of the knobs, times lognormal noise. The repeats of one
    measurement share a part of their noise.
    """

    name = "noisy"
    deterministic = False

    def __init__(self, seed: int = 0, noise: float = 0.1, shared: float = 0.1) -> None:
        self.rng = np.random.default_rng(seed)
        self.noise, self.shared = noise, shared
        self.measured = 0  # configs
        self.programs = 0  # batches
        self.capabilities = offers(self, Baseline, Bounds)

    @property
    def fingerprint(self) -> str:
        return f"noisy-{self.noise}-{self.shared}"

    def hardware_features(self) -> dict[str, float]:
        return {}

    def space(self, workload: Workload) -> Space:
        return Space("blocks", KNOBS)

    def true_seconds(self, configs: Configs) -> NDArray[np.float64]:
        """Return the median latency in seconds of each config, shape (configs,)."""
        logs = np.log2(self.space(Workload("dense", 1, 64, 1, 1, 64)).values(configs))
        far = ((logs - np.array([3.0, 2.0, 1.0])) ** 2).sum(axis=1)
        return np.asarray(1e-3 * (1.0 + 0.02 * far))

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        values = self.space(workload).values(configs)
        made = values[:, 0] * values[:, 1] <= 512
        count = (1024.0 / (values[:, 0] * values[:, 1] * values[:, 2]))[:, None]
        return Lowered(
            workload,
            configs,
            failures=np.where(made, "", "too_large").astype(object),
            reasons=np.where(made, "", "allocate: a block exceeds the cache").astype(object),
            hidden=Features(np.where(made[:, None], count, np.nan), HIDDEN),
        )

    def measure(self, lowered: Lowered) -> Measurements:
        runs = np.flatnonzero(lowered.ok)
        self.measured, self.programs = self.measured + len(runs), self.programs + 1
        drift = self.rng.normal(0.0, self.shared, (len(runs), 1))
        noise = self.rng.normal(0.0, self.noise, (len(runs), REPEATS))
        true = self.true_seconds(lowered.configs[runs])
        return measured_of(lowered, runs, true[:, None] * np.exp(drift + noise))

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """Return a deliberately bad schedule with blocks of one element."""
        space = self.space(workload)
        lowered = self.lower(workload, np.zeros((1, len(KNOBS)), np.int32))
        return BaselineSchedule("rule", space, lowered, self.measure(lowered))

    def roofline(self, workload: Workload) -> Latency:
        """Return a bound that is a tenth below the best latency."""
        return Latency(0.9e-3)


class TimedProduct(NoisyTarget):
    """A target that multiplies 48 x 48 matrices block by block in numpy and measures the time."""

    name = "timed-product"

    @property
    def fingerprint(self) -> str:
        return "timed-product"

    def measure(self, lowered: Lowered) -> Measurements:
        runs = np.flatnonzero(lowered.ok)
        self.measured, self.programs = self.measured + len(runs), self.programs + 1
        values = self.space(lowered.workload).values(lowered.configs[runs])
        return measured_of(lowered, runs, np.array([_times(*row) for row in values.tolist()]))


def _times(rows: int, columns: int, depth: int) -> list[float]:
    size, result = 48, []
    left, right = np.ones((size, size)), np.ones((size, size))
    for _ in range(REPEATS):
        out = np.zeros((size, size))
        begin = time.perf_counter()
        for i in range(0, size, rows):
            for j in range(0, size, columns):
                for k in range(0, size, 8 * depth):
                    end = k + 8 * depth
                    out[i : i + rows, j : j + columns] += (
                        left[i : i + rows, k:end] @ right[k:end, j : j + columns]
                    )
        result.append(time.perf_counter() - begin)
    assert (out == size).all()
    return result


def measured_of(
    lowered: Lowered, runs: NDArray[np.int64], repeats: NDArray[np.float64]
) -> Measurements:
    """Make measurements from repeated latencies, shape (runs, repeats), for the rows `runs`.

    All other rows failed to compile.
    """
    result = Measurements.unmeasured(len(lowered))
    result.reason[:] = lowered.reasons
    result.status[runs] = "valid"
    if len(runs):
        result.seconds[runs] = np.median(repeats, axis=1)
    lengths = np.zeros(len(lowered), np.int64)
    lengths[runs] = REPEATS
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return replace(result, repeats=Ragged(repeats.ravel(), offsets))


@contextmanager
def registered(target: Target, name: str = "") -> Iterator[str]:
    """Register a target while the context is open, and yield its name.

    Without `name`, a name is chosen that is unique in this process.
    """
    name = name or f"{target.name}-{next(_NUMBERS)}"
    target_kinds()[name] = TargetKind(name, "of a test", lambda text, space: target)
    try:
        yield name
    finally:
        del target_kinds()[name]
