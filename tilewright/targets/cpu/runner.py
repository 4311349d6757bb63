"""Runs compiled kernels in a watched process: one that crashes or hangs costs itself alone."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Frame, Header, Limits, RpcFailed, RpcProcess
from tilewright.core.errors import SpecError, TilewrightError
from tilewright.core.files import Json, as_int, as_number
from tilewright.targets.base import Lowered, Measurements, Ragged, Space, Status
from tilewright.targets.cpu.spec import CpuSpec, this_machine
from tilewright.targets.cpu.timing import Timing
from tilewright.targets.remote_target import STATUS_OF

START_SECONDS = 120.0
"""For a process to load TVM, compile the reference kernel, and compute a workload's result."""


class RunnerDown(TilewrightError):
    """The process that runs kernels does not start."""


class Runner:
    """A process that runs the kernels of one specification, one a call; a fresh one after each that
    was lost. Threads take turns."""

    def __init__(self, spec: CpuSpec, timing: Timing) -> None:
        self.spec, self.timing = spec, timing
        recipe = json.dumps({"spec": spec.to_json(), "timing": asdict(timing)})
        self._process = RpcProcess(
            "tilewright.targets.cpu.run_worker", [recipe], Limits(timing.hang)
        )
        self._turn = threading.RLock()
        self._reference = 0.0
        self._ready: tuple[int, str, int] | None = None

    @property
    def processes(self) -> int:
        """How many have been used so far."""
        return self._process.starts

    def measure(self, lowered: Lowered, space: Space) -> Measurements:
        """Every compiled row, with nothing else of Tilewright's running on this machine. Raises
        `RunnerDown`, and `SpecError` where a thread would have no core."""
        self._check_cores()
        found = Measurements.nothing(len(lowered))
        found.reason[:] = lowered.reasons
        repeats: list[NDArray[np.float64]] = [np.empty(0)] * len(lowered)
        with self._turn, quiet_machine(alone=True):
            for row in np.flatnonzero(lowered.ok).tolist():
                status, reason, repeats[row] = self._measured(lowered, row, space)
                found.status[row], found.reason[row] = status, reason
                if status == "valid":
                    found.seconds[row] = np.median(repeats[row])
        return Measurements(
            found.status, found.reason, found.cycles, found.seconds, {},
            Ragged.of(repeats) if repeats else None,
        )  # fmt: skip

    def verify(self, lowered: Lowered, space: Space, seed: int) -> NDArray[np.int64]:
        """How many values are wrong, shape (configs,); -1 where a row has no program or it does not
        end well. Raises `RunnerDown`."""
        wrong = np.full(len(lowered), -1, np.int64)
        with self._turn:
            for row in np.flatnonzero(lowered.ok).tolist():
                try:
                    header, _ = self._asked("verify", lowered, row, space, seed)
                except RpcFailed:
                    continue
                wrong[row] = as_int(header.get("wrong", -1))
        return wrong

    def peak(self) -> float:
        """Floating-point operations a second. Raises as `measure`."""
        self._check_cores()
        with self._turn, quiet_machine(alone=True):
            return self._number({"call": "peak"})

    def bandwidth(self, size: int) -> float:
        """Bytes a second, read from a piece of `size` bytes. Raises as `measure`."""
        self._check_cores()
        with self._turn, quiet_machine(alone=True):
            return self._number({"call": "bandwidth", "bytes": size})

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._turn:
            self._process.stop()

    def _check_cores(self) -> None:
        own = this_machine().threads
        if self.spec.threads > own:
            raise SpecError(
                f"{self.spec.threads} threads cannot be timed on {own} "
                f"{'core' if own == 1 else 'cores'}; tune with --target cpu:threads={own}"
            )

    def _measured(
        self, lowered: Lowered, row: int, space: Space
    ) -> tuple[Status, str, NDArray[np.float64]]:
        nothing = np.empty(0)
        if not self._reference:
            self._reference = self._number({"call": "calibrate"})
        try:
            header, arrays = self._asked("measure", lowered, row, space, 0)
        except RpcFailed as error:
            return STATUS_OF[error.kind], f"run: {error}", nothing
        if "error" in header:
            return "run_error", f"run: {header['error']}: {header.get('message', '')}", nothing
        if header["status"] == "wrong_result":
            return "wrong_result", str(header["reason"]), nothing
        seconds = arrays.get("seconds", nothing)
        if not len(seconds) or not (np.isfinite(seconds) & (seconds > 0)).all():
            return "wrong_result", "run: the process answered with times that cannot be", nothing
        return "valid", "", seconds

    def _asked(self, call: str, lowered: Lowered, row: int, space: Space, seed: int) -> Frame:
        """Raises `RpcFailed`, or `RunnerDown` for what is no fault of this row."""
        about: Header = {"workload": lowered.workload.to_json(), "seed": seed}
        ready = (self._process.starts, lowered.workload.id, seed)
        if not self._process.running or self._ready != ready:
            self._must({"call": "prepare", **about})
            self._ready = (self._process.starts, lowered.workload.id, seed)
        values: Mapping[str, Json] = space.describe(lowered.configs[row])
        library: Arrays = {"library": lowered.programs["library"][row]}
        question = {"call": call, **about, "values": values, "reference": self._reference}
        return self._process.call(question, library)

    def _number(self, header: Header) -> float:
        return as_number(self._must(header)["value"])

    def _must(self, header: Header) -> Header:
        """A call that has to do with no config."""
        try:
            seconds = max(START_SECONDS, self.timing.hang)
            found = self._process.call(header, seconds=seconds)[0]
        except RpcFailed as error:
            found = {"message": str(error), "error": error.kind}
        if "error" in found:
            raise RunnerDown(
                f"the process that runs kernels cannot be used ({found.get('message')}); try it "
                "alone: python -c 'import tvm'"
            )
        return found


@contextmanager
def quiet_machine(*, alone: bool) -> Iterator[None]:
    """Timing has the machine `alone`; compiling shares it with compiling. Between all processes of
    this installation."""
    file = os.open(__file__, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
