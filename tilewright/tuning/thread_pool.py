"""Several workloads at a time."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from tilewright.tuning.turns import Stopped

J = TypeVar("J")
R = TypeVar("R")


def each_of(
    tune: Callable[[J], R], jobs: Sequence[J], at_a_time: int, stop: Callable[[], None]
) -> list[R]:
    """What `tune` makes of each, in their order, or several at a time in threads that are given
    this context. After an error no other is begun, and `stop` is called, at which those under way
    have to end soon. Raises what `tune` raises, of several not what came of the `stop`."""
    if at_a_time == 1:
        return [tune(job) for job in jobs]
    with ThreadPoolExecutor(at_a_time) as pool:
        futures = [pool.submit(contextvars.copy_context().run, tune, job) for job in jobs]
        try:
            done = wait(futures, return_when=FIRST_EXCEPTION).done
            if errors := [error for future in done if (error := future.exception())]:
                raise min(errors, key=lambda error: isinstance(error, Stopped))
            return [future.result() for future in futures]
        except BaseException:
            stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
