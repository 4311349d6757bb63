"""Computes a kernel's time from repeated runs and decides when there are enough runs.

A repeat is a number of calls that are timed together. A repeat is undisturbed if the operating
system did not preempt any thread during it. Only undisturbed repeats are used if there are enough
of them.

Repeats of a fixed reference kernel alternate with repeats of the timed kernel, and take about as
long. Influences that slow down both kernels by the same factor (another clock, another process on
the memory bus, a hypervisor) cancel out:

    seconds = repeat / median of the reference's repeats × the reference's time on a quiet machine

The kernel's time is the median of these values. Timing stops when a 95 % confidence interval of the
median, which holds for any distribution, is narrow enough. If the kernel or the reference has too
few undisturbed repeats, the fastest quarter of all repeats of both is used instead, because these
repeats were disturbed least.
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
"""Confidence level of the interval that is reported for the median."""
MOST = 2.0
"""Maximum slowdown of the reference kernel for which timings are corrected. A larger slowdown means
that the reference itself was disturbed; see `TimingRecord.corrected`."""
LONGEST = 0.002
"""Maximum duration in seconds of one repeat of the reference kernel. It holds even if a repeat of
the measured kernel takes longer."""
LARGE = 1 << 18
"""Minimum size in bytes of weights that are read from memory while a kernel is timed. With smaller
weights, a kernel takes as long as with weights in the cache
(docs/decisions/measuring-on-a-cpu.md)."""


@dataclass(frozen=True)
class Timing:
    """Parameters of timing; docs/decisions/measuring-on-a-cpu.md explains their values.

    Attributes:
        warm_up: seconds that a kernel runs before it is timed.
        repeat: seconds per repeat. A repeat consists of as many calls as fit, at least one.
        turn: number of consecutive repeats of the kernel between repeats of the reference.
        width: width of the confidence interval, as a fraction of the median, at which timing stops.
        cap: seconds after which timing stops in any case, if there are enough undisturbed repeats.
        least: smallest sufficient number of undisturbed repeats.
        patience: seconds after which timing stops if there are too few undisturbed repeats.
        flush_bytes: number of bytes that are read before each call to flush the caches; 0 leaves
            the caches warm.
        stream_bytes: total bytes of copies of the weights. Calls cycle through the copies, so that
            weights of at least `LARGE` bytes are read from memory, as in a network. With 0, all
            calls share the same weights.
        tolerance: largest allowed error of an output value, as a fraction of the reference's
            largest value.
        hang: time limit in seconds for a call of the child process that runs a config.
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
    """Timed repeats of the kernel or of the reference kernel. A repeat is a number of calls.

    Attributes:
        seconds: seconds per call, shape (n,).
        quiet: whether the repeat was undisturbed, boolean array of shape (n,).
    """

    seconds: Seconds
    quiet: NDArray[np.bool_]

    @staticmethod
    def concatenate(parts: Sequence[Repeats]) -> Repeats:
        """Concatenate several sets of repeats."""
        return Repeats(
            np.concatenate([part.seconds for part in parts]),
            np.concatenate([part.quiet for part in parts]),
        )

    def choose_repeats(self, undisturbed: bool) -> Seconds:
        """Return the repeats from which a kernel's time is computed, in seconds per call.

        Args:
            undisturbed: return only the undisturbed repeats, if there are any. Otherwise return the
                fastest quarter of all repeats.

        Returns:
            Seconds per call, shape (undisturbed repeats,) or (ceil(n / 4),).
        """
        if undisturbed and self.quiet.any():
            return self.seconds[self.quiet]
        return np.sort(self.seconds)[: -(-len(self.seconds) // 4)]


Run = Callable[[int, int], Repeats]
"""Function that runs and times a kernel. Its arguments are the number of repeats and the number of
calls per repeat."""


@dataclass
class TimingRecord:
    """Repeats of one kernel and of the reference kernel that were timed so far.

    The two kernels alternate: each turn of the timed kernel lies between two turns of the
    reference.

    Attributes:
        timing: parameters of timing.
        kernel: repeats of the timed kernel, one item per turn.
        reference: repeats of the reference kernel, one item per turn.
    """

    timing: Timing
    kernel: list[Repeats] = field(default_factory=list)
    reference: list[Repeats] = field(default_factory=list)

    def is_undisturbed(self) -> bool:
        """Return whether both the kernel and the reference have enough undisturbed repeats."""
        counts = (
            sum(int(turn.quiet.sum()) for turn in turns) for turns in (self.kernel, self.reference)
        )
        return min(counts) >= self.timing.least

    def corrected_seconds(self, quiet_reference: float) -> Seconds:
        """Return the seconds per call that the kernel would take on a quiet machine, shape (n,).

        The kernel's repeats are divided by the slowdown of the reference kernel. The slowdown is
        the median of the reference's repeats over all turns, relative to `quiet_reference`; ratios
        of single turns would add their noise. A slowdown above `MOST` is limited to `MOST`, because
        such a reference was disturbed itself.

        Args:
            quiet_reference: seconds per call of the reference kernel on a quiet machine.
        """
        undisturbed = self.is_undisturbed()
        reference_seconds = Repeats.concatenate(self.reference).choose_repeats(undisturbed)
        slowdown = min(float(np.median(reference_seconds)) / quiet_reference, MOST)
        return Repeats.concatenate(self.kernel).choose_repeats(undisturbed) / slowdown

    def fastest(self) -> float:
        """Return the seconds of the fastest call so far."""
        return float(min(repeats.seconds.min() for repeats in self.kernel))


def time_kernel(
    kernel: Run, reference: Run, once: float, quiet_reference: float, timing: Timing
) -> Seconds:
    """Time a kernel until the confidence interval of its median is narrow enough, or time is up.

    Args:
        kernel: runs and times the kernel.
        reference: runs and times the reference kernel.
        once: approximate seconds of one call of the kernel.
        quiet_reference: seconds per call of the reference kernel on a quiet machine.
        timing: parameters of timing.

    Returns:
        Seconds per call of each repeat, corrected for the machine's slowdown, shape (n,).
    """
    record, began = TimingRecord(timing), time.perf_counter()
    while True:
        calls = max(1, round(timing.repeat / once))
        reference_calls = max(1, round(min(calls * once, LONGEST) / quiet_reference))
        # A slow kernel gets fewer repeats per turn, so that a turn takes at most a quarter of
        # `cap`.
        turn = max(1, min(timing.turn, int(timing.cap / once / 4)))
        if not record.reference:
            record.reference.append(reference(turn, reference_calls))
        record.kernel.append(kernel(turn, calls))
        record.reference.append(reference(turn, reference_calls))
        # The first estimate may include warming up.
        once = min(once, record.fastest())
        corrected = record.corrected_seconds(quiet_reference)
        if _is_done(corrected, record.is_undisturbed(), time.perf_counter() - began, timing):
            return corrected


def _is_done(seconds: Seconds, undisturbed: bool, elapsed: float, timing: Timing) -> bool:
    if not undisturbed:
        return elapsed >= timing.patience
    low, high = median_interval(seconds)
    return bool(high - low <= timing.width * np.median(seconds)) or elapsed >= timing.cap


def median_interval(values: Seconds) -> tuple[float, float]:
    """Return a confidence interval of the median of a distribution.

    For n sorted samples of any distribution, the interval from sample j to sample n - j + 1 misses
    the median with probability 2 P(B < j), where B is binomial with n trials and probability 1/2
    (David and Nagaraja, Order Statistics, 7.1).

    Args:
        values: samples of the distribution, shape (n,).

    Returns:
        Lower and upper end of the interval, which contains the median with a probability of at
        least `CONFIDENCE`. With fewer than six values there is no such interval, and the ends are
        infinite.
    """
    below = _values_below(len(values))
    if below < 0:
        return -inf, inf
    ordered = np.sort(values)
    return float(ordered[below]), float(ordered[-1 - below])


@lru_cache(maxsize=1024)
def _values_below(count: int) -> int:
    """Return how many sorted values lie below the confidence interval of their median.

    Args:
        count: number of values.

    Returns:
        The number; -1 if there are too few values for an interval.
    """
    probability, index = 0.0, -1
    while True:
        probability += comb(count, index + 1) / 2**count
        if 2 * probability > 1 - CONFIDENCE:
            return index
        index += 1
