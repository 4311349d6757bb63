"""Runs `tilewright …` in a new process that does not have to import the libraries again.

Half of the time of a short command is spent on importing libraries such as TVM, numba, pandas and
matplotlib. Here, Python's fork server imports them once, and every command is a fork of it with its
own environment, working folder, streams and signals. No module of this project that reads the
environment is imported beforehand. Prefect and MLflow read it too; they are loaded but hidden, and
read the environment again when a command imports them (`tests/preloaded.py`). Tests of start-up, of
the search for modules and settings, and of memory limits run the installed script instead.

Servers that a command starts here (`python -m services.…`) are forks of the command.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
TILEWRIGHT = Path(sys.executable).with_name("tilewright")

LIBRARIES = (
    "tilewright.targets",  # first: sets numba's cache folder, which numba reads once
    "numba", "pandas", "pyarrow.parquet", "scipy.stats", "scipy.optimize", "sklearn.preprocessing",
    "matplotlib.figure", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "tvm", "tvm.relax", "tvm.relax.frontend.onnx", "onnx", "onnxruntime", "xgboost", "lightgbm",
    "rich.console", "rich.table", "rich.progress", "typer", "pydantic", "pydantic_settings",
    "sqlalchemy.ext.asyncio", "aiosqlite", "alembic", "fastapi", "httpx", "anyio", "graphene",
    "flask", "jinja2", "docker", "cloudpickle", "pendulum", "opentelemetry.sdk.trace",
)  # fmt: skip


_of_the_slow_half = ["tests.preloaded"]


def expect_short_commands() -> None:
    """Do not load Prefect in advance, because few commands of the quick tests need it.

    Call this before the first command. It saves each worker some seconds.
    """
    _of_the_slow_half.clear()


@cache
def _server() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload([*LIBRARIES, *_of_the_slow_half])
    return context


@dataclass
class Started:
    """A command that runs in the background.

    It has the parts of the interface of `subprocess.Popen` that the tests use. Its streams are
    files.
    """

    args: list[str]
    _process: ForkServerProcess
    _streams: TemporaryDirectory[str]

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the command to end. Return its standard output and standard error.

        Raises:
            subprocess.TimeoutExpired: the command did not end in time.
        """
        self._process.join(timeout)
        out, err = (Path(self._streams.name, name).read_text() for name in ("out", "err"))
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, out)
        return out, err


def start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    module: str = "",
    program: str = "",
) -> Started:
    """Start the command with these arguments, `python -m module` or `python -c program`."""
    streams = TemporaryDirectory()
    for name in ("out", "err"):
        Path(streams.name, name).touch()
    given = (list(arguments), str(folder), dict(environment), streams.name, module, program)
    process = _server().Process(target=_command, args=given)
    process.start()
    return Started(list(arguments), process, streams)


def run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    *,
    module: str = "",
    program: str = "",
) -> subprocess.CompletedProcess[str]:
    """Start a command as `start` does, and wait for its end.

    Raises:
        subprocess.TimeoutExpired: the command did not end in time. It is killed.
    """
    started = start(arguments, folder, environment, module=module, program=program)
    try:
        out, err = started.communicate(timeout)
    except subprocess.TimeoutExpired:
        started.send_signal(signal.SIGKILL)
        started.communicate()
        raise
    assert started.returncode is not None
    return subprocess.CompletedProcess(arguments, started.returncode, out, err)


def _command(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    streams: str,
    module: str,
    program: str,
) -> None:
    """Do the work of the installed script in the forked process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin.close()
    for path, stream, flags in (
        (os.devnull, 0, os.O_RDONLY),
        (f"{streams}/out", 1, os.O_WRONLY | os.O_APPEND),
        (f"{streams}/err", 2, os.O_WRONLY | os.O_APPEND),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, stream)
        os.close(opened)
    _open_streams()
    subprocess._fork_exec = _forked_or_executed  # type: ignore[attr-defined]
    script = types.ModuleType("__main__")
    script.__file__ = str(TILEWRIGHT)
    sys.modules["__main__"] = script
    sys.argv = [str(TILEWRIGHT), *arguments]
    sys.path[:1] = [str(TILEWRIGHT.parent), str(ROOT)]  # this checkout, not the installed package
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif program:
        sys.argv[0] = "-c"
        exec(compile(program, "<string>", "exec"), script.__dict__)
    else:
        from tilewright.cli import command

        command()


# -- servers of a command ----------------------------------------------------------------------

SERVERS = ("tilewright.services.server_process", "tilewright.services.prefect_server")
_execute: Any = subprocess._fork_exec  # type: ignore[attr-defined]


def _forked_or_executed(
    arguments: list[str], programs: Any, close: bool, kept: Sequence[int], folder: str | None,
    environment: list[bytes] | None, *others: Any,
) -> int:  # fmt: skip
    """Start a process in place of the function that `subprocess.Popen` calls.

    A module of `SERVERS` runs in a fork of this process, unless this process has imported Prefect
    itself. Everything else is executed as a new program.
    """
    theirs = list(map(os.fsdecode, arguments[:3]))
    if theirs[:2] != [sys.executable, "-m"] or theirs[2] not in SERVERS or "prefect" in sys.modules:
        return int(_execute(arguments, programs, close, kept, folder, environment, *others))
    stdin, _, _, stdout, _, stderr, _, told, _, new_session = others[:10]
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        if new_session:
            os.setsid()
        os.chdir(folder or ".")
        if environment is not None:
            os.environb.clear()
            os.environb.update(item.split(b"=", 1) for item in environment)  # type: ignore[arg-type]
        for opened, stream in ((stdin, 0), (stdout, 1), (stderr, 2)):
            if opened != -1:
                os.dup2(opened, stream)
        wanted = set(kept) - {told}
        for opened in map(int, os.listdir("/proc/self/fd")):
            if opened > 2 and opened not in wanted:
                with suppress(OSError):
                    os.close(opened)
        for opened in wanted:
            os.set_inheritable(opened, True)
        status = _module(theirs[2], list(map(os.fsdecode, arguments[3:])))
    finally:
        os._exit(status)


def _module(name: str, arguments: list[str]) -> int:
    """Run `python -m name` in this process until its end."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    _open_streams()
    sys.argv = [name, *arguments]
    sys.modules.pop(name, None)
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return 0


def _open_streams() -> None:
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww")
    )
