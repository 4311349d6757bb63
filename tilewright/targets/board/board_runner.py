"""Runs programs on a board, with a C runtime that is built once against the board's driver.

Each program runs in its own process with a time limit, and no two programs run at the same time.
After a program fails, the board is reset.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays
from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, write_atomically
from tilewright.targets.base import Ragged, Status
from tilewright.targets.board import EXPECTED, INPUT
from tilewright.targets.vta.board.runtime import FILES, copy_runtime, sources_digest
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.worker import write_programs

PROGRAM, OUTPUT = "tilewright_run", "output.bin"
MOST_SECONDS = 600.0
"""Timeout in seconds for building the runtime and for resetting the board."""
_TIMED_OUT, _FAILED = 3, 1  # exit codes of measure.c: timed out, failed


def machine_named(text: str) -> VtaSpec:
    """Read the specification of the VTA machine in a bitstream.

    Args:
        text: name of a preset, or path of a `vta_config.json`.

    Raises:
        SpecError: the machine is unknown or cannot be read.
    """
    return VtaSpec.load(text)


class BoardDown(TilewrightError):
    """Raised if the board cannot be used: its runtime does not build, or it cannot be reset."""


@dataclass(frozen=True)
class BenchOptions:
    """A board, and the options for measuring on it.

    Attributes:
        spec: the machine in the board's bitstream.
        driver: object files, archives and shared objects that define the functions of the stock
            driver, separated by spaces.
        reset: command that programs the FPGA.
        repeats: number of repetitions per program.
        seconds: time limit for one program with all its repetitions.
        patience: number of times that the driver polls the device before it gives up.
        cflags: flags of the C compiler.
    """

    spec: VtaSpec
    driver: str
    reset: str
    repeats: int = 3
    seconds: float = 10.0
    patience: int = 1 << 31
    cflags: str = ""


@dataclass
class Counts:
    """Counters of a board since its worker started.

    Attributes:
        programs: number of programs that were run.
        wrong: number of programs with wrong output.
        time_outs: number of programs that exceeded the time limit.
        failures: number of programs that failed for another reason.
        resets: number of resets of the board after a program.
    """

    programs: int = 0
    wrong: int = 0
    time_outs: int = 0
    failures: int = 0
    resets: int = 0


@dataclass(frozen=True)
class Ran:
    """Result of running one program on a board.

    Attributes:
        status: the outcome, one of `targets.base.STATUSES`.
        reason: explanation if the status is not `valid`.
        seconds: seconds of each repetition.
        cycles: cycles of each repetition; 0 if the driver does not count cycles.
        wrong: number of wrong bytes in the output; -1 if there is no output.
        resets: number of resets of the board after the program, 0 or 1.
    """

    status: Status
    reason: str = ""
    seconds: Sequence[float] = ()
    cycles: Sequence[int] = ()
    wrong: int = -1
    resets: int = 0


def write_runtime(folder: Path, spec: VtaSpec) -> str:
    """Write the C sources of the runtime for a machine into a folder.

    Args:
        folder: destination, which is created if it does not exist.
        spec: the machine.

    Returns:
        Digest of the sources of the runtime.

    Raises:
        OSError: the files cannot be written.
    """
    copy_runtime(folder, spec)
    return sources_digest()


@dataclass
class BoardBench:
    """A board that is ready for measurements, with a folder for its files.

    Creating it builds the runtime and resets the board.

    Attributes:
        options: the board, and the options for measuring on it.
        folder: folder for the runtime and for the files of programs.
        counts: counters of the programs and resets so far.

    Raises:
        BoardDown: the runtime does not build, or the board cannot be reset.
    """

    options: BenchOptions
    folder: Path
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._closed = False
        self._build()
        self.reset()

    def describe(self) -> dict[str, Json]:
        """Return the machine and everything else that can change a measurement, as JSON.

        The key `bench` holds a digest of the driver, the measuring program and its options.
        """
        spec: dict[str, Json] = self.options.spec.model_dump(by_alias=True, exclude={"source"})
        return {"spec": spec, "bench": self._digest, "repeats": self.options.repeats}

    def status(self) -> dict[str, Json]:
        """Return the name of the machine and the counts of its programs so far, as JSON."""
        return {"machine": self.options.spec.name, **vars(self.counts)}

    def measure(self, rows: Sequence[Mapping[str, str]], blobs: Arrays) -> dict[str, NDArray[Any]]:
        """Run programs one after the other, and compare their outputs with the expected outputs.

        Args:
            rows: one mapping per program, from file name to the digest of the file's content.
            blobs: content of the files, as uint8 arrays, by digest.

        Returns:
            Arrays of shape (programs,), in the format that
            `targets.remote_target.checked_measurements` reads.

        Raises:
            BoardDown: the board cannot be used any more.
            KeyError: a file is missing.
        """
        with self._one_at_a_time:
            done = [self._run(row, blobs) for row in rows]
        return self._result_arrays(done)

    def close(self) -> None:
        """End the running program, and make later calls of `measure` fail."""
        self._closed = True
        if self._running is not None:
            _kill(self._running)
        with self._one_at_a_time:
            pass

    def reset(self) -> None:
        """Reset the board by programming its FPGA again.

        Raises:
            BoardDown: the command that programs the FPGA fails.
        """
        try:
            subprocess.run(
                shlex.split(self.options.reset), check=True, capture_output=True, text=True,
                timeout=MOST_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            messages = str(getattr(error, "stderr", "") or "").strip().splitlines()
            raise BoardDown(
                f"the board cannot be reset, because '{self.options.reset}' failed "
                f"({error}){': ' + messages[-1] if messages else ''}; repair the board, and "
                "start the worker again"
            ) from None

    def _build(self) -> None:
        copy_runtime(self.folder, self.options.spec)
        source = (resources.files("tilewright.targets.board") / "measure.c").read_bytes()
        write_atomically(self.folder / "main.c", source, sync=False)
        wanted = [
            "make", "-C", str(self.folder), PROGRAM, f"DRIVER={self.options.driver}",
            f"CFLAGS={self.options.cflags}", "LDFLAGS=-Wl,--wrap=VTADeviceRun",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                wanted, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise BoardDown(f"building the runtime failed: {error}; install make and cc") from None
        if done.returncode:
            message = done.stderr.strip() or done.stdout.strip()
            raise BoardDown(
                f"building the runtime with --driver '{self.options.driver}' failed: {message}"
            )
        about = [self.options.cflags, str(self.options.repeats)]
        content = hashlib.sha256("\0".join(about).encode() + source)
        for part in shlex.split(self.options.driver):
            if Path(part).is_file():
                content.update(Path(part).read_bytes())
        self._digest = content.hexdigest()[:16]

    def _run(self, row: Mapping[str, str], blobs: Arrays) -> Ran:
        self.counts.programs += 1
        for name in (*FILES, INPUT):
            data = np.asarray(blobs[row[name]], np.uint8).tobytes()
            write_atomically(self.folder / "art" / name, data, sync=False)
        expected = np.asarray(blobs[row[EXPECTED]], np.uint8)
        output = self.folder / OUTPUT
        output.unlink(missing_ok=True)
        command = [
            str(self.folder / PROGRAM), str(self.folder / "art"), str(self.folder / "art" / INPUT),
            str(output), str(self.options.repeats), str(self.options.patience),
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            self._running = process
            if self._closed:
                _kill(process)
            try:
                printed, error_output = process.communicate(timeout=self.options.seconds)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.communicate()
                return self._count_broken(
                    "timeout", f"not finished within {self.options.seconds:g} s"
                )
            finally:
                self._running = None
        if self._closed:
            raise BoardDown("the worker of the board was stopped")
        cause = (error_output.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        if process.returncode == _TIMED_OUT:
            return self._count_broken("timeout", cause)
        if process.returncode < 0 or process.returncode == _FAILED:
            return self._count_broken("run_error", cause)
        if process.returncode:
            self.counts.failures += 1
            return Ran("run_error", f"run: {cause}")
        return self._compare_output(printed, output, expected)

    def _compare_output(self, printed: str, output: Path, expected: NDArray[np.uint8]) -> Ran:
        got = np.frombuffer(output.read_bytes(), np.uint8)
        if got.shape != expected.shape:
            wrong = max(got.size, expected.size)
        else:
            wrong = int((got != expected).sum())
        if wrong:
            return self._count_broken(
                "wrong_result", f"{wrong} bytes of the output are wrong", wrong
            )
        pairs = [tuple(map(int, line.split())) for line in printed.splitlines()]
        return Ran("valid", "", [n / 1e9 for n, _ in pairs], [c for _, c in pairs], 0)

    def _count_broken(self, status: Status, cause: str, wrong: int = -1) -> Ran:
        """Count a failed program, reset the board, and return the result of the program.

        Without the reset, dependency tokens that the program left in the hardware's queues would
        make the next program fail.

        Args:
            status: status of the program.
            cause: reason of the failure.
            wrong: number of wrong bytes in the output; -1 if there is no output.
        """
        self.counts.time_outs += status == "timeout"
        self.counts.wrong += status == "wrong_result"
        self.counts.failures += status == "run_error"
        self.reset()
        self.counts.resets += 1
        return Ran(status, f"run: {cause}; the board was reset", wrong=wrong, resets=1)

    def _result_arrays(self, done: Sequence[Ran]) -> dict[str, NDArray[Any]]:
        hertz = self.options.spec.clock_mhz * 1e6
        cycles = np.full(len(done), -1, np.int64)
        seconds = np.full(len(done), np.nan)
        repeats = []
        for at, ran in enumerate(done):
            every = np.array(ran.seconds, np.float64)
            if ran.status == "valid" and min(ran.cycles) > 0:
                cycles[at] = int(np.median(ran.cycles))
                every = np.array(ran.cycles) / hertz
                seconds[at] = cycles[at] / hertz
            elif ran.status == "valid":
                seconds[at] = float(np.median(every))
            repeats.append(every)
        return {
            "status": np.array([ran.status for ran in done]),
            "reason": np.array([ran.reason for ran in done]),
            "cycles": cycles,
            "seconds": seconds,
            "counter_resets": np.array([ran.resets for ran in done], np.int64),
            "counter_wrong": np.array([ran.wrong for ran in done], np.int64),
            **write_programs({"repeats": Ragged.from_rows(repeats)}),
        }


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process and all processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
