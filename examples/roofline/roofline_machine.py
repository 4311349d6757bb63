"""Implements a target of your own, as small as one can be: a machine with a peak, a bus, a cache.

Install it and tune for it; nothing else of Tilewright knows of it:

    pip install --no-deps --no-build-isolation ./examples/roofline
    tilewright tune digits_cnn --target roofline --trials 24

Its measurements differ from one to the next, as those of a real machine do. Change its numbers, its
knobs, or what it calls invalid.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import (
    Capabilities,
    Configs,
    Knob,
    Lowered,
    Measurements,
    Ragged,
    Space,
    Target,
)
from tilewright.targets.capabilities import (
    Bounds,
    Latency,
    RooflineAlone,
    offers,
)
from tilewright.targets.features import Feature, Features
from tilewright.targets.registry import TargetKind
from tilewright.targets.workload import Workload

PEAK_MACS = 2e9  # a second and thread
BUS_BYTES = 1e9  # a second
CACHE_BYTES = 32 * 1024
CALL_SECONDS = 2e-6
NOISE = 0.02  # standard deviation of the logarithm of a repetition
REPEATS = 5
KNOBS = (
    Knob("tile_co", (4, 8, 16, 32, 64)),
    Knob("tile_ci", (4, 8, 16, 32, 64)),
    Knob("threads", (1, 2, 4)),
)
HIDDEN = (
    Feature("moved_bytes", "bytes", "load", "bytes between memory and cache"),
    Feature("macs_a_thread", "work", "compute", "multiply-accumulates of the busiest thread"),
)


class RooflineMachine(RooflineAlone):
    """Keeps `targets.base.Target`: three knobs, two ways to fail, noise."""

    name = "roofline"
    deterministic = False

    @property
    def capabilities(self) -> Capabilities:
        """A bound, and nothing else."""
        return offers(self, Bounds)

    @property
    def fingerprint(self) -> str:
        """Of this file: whatever changes in it may change a measurement."""
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        """Return the peak, the bandwidth and the cache size, as features of models."""
        return {"peak_macs": PEAK_MACS, "bus_bytes": BUS_BYTES, "cache_bytes": CACHE_BYTES}

    def space(self, workload: Workload) -> Space:
        """Return the space of tile sizes and threads, the same for every workload."""
        return Space("tiles", KNOBS)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Lower configs to programs: the bytes that they move and the MACs that they compute.

        A config fails to compile if its tile of weights does not fit the cache.
        """
        tile_co, tile_ci, threads = self.space(workload).values(configs).T
        tile_bytes = tile_co * tile_ci * workload.kernel_h * workload.kernel_w
        made = threads * tile_bytes <= CACHE_BYTES
        image = workload.batch * workload.height * workload.width * workload.in_channels
        tiles = -(-workload.out_channels // tile_co)
        moved = image * tiles + workload.macs / (workload.out_height * workload.out_width)
        macs = workload.macs * tiles * tile_co / workload.out_channels / threads
        jobs = np.stack([moved, macs], axis=1).astype(np.float64)
        return Lowered(
            workload,
            configs,
            failures=np.where(made, "", "cache_overflow").astype(object),
            reasons=np.where(made, "", "allocate: the tiles exceed the cache").astype(object),
            hidden=Features(np.where(made[:, None], jobs, np.nan), HIDDEN),
            programs={"jobs": Ragged(jobs[made], np.concatenate([[0], np.cumsum(made)]))},
        )

    def measure(self, lowered: Lowered) -> Measurements:
        """Measure programs, each as the median of several repetitions.

        Programs with four threads and the smallest tiles do not run.
        """
        n, compiled = len(lowered), np.flatnonzero(lowered.ok)
        moved, macs = lowered.programs["jobs"].values.T
        ideal = CALL_SECONDS + np.maximum(moved / BUS_BYTES, macs / PEAK_MACS)
        noise = np.random.default_rng().normal(0.0, NOISE, (len(compiled), REPEATS))
        repeats = ideal[:, None] * np.exp(noise)
        values = self.space(lowered.workload).values(lowered.configs[compiled])
        runs = (values[:, 2] < 4) | (values[:, 0] * values[:, 1] >= 64)
        measured = Measurements.unmeasured(n)
        measured.reason[:] = lowered.reasons
        measured.status[compiled] = np.where(runs, "valid", "run_error")
        measured.reason[compiled] = np.where(runs, "", "run: threads starve on tiles this small")
        measured.seconds[compiled[runs]] = np.median(repeats[runs], axis=1)
        return replace(measured, repeats=_ragged(n, compiled[runs], repeats[runs]))

    def roofline(self, workload: Workload) -> Latency:
        """All threads at their peak, no noise: `targets.capabilities.Bounds`."""
        return Latency(0.8 * (CALL_SECONDS + workload.macs / (4 * PEAK_MACS)))


def _ragged(n: int, places: NDArray[np.int64], repeats: NDArray[np.float64]) -> Ragged:
    """Repetitions (valid, repeats) of the rows at `places`; none of the others."""
    lengths = np.zeros(n, np.int64)
    lengths[places] = repeats.shape[1]
    return Ragged(repeats.ravel(), np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))


def _make(text: str, space: str) -> Target:
    return RooflineMachine()


KIND = TargetKind(
    name="roofline", summary="an example: a machine with a peak, a bus and a cache", make=_make
)
