"""Checks the number of threads that measure a batch."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from tilewright.targets.gemmini.isa import CommandStream
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.target import GemminiTarget
from tilewright.targets.workload import parse_workload


class SlowChecker:
    """Checker that records the calling threads. It rejects every program, so none is timed."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def wrong_values(self, stream: CommandStream) -> int:
        self.threads.add(threading.get_ident())
        time.sleep(0.02)
        return len(stream.funct)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities here")
def test_a_process_on_one_core_measures_in_one_thread() -> None:
    target, checker = GemminiTarget(GemminiSpec.load("gemmini-default")), SlowChecker()
    target._checker = lambda workload, seed: checker  # type: ignore[assignment,return-value]
    workload = parse_workload("dense:n=16,c=16,o=16", "bias, >> even 8, min 127, max 0")
    lowered = target.lower(workload, np.zeros((6, len(target.space(workload).knobs)), np.int32))
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        measured = target.measure(lowered)
    finally:
        os.sched_setaffinity(0, cores)
    assert set(measured.status) == {"wrong_result"}
    assert len(checker.threads) == 1
