"""When a kernel has been timed often enough, and what its repeats say: arithmetic alone.

A repeat during which the operating system took a core away from a thread says nothing of the kernel
and is set aside, as long as `least` others are left. Between the kernel's repeats a fixed reference
kernel runs, repeats as long as the kernel's. What slows both down alike (another clock, a neighbour
on the memory bus, a hypervisor) divides out:

    seconds = repeat / median of the reference's repeats nearby × what the reference takes in quiet

A kernel's time is the median of these. It is done when an interval that holds the true median with
95 % confidence, whatever the distribution, is narrow enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import comb, inf

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Timing:
    """How kernels are timed. The figures are choices of ours: docs/decisions/measuring-on-a-cpu.md.

    `warm_up` seconds a kernel runs before anything counts; a repeat is as many calls as take
    `repeat` seconds, at least one. `turn` repeats of the kernel follow as many of the reference.
    It ends when the interval is narrower than `width` of the median, or after `cap` seconds, but
    not before `least` repeats; a kernel of which so many take longer than `patience` seconds gets
    fewer. Before each call `flush_bytes` are read, so that caches are cold; 0 leaves them warm.
    Outputs may differ from the reference's by `tolerance` of its largest. A config that gives no
    answer within `hang` seconds is given up.
    """

    warm_up: float = 0.005
    repeat: float = 0.0005
    turn: int = 4
    width: float = 0.02
    cap: float = 0.6
    least: int = 6
    patience: float = 2.0
    flush_bytes: int = 0
    tolerance: float = 1e-4
    hang: float = 20.0


@dataclass(frozen=True)
class Repeats:
    """Of a kernel or the reference: seconds a call, shape (n,), and whether nobody disturbed them,
    shape (n,)."""

    seconds: Seconds
    quiet: NDArray[np.bool_]

    def usable(self, least: int) -> Seconds:
        """The undisturbed ones if there are `least`, shape (quiet,), else all, shape (n,)."""
        return self.seconds[self.quiet] if self.quiet.sum() >= least else self.seconds


Run = Callable[[int, int], Repeats]
"""Makes so many repeats of so many calls each."""


@dataclass
class Record:
    """What was timed so far of one kernel: turns of it between turns of the reference."""

    least: int
    kernel: list[Repeats] = field(default_factory=list)
    reference: list[Repeats] = field(default_factory=list)

    def corrected(self, quiet_reference: float) -> Seconds:
        """Seconds a call as on a quiet machine, whose reference takes `quiet_reference` seconds,
        shape (n,): the undisturbed repeats, or all where too few are."""
        scaled = [
            Repeats(each.seconds * (quiet_reference / self._level(turn)), each.quiet)
            for turn, each in enumerate(self.kernel)
        ]
        joined = Repeats(
            np.concatenate([each.seconds for each in scaled]),
            np.concatenate([each.quiet for each in scaled]),
        )
        return joined.usable(self.least)

    def _level(self, turn: int) -> float:
        """The reference's time around a turn of the kernel."""
        around = self.reference[turn : turn + 2]
        joined = Repeats(
            np.concatenate([each.seconds for each in around]),
            np.concatenate([each.quiet for each in around]),
        )
        return float(np.median(joined.usable(1)))


def time_kernel(
    kernel: Run, reference: Run, once: float, quiet_reference: float, timing: Timing
) -> Seconds:
    """Corrected seconds a call, shape (n,). `once` is about what a call takes, `quiet_reference`
    what one of the reference takes on a quiet machine, both in seconds."""
    calls = max(1, round(timing.repeat / once))
    beside = max(1, round(calls * once / quiet_reference))
    turn = max(1, min(timing.turn, int(timing.patience / once / 2)))
    record, spent = Record(timing.least), 0.0
    record.reference.append(reference(turn, beside))
    while True:
        record.kernel.append(kernel(turn, calls))
        record.reference.append(reference(turn, beside))
        spent += record.kernel[-1].seconds.sum() * calls
        spent += record.reference[-1].seconds.sum() * beside
        found = record.corrected(quiet_reference)
        low, high = median_interval(found)
        if high - low <= timing.width * np.median(found):
            return found
        enough = len(found) >= timing.least or spent >= timing.patience
        if spent >= timing.cap and enough:
            return found


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
