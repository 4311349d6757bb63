"""Starts a Dask scheduler and workers as processes of this machine, as an operator does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.sharing import OURS, free_port

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60.0


class Cluster:
    """A scheduler at `address`; workers come and go. Use as a context manager."""

    def __init__(self, folder: Path, protocol: str = "tcp", *flags: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"{protocol}://127.0.0.1:{self.port}"
        self.flags = ("--protocol", protocol, *flags)
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.scheduler = self.run(
            "scheduler", "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port",
            str(self.port), "--no-dashboard", *self.flags,
        )  # fmt: skip
        self.wait_for("scheduler", "Scheduler at")
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def worker(self, name: str, *arguments: str) -> psutil.Process:
        """A worker of one thread without a nanny, so that its process is the one to kill."""
        process = self.run(
            name, "-m", "distributed.cli.dask_worker", self.address, "--nthreads", "1",
            "--no-nanny", "--host", "127.0.0.1", "--name", name, "--no-dashboard", *arguments,
        )  # fmt: skip
        self.wait_for(name, "Registered to")
        return psutil.Process(process.pid)

    def run(
        self, name: str, *arguments: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """`python …` in the background, with what it says in a file of that name."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith((*OURS, "DASK_"))}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                cwd=self.folder, env=kept | {"PYTHONPATH": str(ROOT)} | dict(more or {}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, text: str) -> None:
        """Until a process has said so."""
        end = time.monotonic() + LIMIT_SECONDS
        while text not in self.said(name):
            assert time.monotonic() < end, self.said(name)
            assert all(each.poll() is None for each in self.processes[-1:]), self.said(name)
            time.sleep(0.05)
