"""Describes a processor to estimates, and provides what the estimates of all kernels share.

Cycles are those of one core. The figures of a core are Intel's and AMD's optimisation manuals' for
cores with two vector multipliers (Golden Cove, Zen 4, their predecessors alike). Those named
`fitted` were chosen once so that random schedules of the layers in benchmarks/layers.py come out in
the right order (docs/evidence/cpu-estimates.md). `python -m benchmarks.cpu.schedules` measures how
well they do. None belongs to a layer.
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
"""Values of each knob, by its name, shape (configs,)."""

MULTIPLIES = 2.0
"""Vector multiply-adds a cycle."""
LOADS = 2.0
"""Vectors, or numbers copied into all lanes, loaded a cycle."""
STORES = 1.0
"""Vectors stored a cycle."""
LATENCY = 4.0
"""Cycles from a multiply-add to the next one on the same sum."""
NUMBER = 4
"""Bytes of a float32, or of four int8."""
LINE = 64
"""Bytes of a cache line."""
LAUNCH_SECONDS = 4e-6
"""A parallel loop's begin and end (fitted)."""
SPILL = 2.0
"""Cycles a step for each vector that does not fit the registers: stored and loaded again, most of
it beside the multiplications (fitted)."""
LOOP = 0.7
"""Cycles an iteration of an innermost loop, not hidden by its body (fitted)."""
ENTRY = 3.0
"""Cycles a begin of an innermost loop (fitted)."""
TILE = 20.0
"""Cycles a register tile: its addresses and its first multiplications (fitted)."""
HIDDEN = 0.8
"""Part of moving between caches that prefetching hides behind multiplications (fitted)."""
WOULD_FAIL = 16.0
"""Times the latency of a schedule that is refused: it must not look good."""


@dataclass(frozen=True)
class CpuMachine:
    """A core: `clock` cycles a second, `l1` and `l2` bytes of its caches, `near` and `far` bytes a
    cycle from the second level and from beyond it."""

    spec: CpuSpec
    clock: float
    l1: float
    l2: float
    near: float
    far: float

    @classmethod
    def of(
        cls, spec: CpuSpec, peak: float, near: float, far: float, caches: tuple[int, int]
    ) -> CpuMachine:
        """From floating-point operations a second and bytes a second of all threads together, and
        bytes of the first two caches, 0 where nobody knows."""
        clock = peak / (2 * MULTIPLIES * spec.lanes * spec.threads)
        rates = (rate / spec.threads / clock for rate in (near, far))
        l1, l2 = (size or usual for size, usual in zip(caches, (1 << 15, 1 << 19), strict=True))
        return cls(spec, clock, l1, l2, *rates)


COLUMNS = (
    Feature("seconds", "latency", "", "seconds a call"),
    Feature("multiply_cycles", "work", "compute", "cycles of register tiles, of the busiest core"),
    Feature("near_bytes", "bytes", "load", "bytes from the second cache to the first, all cores"),
    Feature("far_bytes", "bytes", "load", "bytes from beyond the second cache, all cores"),
    Feature("other_cycles", "", "", "cycles of copies, transforms and epilogues, busiest core"),
    Feature("registers", "", "compute", "vectors a register tile needs, by registers there are"),
    Feature("busiest", "", "", "the busiest core's part of all work"),
    Feature("code", "share", "", "unrolled code by the most that is tried; far above 1 beyond it"),
)


@dataclass(frozen=True)
class Parts:
    """What a schedule consists of, shape (configs,) each: cycles and bytes of all cores together,
    `busiest` core's part of them, `launches` parallel loops."""

    multiply: Array
    other: Array
    near: Array
    far: Array
    registers: Array
    busiest: Array
    launches: Array
    code: Array

    def columns(self, machine: CpuMachine) -> Array:
        """Numbers of `COLUMNS`, shape (configs, columns)."""
        moving = self.near / machine.near + self.far / machine.far
        beside = np.maximum(self.multiply, moving) + (1 - HIDDEN) * np.minimum(
            self.multiply, moving
        )
        cycles = (beside + self.other) * self.busiest
        seconds = cycles / machine.clock
        if machine.spec.threads > 1:
            seconds = seconds + LAUNCH_SECONDS * self.launches
        refused = self.code > 1
        return np.stack(
            [
                seconds * np.where(refused, WOULD_FAIL, 1.0),
                self.multiply * self.busiest,
                np.maximum(self.near, 1.0),
                np.maximum(self.far, 1.0),
                np.maximum(self.other * self.busiest, 1.0),
                self.registers,
                self.busiest,
                self.code * np.where(refused, WOULD_FAIL, 1.0),
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
    """Cycles of one step of a register tile, shape (configs,): `sums` multiply-adds on `operands`,
    vectors of weights and numbers copied into all lanes, `kept` of which LLVM keeps in registers.
    There are `chains` of sums that do not wait for each other."""
    weights, numbers = operands
    spilled = np.maximum(sums * chains + kept + 1 - registers, 0.0)
    multiplying = np.maximum(sums / MULTIPLIES, LATENCY / chains)
    return np.asarray(np.maximum(multiplying, (weights + numbers) / LOADS) + SPILL * spilled)


def kept_operands(weights: Array, numbers: Array, blocks: Array, pixels_first: Mask) -> Array:
    """Operands of a step, shape (configs,), that LLVM keeps in registers until they are used for
    the last time: all weights where the pixels are the outer loops, else all pixels' numbers, if
    several blocks of channels need them."""
    return np.where(pixels_first, weights, np.where(blocks > 1, numbers, 1.0))


def finish_cycles(sums: Array, steps: Sequence[str]) -> Array:
    """Cycles in which `sums` vectors, shape (configs,), are cleared, go through an epilogue of
    `steps`, and are stored."""
    loads = sum(kind in ("bias", "residual") for kind in steps)
    activation = sum(CYCLES.get(kind, 0.0) for kind in steps)
    plain = max(1 / STORES, loads / LOADS, len(steps) / MULTIPLIES)
    return sums * (1 / MULTIPLIES + plain + activation)


def of_vector(block: int) -> float:
    """What an instruction on a block of channels costs: of a whole vector or a power of two, 1."""
    return 1.0 if block.bit_count() == 1 else ODD


def busiest(chunks: Array, threads: int) -> Array:
    """The part of equal chunks, shape (configs,), that the busiest of some threads does."""
    return np.asarray(np.ceil(chunks / threads) / chunks)


def moved(
    bodies: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    extents: Mapping[str, Array],
    loops: Sequence[Mapping[str, Array]],
    cache: float,
) -> Array:
    """Bytes that come into a `cache` (bytes), shape (configs,). `bodies` says how many bytes of
    each tensor some extents touch; `loops`, the innermost first, how they multiply the `extents` of
    the innermost body. What an iteration shares with the one before is still there if an iteration
    touches no more than the cache holds."""
    size = dict(extents)
    before = bodies(size)
    found = dict(before)
    for loop in loops:
        size = {name: value * loop.get(name, 1.0) for name, value in size.items()}
        after, trips = bodies(size), np.prod(list(loop.values()), axis=0)
        kept = _fits(sum(before.values(), start=np.zeros(1)), cache)
        for name, value in found.items():
            growth = after[name] / before[name]
            found[name] = value * (kept * growth + (1 - kept) * np.maximum(trips, growth))
        before = after
    total = sum(before.values(), start=np.zeros(1))
    again = 1 - _fits(total, cache)  # what stays from one call to the next need not come
    return np.asarray(sum(found.values(), start=np.zeros(1)) * again)


def _fits(size: Array, cache: float) -> Array:
    """From 1 where `size` bytes surely fit a cache to 0 where they surely do not."""
    return np.asarray(np.clip(1.5 - size / cache, 0.0, 1.0))
