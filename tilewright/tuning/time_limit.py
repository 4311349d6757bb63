"""Shares the wall time of a run among its workloads.

A workload that is over its time begins no further round. Rounds that the trial store already holds
are read again whatever the time is, so a run is as repeatable as without a limit: the time decides
how many rounds there are, and nothing else.
"""

from __future__ import annotations

import threading
import time


class TimeLimit:
    """Wall time of a run, which begins now.

    Args:
        seconds: how long rounds may begin; None for no limit.
        workloads: number of workloads that are going to be tuned.
        at_a_time: how many of them are tuned at the same time.
    """

    def __init__(self, seconds: float | None, workloads: int, at_a_time: int = 1) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._left, self._at_a_time = workloads, at_a_time
        self._lock = threading.Lock()

    def begin_workload(self, pooled: bool = False) -> float | None:
        """Return when the last round of the next workload may begin, by `time.monotonic`; None if
        there is no limit.

        A workload gets an equal share of the time that is left, so that time which one workload
        does not need goes to those after it. Workloads that share their trials (`pooled`) share all
        time, too.
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
