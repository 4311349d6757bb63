"""Decides when a kernel has been timed often enough, and what its repeats say.

A repeat during which the operating system took a core away from a thread says nothing of the kernel
and is set aside. Between the kernel's repeats a fixed reference kernel runs, repeats as long as the
kernel's. What slows both down alike (another clock, a neighbour on the memory bus, a hypervisor)
divides out:

    seconds = repeat / median of the reference's repeats beside it × what that takes in quiet

A kernel's time is the median of these. It is done when an interval that holds the true median with
95 % confidence, whatever the distribution, is narrow enough. Where too few repeats of either are
undisturbed, the fastest quarter of both stands in: those were disturbed least, and alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import comb, inf

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
CONFIDENCE = 0.95
MOST = 2.0
LONGEST = 0.002
"""Seconds: repeats of the reference are no longer, however slow a kernel is."""
LARGE = 1 << 18
"""Bytes of weights that are streamed. Of fewer, a kernel takes as long with warm ones
(docs/decisions/measuring-on-a-cpu.md)."""


@dataclass(frozen=True)
class Timing:
    """How kernels are timed. The figures are choices of ours: docs/decisions/measuring-on-a-cpu.md.

    `warm_up` seconds a kernel runs before anything counts. A repeat is as many calls as take
    `repeat` seconds, at least one; `turn` repeats of the kernel follow as many of the reference. It
    ends when there are `least` undisturbed repeats and the interval is narrower than `width` of the
    median, or after `cap` seconds; where fewer are undisturbed, after `patience` seconds. Before
    each call `flush_bytes` are read, so that caches are cold; 0 leaves them warm. Weights of at
    least `LARGE` bytes come from memory, as in a network: so many copies that they have
    `stream_bytes` together take turns; 0 leaves one copy. Outputs may
    differ from the reference's by `tolerance` of its largest. A config that gives no answer within
    `hang` seconds is given up.
    """

    warm_up: float = 0.02
    repeat: float = 0.0003
    turn: int = 5
    width: float = 0.02
    cap: float = 0.2
    least: int = 10
    patience: float = 0.6
    flush_bytes: int = 0
    stream_bytes: int = 1 << 27
    tolerance: float = 1e-4
    hang: float = 20.0


@dataclass(frozen=True)
class Repeats:
    """Of a kernel or the reference: seconds a call, shape (n,), and whether nobody disturbed them,
    shape (n,)."""

    seconds: Seconds
    quiet: NDArray[np.bool_]

    @staticmethod
    def joined(parts: Sequence[Repeats]) -> Repeats:
        """One behind the other."""
        return Repeats(
            np.concatenate([part.seconds for part in parts]),
            np.concatenate([part.quiet for part in parts]),
        )

    def chosen(self, undisturbed: bool) -> Seconds:
        """The undisturbed ones, shape (quiet,), or the fastest quarter, shape (some,)."""
        if undisturbed and self.quiet.any():
            return self.seconds[self.quiet]
        return np.sort(self.seconds)[: -(-len(self.seconds) // 4)]


Run = Callable[[int, int], Repeats]
"""Makes so many repeats of so many calls each."""


@dataclass
class TimingRecord:
    """What was timed so far of one kernel: turns of it, each between two of the reference."""

    timing: Timing
    kernel: list[Repeats] = field(default_factory=list)
    reference: list[Repeats] = field(default_factory=list)

    def undisturbed(self) -> bool:
        """Whether there are enough undisturbed repeats of both."""
        found = (sum(int(each.quiet.sum()) for each in of) for of in (self.kernel, self.reference))
        return min(found) >= self.timing.least

    def corrected(self, quiet_reference: float) -> Seconds:
        """Seconds a call as on a quiet machine, whose reference takes `quiet_reference` seconds;
        shape (n,). Of the reference the median counts, over the second that a kernel is timed:
        ratios turn by turn would add the noise of single turns. A reference more than `MOST` times
        as slow as in quiet was disturbed, not slowed down."""
        undisturbed = self.undisturbed()
        beside = Repeats.joined(self.reference).chosen(undisturbed)
        slowdown = min(float(np.median(beside)) / quiet_reference, MOST)
        return Repeats.joined(self.kernel).chosen(undisturbed) / slowdown

    def fastest(self) -> float:
        """Seconds of the fastest call so far."""
        return float(min(each.seconds.min() for each in self.kernel))


def time_kernel(
    kernel: Run, reference: Run, once: float, quiet_reference: float, timing: Timing
) -> Seconds:
    """Corrected seconds a call, shape (n,). `once` is about what a call takes, `quiet_reference`
    what one of the reference takes on a quiet machine, both in seconds."""
    record, began = TimingRecord(timing), time.perf_counter()
    while True:
        calls = max(1, round(timing.repeat / once))
        beside = max(1, round(min(calls * once, LONGEST) / quiet_reference))
        turn = max(1, min(timing.turn, int(timing.cap / once / 4)))
        if not record.reference:
            record.reference.append(reference(turn, beside))
        record.kernel.append(kernel(turn, calls))
        record.reference.append(reference(turn, beside))
        once = min(once, record.fastest())
        found = record.corrected(quiet_reference)
        if _is_done(found, record.undisturbed(), time.perf_counter() - began, timing):
            return found


def _is_done(found: Seconds, undisturbed: bool, spent: float, timing: Timing) -> bool:
    if not undisturbed:
        return spent >= timing.patience
    low, high = median_interval(found)
    return bool(high - low <= timing.width * np.median(found)) or spent >= timing.cap


def median_interval(values: Seconds) -> tuple[float, float]:
    """Ends of an interval that holds the median of what `values`, shape (n,), are drawn from, with
    at least 95 % confidence whatever the distribution; infinite for fewer than six values, of which
    there is none. Sorted values number j and n - j + 1 miss it with probability
    2 P(B < j), B binomial of n and 1/2 (David and Nagaraja, Order Statistics, 7.1)."""
    place = _place(len(values))
    if place < 0:
        return -inf, inf
    ordered = np.sort(values)
    return float(ordered[place]), float(ordered[-1 - place])


@lru_cache(maxsize=1024)
def _place(count: int) -> int:
    """How many of the sorted values lie below the interval; -1 if there is no interval."""
    below, place = 0.0, -1
    while True:
        below += comb(count, place + 1) / 2**count
        if 2 * below > 1 - CONFIDENCE:
            return place
        place += 1
