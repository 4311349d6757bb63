"""Runs compiled kernels in a child process, so that a crash or a hang affects only one config."""

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
"""Timeout in seconds for a process to load TVM, to compile the reference kernel, and to compute the
reference result of a workload."""


class RunnerDown(TilewrightError):
    """Raised if the child process that runs kernels does not start."""


class Runner:
    """Client of the child process that runs the kernels of one specification, one kernel per call.

    If the process ends, the next call starts a new one. Threads that share a runner take turns.

    Args:
        spec: the processor that kernels are compiled for.
        timing: parameters of timing.
    """

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
        """Number of child processes that were started so far."""
        return self._process.starts

    def measure(self, lowered: Lowered, space: Space) -> Measurements:
        """Time every compiled config, with an exclusive lock on the machine.

        The lock keeps other processes of this installation from compiling or timing at the same
        time.

        Args:
            lowered: the compiled configs.
            space: the search space of the workload.

        Returns:
            Statuses, reasons and times in seconds, one per config.

        Raises:
            RunnerDown: the child process does not start.
            SpecError: the machine has fewer cores than the specification has threads.
        """
        self._check_cores()
        measurements = Measurements.unmeasured(len(lowered))
        measurements.reason[:] = lowered.reasons
        repeats: list[NDArray[np.float64]] = [np.empty(0)] * len(lowered)
        with self._turn, quiet_machine(alone=True):
            for row in np.flatnonzero(lowered.ok).tolist():
                status, reason, repeats[row] = self._measure_one(lowered, row, space)
                measurements.status[row], measurements.reason[row] = status, reason
                if status == "valid":
                    measurements.seconds[row] = np.median(repeats[row])
        return Measurements(
            measurements.status, measurements.reason, measurements.cycles, measurements.seconds, {},
            Ragged.from_rows(repeats) if repeats else None,
        )  # fmt: skip

    def verify(self, lowered: Lowered, space: Space, seed: int) -> NDArray[np.int64]:
        """Compare outputs of compiled configs with the reference result.

        Args:
            lowered: the compiled configs.
            space: the search space of the workload.
            seed: seed of the random inputs.

        Returns:
            Number of wrong values per config, int64 array of shape (configs,); -1 if the config was
            not compiled or its run failed.

        Raises:
            RunnerDown: the child process does not start.
        """
        wrong_values = np.full(len(lowered), -1, np.int64)
        with self._turn:
            for row in np.flatnonzero(lowered.ok).tolist():
                try:
                    header, _ = self._call_for("verify", lowered, row, space, seed)
                except RpcFailed:
                    continue
                wrong_values[row] = as_int(header.get("wrong", -1))
        return wrong_values

    def peak(self) -> float:
        """Measure the peak arithmetic rate in float32 operations per second.

        Raises:
            RunnerDown: the child process does not start.
            SpecError: the machine has fewer cores than the specification has threads.
        """
        self._check_cores()
        with self._turn, quiet_machine(alone=True):
            return self._number({"call": "peak"})

    def bandwidth(self, size: int) -> float:
        """Measure the bandwidth of repeated reads of an array, in bytes per second.

        Args:
            size: size of the array in bytes.

        Raises:
            RunnerDown: the child process does not start.
            SpecError: the machine has fewer cores than the specification has threads.
        """
        self._check_cores()
        with self._turn, quiet_machine(alone=True):
            return self._number({"call": "bandwidth", "bytes": size})

    def close(self) -> None:
        """Terminate the child process. A later call starts a new one."""
        with self._turn:
            self._process.stop()

    def _check_cores(self) -> None:
        cores = this_machine().threads
        if self.spec.threads > cores:
            raise SpecError(
                f"{self.spec.threads} threads cannot be timed on {cores} "
                f"{'core' if cores == 1 else 'cores'}; tune with --target cpu:threads={cores}"
            )

    def _measure_one(
        self, lowered: Lowered, row: int, space: Space
    ) -> tuple[Status, str, NDArray[np.float64]]:
        nothing = np.empty(0)
        if not self._reference:
            self._reference = self._number({"call": "calibrate"})
        try:
            header, arrays = self._call_for("measure", lowered, row, space, 0)
        except RpcFailed as error:
            return STATUS_OF[error.kind], f"run: {error}", nothing
        if "error" in header:
            return "run_error", f"run: {header['error']}: {header.get('message', '')}", nothing
        if header["status"] == "wrong_result":
            return "wrong_result", str(header["reason"]), nothing
        seconds = arrays.get("seconds", nothing)
        if not len(seconds) or not (np.isfinite(seconds) & (seconds > 0)).all():
            return "wrong_result", "run: the process returned invalid times", nothing
        return "valid", "", seconds

    def _call_for(self, call: str, lowered: Lowered, row: int, space: Space, seed: int) -> Frame:
        """Call the child process for one config, after it has prepared the workload's tensors.

        Args:
            call: name of the call.
            lowered: the compiled configs.
            row: index of the config.
            space: the search space of the workload.
            seed: seed of the random tensors.

        Returns:
            The reply of the child process.

        Raises:
            RpcFailed: the call for this config failed.
            RunnerDown: the child process does not start or cannot prepare the tensors.
        """
        tensors_request: Header = {"workload": lowered.workload.to_json(), "seed": seed}
        ready = (self._process.starts, lowered.workload.id, seed)
        if not self._process.is_running or self._ready != ready:
            self._call_or_raise({"call": "prepare", **tensors_request})
            self._ready = (self._process.starts, lowered.workload.id, seed)
        values: Mapping[str, Json] = space.describe(lowered.configs[row])
        library: Arrays = {"library": lowered.programs["library"][row]}
        question = {"call": call, **tensors_request, "values": values, "reference": self._reference}
        return self._process.call(question, library)

    def _number(self, header: Header) -> float:
        return as_number(self._call_or_raise(header)["value"])

    def _call_or_raise(self, header: Header) -> Header:
        """Make a call that does not depend on a config. Raise `RunnerDown` if it fails."""
        try:
            seconds = max(START_SECONDS, self.timing.hang)
            reply = self._process.call(header, seconds=seconds)[0]
        except RpcFailed as error:
            reply = {"message": str(error), "error": error.kind}
        if "error" in reply:
            raise RunnerDown(
                f"the process that runs kernels failed ({reply.get('message')}); try to "
                "import TVM alone: python -c 'import tvm'"
            )
        return reply


@contextmanager
def quiet_machine(*, alone: bool) -> Iterator[None]:
    """Hold a lock that keeps other processes of this installation from disturbing timings.

    Args:
        alone: acquire the lock exclusively, for timing. Otherwise acquire it in shared mode,
            together with other processes that compile.
    """
    # All processes of an installation share this source file, so that it serves as lock file.
    file = os.open(__file__, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
