"""Distribution of a run's time limit among its workloads.

A workload whose time is over begins no further round. Rounds that are already in the trial store
are always read. The limit therefore affects only the number of rounds, not their trials.
"""

from __future__ import annotations

import threading
import time


class TimeLimit:
    """Time limit of a run, which starts when this object is created.

    Args:
        seconds: time in seconds during which rounds may begin; None for no limit.
        workloads: number of workloads to tune.
        at_a_time: number of workloads that are tuned at the same time.
    """

    def __init__(self, seconds: float | None, workloads: int, at_a_time: int = 1) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._left, self._at_a_time = workloads, at_a_time
        self._lock = threading.Lock()

    def begin_workload(self, pooled: bool = False) -> float | None:
        """Return the time until which rounds of the next workload may begin.

        Each workload gets an equal share of the remaining time, so that time that one workload does
        not use goes to later workloads.

        Args:
            pooled: whether workloads share their trials. In this case, each workload may use all of
                the remaining time.

        Returns:
            Time on the clock `time.monotonic` in seconds; None if there is no limit.
        """
        if self._end is None:
            return None
        with self._lock:
            turns = max(-(-self._left // self._at_a_time), 1)
            self._left -= 1
        now = time.monotonic()
        return self._end if pooled else now + max(self._end - now, 0.0) / turns


def is_over(until: float | None) -> bool:
    """Return whether a time from `TimeLimit.begin_workload` has passed; False for None."""
    return until is not None and time.monotonic() >= until
