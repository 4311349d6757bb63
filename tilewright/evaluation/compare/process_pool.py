"""Starts the processes that share the runs of a comparison between the cores.

They are spawned, hear no Ctrl-C, and end with the command, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait

from tilewright.core.errors import TilewrightError
from tilewright.evaluation.compare.plan import ComparisonJob, ComparisonPlan
from tilewright.evaluation.compare.runs import TunerRun, run_job


class ComparisonError(TilewrightError):
    """A comparison that could not be finished."""


def run_jobs(
    plan: ComparisonPlan, jobs: Sequence[ComparisonJob], processes: int
) -> Iterator[TunerRun]:
    """The runs of `jobs`, in the order in which they finish; in this process if `processes` is 1.

    Raises `ComparisonError` if a process dies."""
    if processes <= 1 or len(jobs) <= 1:
        yield from (run_job(plan, job) for job in jobs)
        return
    pool = ProcessPoolExecutor(
        min(processes, len(jobs)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_enter,
        initargs=(plan,),
    )
    try:
        for done in as_completed([pool.submit(_run, job) for job in jobs]):
            yield done.result()
    except BrokenProcessPool:
        raise ComparisonError(
            "a process of this comparison died, perhaps for lack of memory; repeat the command "
            "with a smaller --jobs: finished runs are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


# -- inside the processes ----------------------------------------------------------------------

_plan: ComparisonPlan | None = None


def _enter(plan: ComparisonPlan) -> None:
    global _plan
    _plan = plan
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears Ctrl-C and ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(job: ComparisonJob) -> TunerRun:
    assert _plan is not None
    return run_job(_plan, job)
