"""Starts workers as processes of this machine, as an operator does."""

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
import pytest

from tests.sharing import OURS, free_port

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60.0
COMMAND = ("-c", "from tilewright.cli import command; command()")


class Cluster:
    """Workers that come and go, by name, at an `address` that has them all; keys are those that the
    first of them makes. Use as a context manager. They know the kind of target of `faulty`."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in names}
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = pytest.MonkeyPatch()

    def __enter__(self) -> Cluster:
        self._environment.setenv("XDG_CONFIG_HOME", str(self.folder / "config"))
        plugin = self.folder / "plugin" / "faulty-1.dist-info"
        plugin.mkdir(parents=True)
        (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
        (plugin / "entry_points.txt").write_text(
            "[tilewright.targets]\nfaulty = tests.cluster.faulty:KIND\n"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.undo()
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def worker(self, name: str, *arguments: str) -> psutil.Process:
        """`tilewright cluster serve`, once it is ready."""
        process = self.run(
            name, *COMMAND, "cluster", "serve", "--port", str(self.ports[name]), *arguments
        )
        self.wait_for(name, "Ctrl-C ends it")
        return psutil.Process(process.pid)

    def run(
        self, name: str, *arguments: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """`python …` in the background, with what it says in a file of that name."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        path = f"{ROOT}{os.pathsep}{self.folder / 'plugin'}"
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                cwd=self.folder, env=kept | {"PYTHONPATH": path} | dict(more or {}),
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
