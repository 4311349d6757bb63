"""Tests the process beside a board, which runs the C runtime with a time limit and resets."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.boards import SimulatedBoard, compiled_driver
from tests.cluster.clusters import ROOT
from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.board.board_runner import BenchOptions, BoardBench, BoardDown, Counts
from tilewright.targets.board.single_layer_programs import loadable
from tilewright.targets.board.target import BoardTarget
from tilewright.targets.capabilities import picojoules_of
from tilewright.targets.remote_target import checked_measurements
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload

PYNQ = VtaSpec.load("vta-pynq")
CLIPS = ">> 8, min 127, max -128"
EPILOGUE = f"bias, {CLIPS}"
DENSE = parse_workload("dense:n=1,c=48,o=32", EPILOGUE)
WORKLOADS = {
    "dense": DENSE,
    "rows": parse_workload("dense:n=5,c=40,o=20", EPILOGUE),
    "conv": parse_workload("conv2d:c=20,h=6,w=7,o=35,k=3,p=1", EPILOGUE),
    "residual": parse_workload("conv2d:c=16,h=5,w=5,o=16,k=1", "bias, residual 2, >> 7, min 127"),
    "by channel": parse_workload("conv2d:c=16,h=4,w=4,o=32,k=1", "bias, >> channel 6, min 127"),
    "groups": parse_workload("conv2d:c=32,h=5,w=5,o=32,k=3,p=1,g=32", EPILOGUE),
    "pool": parse_workload("max_pool:c=16,h=6,w=6,k=2,s=2", "max -128"),
    "average": parse_workload(
        "conv2d:c=16,h=5,w=5,o=32,k=1,avg=5", f"bias, residual 2, >> 7, min 127 | + 64, {CLIPS}"
    ),
    "shortcut and average": parse_workload(
        "conv2d:c=16,h=5,w=5,o=32,k=1,xc=32,xi=5,avg=5", f"{EPILOGUE} | {EPILOGUE} | + 64, {CLIPS}"
    ),
}

One = tuple[SimulatedBoard, BoardBench]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_driver(tmp_path_factory.mktemp("driver") / "made")


@pytest.fixture(scope="module")
def one(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[One]:
    """Yield a simulated board with a built runtime, which is built only once."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "bench").mkdir()
    with (
        SimulatedBoard(folder / "board", PYNQ) as board,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in board.environment.items():
            environment.setenv(name, value)
        options = BenchOptions(PYNQ, str(driver), board.reset_command, 2, 1.0)
        yield board, BoardBench(options, folder / "bench")


@pytest.fixture
def board(one: One) -> SimulatedBoard:
    one[0].streams = 0
    return one[0]


@pytest.fixture
def bench(one: One) -> BoardBench:
    one[1].counts = Counts()
    return one[1]


def _measured(bench: BoardBench, workload: Workload, count: int) -> tuple[Lowered, Measurements]:
    """Lower the first valid programs of a workload and measure them on the board."""
    target = VtaTarget(PYNQ)
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(0).integers(0, space.size, 40 * count))
    lowered = target.lower(workload, configs)
    rows = lowered.rows(np.flatnonzero(lowered.ok)[:count])
    result = loadable(target.lowering_of(rows), rows)
    assert result.reasons == [""] * len(rows)
    sent = [files for files in result.rows if files is not None]
    return rows, checked_measurements(len(rows), bench.measure(sent, result.blobs))


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_board_measures_what_the_simulator_does(bench: BoardBench, name: str) -> None:
    lowered, measured = _measured(bench, WORKLOADS[name], 2)
    assert measured.status.tolist() == ["valid"] * len(lowered), measured.reason
    simulated = VtaTarget(PYNQ).measure(lowered)
    # not equal: the address of a program decides which of its bursts cross a page
    np.testing.assert_allclose(measured.cycles, simulated.cycles, rtol=0.1)
    np.testing.assert_allclose(measured.seconds, measured.cycles / 100e6)
    assert measured.repeats is not None
    assert [len(measured.repeats[row]) for row in range(len(lowered))] == [2] * len(lowered)
    assert measured.counters["wrong"].tolist() == [0] * len(lowered)
    assert bench.counts.programs == len(lowered)
    board = BoardTarget(VtaTarget(PYNQ), "one", "127.0.0.1:1", "")
    assert picojoules_of(board, measured) is None, "it counts no instructions"


def test_each_fault_costs_its_program_and_is_reset(
    bench: BoardBench, board: SimulatedBoard
) -> None:
    """Every program runs twice. After a fault in its first run, the second run is skipped."""
    resets = board.resets
    board.faults.extend(["", "", "time-out", "", "", "wrong", "wrong", "hang"])
    _, measured = _measured(bench, DENSE, 6)
    assert measured.status.tolist() == [
        "valid", "timeout", "valid", "wrong_result", "timeout", "valid",
    ]  # fmt: skip
    assert "the device did not finish" in measured.reason[1]
    assert "bytes of the output are wrong" in measured.reason[3]
    assert "not finished within 1 s; the board was reset" in measured.reason[4]
    assert measured.counters["resets"].tolist() == [0, 1, 0, 1, 1, 0]
    assert (measured.counters["wrong"][3] > 0, board.resets - resets) == (True, 3)
    assert bench.counts == Counts(programs=6, wrong=1, time_outs=2, failures=0, resets=3)


def test_one_program_is_measured_at_a_time(bench: BoardBench, board: SimulatedBoard) -> None:
    threads = [threading.Thread(target=_measured, args=(bench, DENSE, 2)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (bench.counts.programs, bench.counts.wrong, board.streams) == (6, 0, 12)


@pytest.mark.slow(seconds=2)
def test_a_board_that_cannot_be_used(driver: Path, tmp_path: Path) -> None:
    for wanted, message in [
        (
            BenchOptions(PYNQ, str(driver), "false"),
            "the board cannot be reset, because 'false' failed",
        ),
        (BenchOptions(PYNQ, "/nowhere.o", "true"), "with --driver '/nowhere.o' failed"),
        (BenchOptions(PYNQ, "", "true"), "name the driver"),
    ]:
        with pytest.raises(BoardDown) as caught:
            BoardBench(wanted, tmp_path)
        assert message in str(caught.value)


def test_what_no_artifact_holds() -> None:
    board = BoardTarget(VtaTarget(PYNQ), "one", "127.0.0.1:1", "")
    with pytest.raises(WorkloadError, match="write 'residual N' in the epilogue"):
        board.space(parse_workload("dense:n=1,c=16,o=16", "add, >> 8"))


def test_beside_a_board_no_compiler_of_python_is_needed() -> None:
    program = (
        "import sys, tilewright.targets.board.board_worker\n"
        "import tilewright.targets.board.board_runner\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
