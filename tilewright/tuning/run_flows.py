"""Runs the flows of workloads to their ends, in order or in threads.

A flow is a generator of the steps of one workload. Between rounds it yields, and may be stopped
there.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar, cast

from tilewright.core.errors import TilewrightError
from tilewright.search import TrialRequest

R = TypeVar("R")

Flow = Generator[TrialRequest | None, None, R]
"""The steps of a workload. It yields None between rounds. Where workloads share their trials, it
yields a request before each round (`tuning.task_scheduler`)."""


class Stopped(TilewrightError):
    """A workload that was given up since another one failed, or a person stopped the run."""

    def __init__(self) -> None:
        super().__init__("stopped; the same command resumes from here")


def run_in_threads(flows: Sequence[Flow[R]], at_a_time: int) -> list[R]:
    """Run flows that have their own trials, some at a time in threads, and return their results in
    order. After an error no other flow begins, and those at work end after their round. Raises the
    first error."""
    stop = threading.Event()
    pool = ThreadPoolExecutor(at_a_time)
    try:
        futures = [pool.submit(copy_context().run, run_to_end, flow, stop) for flow in flows]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future.done() and (error := future.exception()) is not None:
                raise error
        return [future.result() for future in futures]
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def run_to_end(flow: Flow[R], stop: threading.Event | None = None) -> R:
    """Run a flow, and return its result. It ends after its round once `stop` is set."""
    try:
        while stop is None or not stop.is_set():
            next(flow)
        flow.throw(Stopped())
    except StopIteration as end:
        return cast(R, end.value)
    raise Stopped
