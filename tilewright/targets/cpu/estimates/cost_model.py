"""Properties of a processor core, and formulas that the estimates of all kernels share.

Cycles are cycles of one core. Properties of a core come from Intel's and AMD's optimisation
manuals, for cores with two vector multipliers (Golden Cove, Zen 4 and their predecessors).

Constants that are marked as "fitted" were chosen once, so that random schedules of the layers in
benchmarks/layers.py are ranked correctly (docs/evidence/cpu-estimates.md). `python -m
benchmarks.cpu.schedules` measures how well schedules are ranked. No constant was fitted to a single
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.cpu.kernels.epilogue import CYCLES
from tilewright.targets.cpu.layouts import ODD
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.features import Feature

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Knobs = Mapping[str, Array]
"""Values of each knob, shape (configs,), by the knob's name."""

MULTIPLIES = 2.0
"""Number of vector multiply-adds that a core starts per cycle."""
LOADS = 2.0
"""Number of loads that a core executes per cycle. A load reads a whole vector, or reads one value
and copies it to all lanes of a vector."""
STORES = 1.0
"""Number of vector stores that a core executes per cycle."""
LATENCY = 4.0
"""Latency of a multiply-add in cycles: the time between two multiply-adds on the same
accumulator."""
NUMBER = 4
"""Size in bytes of one float32 value, or of four int8 values."""
LINE = 64
"""Size of a cache line in bytes."""
LAUNCH_SECONDS = 4e-6
"""Time in seconds to start and to end a parallel loop (fitted)."""
SPILL = 2.0
"""Cycles that one vector adds to each step if it does not fit into the registers. Such a vector is
stored and loaded again, mostly in parallel with the multiplications (fitted)."""
LOOP = 0.7
"""Overhead of one iteration of an innermost loop in cycles, as far as it does not overlap with the
body of the loop (fitted)."""
ENTRY = 3.0
"""Overhead of entering an innermost loop in cycles (fitted)."""
TILE = 20.0
"""Overhead of one register tile in cycles: address computations, and the latency of the first
multiplications (fitted)."""
HIDDEN = 0.8
"""Fraction of the cache traffic that overlaps with the multiplications because of prefetching
(fitted)."""
WOULD_FAIL = 16.0
"""Factor by which the estimated latency is multiplied if the compiler would reject the schedule, so
that such a schedule does not look good."""


@dataclass(frozen=True)
class CpuMachine:
    """Properties of a processor core.

    Attributes:
        spec: the processor.
        clock: cycles per second.
        l1: bytes of the first-level data cache.
        l2: bytes of the second-level cache.
        near: bytes per cycle that a core reads from its second-level cache.
        far: bytes per cycle that a core reads from beyond its second-level cache.
    """

    spec: CpuSpec
    clock: float
    l1: float
    l2: float
    near: float
    far: float

    @classmethod
    def from_rates(
        cls, spec: CpuSpec, peak: float, near: float, far: float, caches: tuple[int, int]
    ) -> CpuMachine:
        """Derive the properties of a core from rates that were measured with all threads.

        Args:
            spec: the processor.
            peak: floating-point operations per second.
            near: bytes per second from the second-level caches.
            far: bytes per second from beyond the second-level caches.
            caches: bytes of the first-level and of the second-level cache; 0 if unknown, in which
                case 32 KiB and 512 KiB are assumed.
        """
        clock = peak / (2 * MULTIPLIES * spec.lanes * spec.threads)
        rates = (rate / spec.threads / clock for rate in (near, far))
        l1, l2 = (size or usual for size, usual in zip(caches, (1 << 15, 1 << 19), strict=True))
        return cls(spec, clock, l1, l2, *rates)


COLUMNS = (
    Feature("seconds", "latency", "", "seconds per call"),
    Feature("multiply_cycles", "work", "compute", "cycles of register tiles, of the busiest core"),
    Feature("near_bytes", "bytes", "load", "bytes from the second cache to the first, all cores"),
    Feature("far_bytes", "bytes", "load", "bytes from beyond the second cache, all cores"),
    Feature("other_cycles", "", "", "cycles of copies, transforms and epilogues, busiest core"),
    Feature(
        "registers",
        "",
        "compute",
        "vector registers that a register tile needs, relative to the number of registers",
    ),
    Feature("busiest", "", "", "fraction of all work that the busiest core does"),
    Feature(
        "code", "share", "", "size of the unrolled code, relative to the largest that is compiled"
    ),
)
"""Columns of an estimate, in the order of its values."""


@dataclass(frozen=True)
class Parts:
    """Parts of the estimated latency of schedules; each attribute is an array of shape (configs,).

    A register tile is a block of the output whose accumulators are held in vector registers.

    Attributes:
        multiply: cycles of the multiply-adds in register tiles, summed over all cores.
        other: cycles of copies, transforms and epilogues, summed over all cores.
        near: bytes moved from second-level to first-level caches, summed over all cores.
        far: bytes moved from beyond the second-level caches, summed over all cores.
        registers: vector registers that a register tile needs, as a fraction of those available.
        busiest: fraction of the work that the busiest core does.
        launches: number of parallel loops, each of which has to start the threads.
        code: size of the unrolled code, as a fraction of the largest size that is compiled.
    """

    multiply: Array
    other: Array
    near: Array
    far: Array
    registers: Array
    busiest: Array
    launches: Array
    code: Array

    def columns(self, machine: CpuMachine) -> Array:
        """Compute the values of `COLUMNS`.

        Args:
            machine: properties of a core.

        Returns:
            Float64 array of shape (configs, columns).
        """
        traffic = self.near / machine.near + self.far / machine.far
        overlapped = np.maximum(self.multiply, traffic) + (1 - HIDDEN) * np.minimum(
            self.multiply, traffic
        )
        cycles = (overlapped + self.other) * self.busiest
        seconds = cycles / machine.clock
        if machine.spec.threads > 1:
            seconds = seconds + LAUNCH_SECONDS * self.launches
        rejected = self.code > 1
        return np.stack(
            [
                seconds * np.where(rejected, WOULD_FAIL, 1.0),
                self.multiply * self.busiest,
                np.maximum(self.near, 1.0),
                np.maximum(self.far, 1.0),
                np.maximum(self.other * self.busiest, 1.0),
                self.registers,
                self.busiest,
                self.code * np.where(rejected, WOULD_FAIL, 1.0),
            ],
            axis=1,
        )


def step_cycles(
    sums: Array,
    operands: tuple[Array, Array],
    kept: Array,
    registers: int,
    chains: Array | float = 1.0,
) -> Array:
    """Return the cycles in which a register tile performs one multiply-add per accumulator vector.

    A register tile is a block of the output whose accumulators are held in vector registers.

    Args:
        sums: number of accumulator vectors of the tile, shape (configs,).
        operands: number of vectors of weights, and number of data values that are broadcast to all
            lanes, shape (configs,) each.
        kept: number of operands that LLVM keeps in registers, shape (configs,).
        registers: number of vector registers.
        chains: number of independent partial sums per result, which do not wait for each other.

    Returns:
        Cycles, shape (configs,).
    """
    weights, numbers = operands
    spilled = np.maximum(sums * chains + kept + 1 - registers, 0.0)
    multiplying = np.maximum(sums / MULTIPLIES, LATENCY / chains)
    return np.asarray(np.maximum(multiplying, (weights + numbers) / LOADS) + SPILL * spilled)


def kept_operands(weights: Array, numbers: Array, blocks: Array, pixels_first: Mask) -> Array:
    """Return the number of registers in which LLVM keeps operands of a register tile.

    If loops over pixels are outside loops over channels, LLVM keeps all vectors of weights.
    Otherwise it keeps the data values of all pixels if several channel blocks use them, and a
    single data value if not.

    Args:
        weights: vectors of weights that the tile multiplies at a time, shape (configs,).
        numbers: data values that the tile multiplies at a time, one per pixel, shape (configs,).
        blocks: blocks of output channels of the tile, shape (configs,).
        pixels_first: whether loops over pixels are outside loops over channels, shape (configs,).

    Returns:
        Number of registers, shape (configs,).
    """
    return np.where(pixels_first, weights, np.where(blocks > 1, numbers, 1.0))


def finish_cycles(sums: Array, steps: Sequence[str]) -> Array:
    """Return the cycles to clear a tile's accumulators, apply the epilogue, and store the results.

    Args:
        sums: number of accumulator vectors, shape (configs,).
        steps: names of the epilogue's operations, such as `bias`.

    Returns:
        Cycles, shape (configs,).
    """
    loads = sum(kind in ("bias", "residual") for kind in steps)
    activation = sum(CYCLES.get(kind, 0.0) for kind in steps)
    throughput = max(1 / STORES, loads / LOADS, len(steps) / MULTIPLIES)
    return sums * (1 / MULTIPLIES + throughput + activation)


def of_vector(block: int) -> float:
    """Return the cost of a vector instruction on a block of channels, relative to a full vector.

    Args:
        block: channels per block.

    Returns:
        1 if the number of channels is a power of two, else `ODD`.
    """
    return 1.0 if block.bit_count() == 1 else ODD


def busiest(chunks: Array, threads: int) -> Array:
    """Return the fraction of the work that the busiest thread does.

    Args:
        chunks: number of equal parallel chunks, shape (configs,).
        threads: number of threads.

    Returns:
        Fractions, shape (configs,).
    """
    return np.asarray(np.ceil(chunks / threads) / chunks)


def moved_bytes(
    bodies: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    extents: Mapping[str, Array],
    loops: Sequence[Mapping[str, Array]],
    cache: float,
) -> Array:
    """Estimate the bytes that a nest of loops moves into a cache.

    An iteration of a loop reuses data of the previous iteration. We assume that these data are
    still in the cache if one iteration touches no more bytes than the cache holds.

    Args:
        bodies: function of the extent of each axis, which returns the bytes of each tensor, by
            name, that a loop body with these extents touches.
        extents: extents of the innermost body, by axis.
        loops: one mapping per loop, innermost loop first. It maps an axis to the factor by which
            the loop multiplies the extent along this axis.
        cache: size of the cache in bytes.

    Returns:
        Bytes, shape (configs,).
    """
    size = dict(extents)
    inner_bytes = bodies(size)
    traffic = dict(inner_bytes)
    for loop in loops:
        size = {name: value * loop.get(name, 1.0) for name, value in size.items()}
        outer_bytes, trips = bodies(size), np.prod(list(loop.values()), axis=0)
        cached = _fit_score(sum(inner_bytes.values(), start=np.zeros(1)), cache)
        for name, value in traffic.items():
            growth = outer_bytes[name] / inner_bytes[name]
            traffic[name] = value * (cached * growth + (1 - cached) * np.maximum(trips, growth))
        inner_bytes = outer_bytes
    total = sum(inner_bytes.values(), start=np.zeros(1))
    uncached = 1 - _fit_score(
        total, cache
    )  # data that stay in the cache between calls are not moved
    return np.asarray(sum(traffic.values(), start=np.zeros(1)) * uncached)


def _fit_score(size: Array, cache: float) -> Array:
    """Return a score from 0 to 1 that says how well `size` bytes fit a cache of `cache` bytes.

    The score is 1 up to half the size of the cache. It then falls linearly, and is 0 from one and a
    half times the size of the cache.
    """
    return np.asarray(np.clip(1.5 - size / cache, 0.0, 1.0))
