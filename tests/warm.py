"""`tilewright …` in a process of its own that need not import the libraries again.

Half of what a short command costs is the import of libraries: TVM, numba, pandas, matplotlib. Here
Python's fork server has them, and every command is a fork of it, with its own environment, folder,
streams and signals. Nothing of ours that looks at the environment is imported beforehand, nor
Prefect nor MLflow, which do too. Tests of how a command starts, of where it looks for modules and
settings, and of limits to its memory start the installed script itself.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory

TILEWRIGHT = Path(sys.executable).with_name("tilewright")

LIBRARIES = (
    "targets",  # first: it says where compiled kernels lie, and numba asks for that once
    "numba", "pandas", "pyarrow.parquet", "scipy.stats", "scipy.optimize", "sklearn.preprocessing",
    "matplotlib.figure", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "tvm", "tvm.relax", "tvm.relax.frontend.onnx", "onnx", "onnxruntime", "xgboost", "lightgbm",
    "rich.console", "rich.table", "rich.progress", "typer", "pydantic", "pydantic_settings",
    "sqlalchemy.ext.asyncio", "aiosqlite", "alembic", "fastapi", "httpx", "anyio", "graphene",
    "flask", "jinja2", "docker", "cloudpickle", "pendulum", "opentelemetry.sdk.trace",
)  # fmt: skip


@cache
def _server() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    return context


def run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    module: str = "",
) -> subprocess.CompletedProcess[str]:
    """The command, or `python -m module`, to its end. Raises `subprocess.TimeoutExpired`."""
    with TemporaryDirectory() as streams:
        out, err = Path(streams) / "out", Path(streams) / "err"
        given = (list(arguments), str(folder), dict(environment), str(out), str(err), module)
        process = _server().Process(target=_command, args=given)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout, out.read_text())
        return subprocess.CompletedProcess(
            arguments, process.exitcode, out.read_text(), err.read_text()
        )


def _command(
    arguments: list[str], folder: str, environment: dict[str, str], out: str, err: str, module: str
) -> None:
    """What the installed script does, in the forked process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin.close()
    writing = os.O_WRONLY | os.O_CREAT
    for path, stream, flags in ((os.devnull, 0, os.O_RDONLY), (out, 1, writing), (err, 2, writing)):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, stream)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(*each) for each in ((0,), (1, "w"), (2, "w")))
    script = types.ModuleType("__main__")
    script.__file__ = str(TILEWRIGHT)
    sys.modules["__main__"] = script
    sys.argv, sys.path[0] = [str(TILEWRIGHT), *arguments], str(TILEWRIGHT.parent)
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        from cli import command

        command()
