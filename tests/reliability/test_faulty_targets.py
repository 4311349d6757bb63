"""Checks that a crash, hang or wrong answer of a target costs only the config that caused it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.child_process import Limits, RpcDied, RpcProcess, RpcTimeout
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import TrialStore
from tilewright.targets.fault_injection import Fault, FaultyTarget
from tilewright.targets.subprocess_target import IsolatedTarget, TargetDown
from tilewright.targets.workload import parse_workload

WORK = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
FACTORY = "tilewright.targets.fault_injection:make_target"
LIMIT_SECONDS = 1.5
FAULTS: dict[int, Fault] = {
    3: "crash", 7: "exit", 10: "raise", 14: "hang", 18: "late", 21: "nonsense", 26: "liar",
    30: "short", 33: "crash_lowering", 37: "hang_lowering",
}  # fmt: skip
TYPED = {
    3: "run_error", 7: "run_error", 10: "run_error", 14: "timeout", 18: "timeout",
    21: "wrong_result", 26: "wrong_result", 30: "wrong_result", 33: "compile_error",
    37: "compile_error",
}  # fmt: skip


def _isolated(faults: dict[int, Fault], late_seconds: float = 20.0) -> IsolatedTarget:
    arguments = {"faults": {str(k): v for k, v in faults.items()}, "late_seconds": late_seconds}
    return IsolatedTarget(FACTORY, arguments, Limits(LIMIT_SECONDS))


@pytest.fixture
def isolated() -> Iterator[IsolatedTarget]:
    target = _isolated(FAULTS)
    yield target
    target.close()


def test_isolation_alone_changes_no_answer() -> None:
    plain, isolated = FaultyTarget({}), _isolated({})
    space = isolated.space(WORK)
    assert space == plain.space(WORK)
    configs = space.unravel(np.arange(space.size))
    ours, theirs = isolated.lower(WORK, configs), plain.lower(WORK, configs)
    assert ours.failures.tolist() == theirs.failures.tolist()
    np.testing.assert_array_equal(ours.hidden.matrix, theirs.hidden.matrix)
    measured, expected = isolated.measure(ours), plain.measure(theirs)
    assert measured.status.tolist() == expected.status.tolist()
    np.testing.assert_array_equal(measured.cycles, expected.cycles)
    np.testing.assert_array_equal(measured.seconds, expected.seconds)
    assert isolated.processes == 1
    isolated.close()


@pytest.mark.alone
@pytest.mark.slow(seconds=6)
def test_every_fault_is_typed_and_every_other_config_is_measured(isolated: IsolatedTarget) -> None:
    space = isolated.space(WORK)
    flat = np.arange(40)
    configs = space.unravel(flat)
    measured = isolated.measure(isolated.lower(WORK, configs))
    honest = FaultyTarget({}).measure(FaultyTarget({}).lower(WORK, configs))
    for index in flat.tolist():
        if index in TYPED:
            assert (index, measured.status[index]) == (index, TYPED[index])
            assert measured.reason[index]
            assert measured.cycles[index] == -1
        else:
            assert measured.status[index] == honest.status[index]
            assert measured.cycles[index] == honest.cycles[index]


@pytest.mark.alone
@pytest.mark.slow(seconds=3)
def test_a_tuning_session_outlives_every_fault(tmp_path: Path) -> None:
    space = FaultyTarget({}).space(WORK)
    kinds: list[Fault] = ["crash", "hang", "nonsense", "raise"]
    faults = {index: kinds[index // 9 % 4] for index in range(0, space.size, 9)}
    target = _isolated(faults)
    with TrialStore(tmp_path / "trials.sqlite") as store:
        explorer = make_explorer("random", {})
        rounds = list(tune(target, WORK, explorer, trials=48, batch=8, seed=1, store=store))
        frame = store.frame()
    target.close()
    assert sum(len(done.measured) for done in rounds) == len(frame) == 48
    assert {"run_error", "timeout", "wrong_result", "valid"} <= set(frame["status"])
    best = rounds[-1].best_config
    assert best is not None
    assert int(space.ravel(best[None])[0]) not in faults


@pytest.mark.alone
@pytest.mark.slow(seconds=4)
def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    target = _isolated({5: "late"}, late_seconds=LIMIT_SECONDS + 0.3)
    space = target.space(WORK)
    measured = target.measure(target.lower(WORK, space.unravel(np.array([5]))))
    assert measured.status.tolist() == ["timeout"]
    time.sleep(0.5)
    other = target.measure(target.lower(WORK, space.unravel(np.array([6]))))
    honest = FaultyTarget({})
    expected = honest.measure(honest.lower(WORK, space.unravel(np.array([6]))))
    assert other.cycles.tolist() == expected.cycles.tolist()
    target.close()


def test_a_target_that_cannot_be_built_is_one_clear_error() -> None:
    with pytest.raises(
        TargetDown, match=r"targets\.nowhere:make.* exit status 1.*without a separate process"
    ):
        IsolatedTarget("targets.nowhere:make")


def test_a_process_that_needs_too_much_memory_dies_alone() -> None:
    process = RpcProcess("tests.reliability.hungry", [], Limits(60.0, memory_bytes=1 << 30))
    reply, _ = process.call({"megabytes": 10})
    assert reply == {"bytes": 10 << 20}
    reply, _ = process.call({"megabytes": 4000})
    assert reply["error"] == "MemoryError"
    process.stop()


def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "from tilewright.core.child_process import RpcProcess, Limits\n"
        "process = RpcProcess('tests.reliability.hungry', [], Limits(60.0))\n"
        "process.call({'megabytes': 1})\n"
        "print(process._process.pid, flush=True)\n"
        "process.call({'spin': True})\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        assert _alive(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 120
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


@pytest.mark.alone
def test_a_call_without_an_answer_ends_in_time_and_the_next_one_is_answered() -> None:
    process = RpcProcess("tests.reliability.hungry", [], Limits(20.0))
    process.call({"megabytes": 1})
    with pytest.raises(RpcTimeout):
        process.call({"spin": True}, seconds=0.3)
    assert process.call({"megabytes": 1})[0] == {"bytes": 1 << 20}
    with pytest.raises(RpcDied, match="SIGKILL"):
        process.call({"kill": True})
    assert process.call({"megabytes": 1})[0] == {"bytes": 1 << 20}
    assert process.starts == 3
    process.stop()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
