"""Execution of the flows of workloads, one after the other or in threads.

A flow is a generator that executes the steps of one workload. It yields between rounds, and it can
be stopped there.
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
"""Generator that executes the steps of one workload. Between rounds it yields None or, if workloads
share their trials, a request for the next round (`tuning.task_scheduler`)."""


class Stopped(TilewrightError):
    """A workload was stopped because another workload failed or the user stopped the run."""

    def __init__(self) -> None:
        super().__init__("stopped; repeat the command to resume")


def run_in_threads(flows: Sequence[Flow[R]], at_a_time: int) -> list[R]:
    """Run flows in threads, and return their results in order.

    After an error, no further flow starts, and running flows stop after their current round.

    Args:
        flows: flows of workloads that do not share trials.
        at_a_time: number of threads.

    Raises:
        Exception: the first exception of a flow.
    """
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
    """Run the flow of one workload to its end and return its result.

    Args:
        flow: generator of the workload's steps, which yields after each round.
        stop: event that stops the flow after its current round.

    Raises:
        Stopped: the event was set.
    """
    try:
        while stop is None or not stop.is_set():
            next(flow)
        flow.throw(Stopped())
    except StopIteration as end:
        return cast(R, end.value)
    raise Stopped
