"""Allocation of a run's wall time to its workloads.

A workload whose time is over begins no further round. Rounds that the trial store already holds are
always read, so a run is as repeatable as without a limit: the time only decides how many rounds
there are.
"""

from __future__ import annotations

import threading
import time


class TimeLimit:
    """Wall time of a run, counted from the creation of this object.

    Args:
        seconds: time during which rounds may begin; None for no limit.
        workloads: number of workloads to tune.
        at_a_time: number of workloads that are tuned at the same time.
    """

    def __init__(self, seconds: float | None, workloads: int, at_a_time: int = 1) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._left, self._at_a_time = workloads, at_a_time
        self._lock = threading.Lock()

    def begin_workload(self, pooled: bool = False) -> float | None:
        """Return the time until which rounds of the next workload may begin.

        A workload gets an equal share of the remaining time, so that unused time goes to later
        workloads.

        Args:
            pooled: whether workloads share their trials. They then share all time too.

        Returns:
            Time in seconds of `time.monotonic`; None without a limit.
        """
        if self._end is None:
            return None
        with self._lock:
            turns = max(-(-self._left // self._at_a_time), 1)
            self._left -= 1
        now = time.monotonic()
        return self._end if pooled else now + max(self._end - now, 0.0) / turns


def is_over(until: float | None) -> bool:
    """Return whether a time of `TimeLimit.begin_workload` has passed."""
    return until is not None and time.monotonic() >= until
