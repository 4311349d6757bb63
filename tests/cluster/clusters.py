"""Starts a Dask scheduler and workers as processes of this machine, as an operator would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import dask
import distributed
import psutil

from tests.sharing import OURS, free_port
from tilewright.targets.cluster import connection
from tilewright.targets.cluster.keys import AUTHORITY, CLIENT, NODE, dask_settings, make_keys

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 120.0
COMMAND = ("-c", "from tilewright.cli import command; command()")
SCHEDULER = ("-m", "distributed.cli.dask_scheduler")
WORKER = ("-m", "distributed.cli.dask_worker")


class DaskCluster:
    """A Dask scheduler with named workers that can be started and killed, and with its own keys.

    Use it as a context manager. Inside it, this process has the Dask settings of a command. Workers
    also know the target family of `faulty`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"tls://127.0.0.1:{self.port}"
        self.keys = folder / "keys"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._settings = ExitStack()

    def __enter__(self) -> DaskCluster:
        make_keys(self.keys)
        self._settings.enter_context(client_settings(self.keys))
        package(self.folder / "plugin", "faulty", "1", entry="faulty = tests.cluster.faulty:KIND")
        self.scheduler()
        return self

    def __exit__(self, *_: object) -> None:
        for address, result in list(connection._connected.items()):
            if address[1] == self.address:
                del connection._connected[address]
                result.close()
        self._settings.close()
        for name in reversed(self.processes):
            self.kill(name)

    def scheduler(self) -> psutil.Process:
        """Start `dask scheduler` and wait until it is ready."""
        process = self.run(
            "scheduler", *SCHEDULER, "--protocol", "tls", "--host", "127.0.0.1", "--port",
            str(self.port), "--dashboard-address", "127.0.0.1:0",
        )  # fmt: skip
        self.wait_for("scheduler", "Scheduler at:")
        return psutil.Process(process.pid)

    def worker(
        self, name: str, *arguments: str, path: Path | None = None, ready: str = "Registered to:"
    ) -> psutil.Process:
        """Start `dask worker` with one thread and wait until it is ready.

        Packages below `path` precede others on the worker's module path.
        """
        process = self.run(
            name, *WORKER, self.address, "--protocol", "tls", "--host", "127.0.0.1",
            "--dashboard-address", "127.0.0.1:0", "--nworkers", "1", "--nthreads", "1",
            "--no-nanny", "--name", name, "--local-directory", str(self.folder / "scratch"),
            *arguments, path=path,
        )  # fmt: skip
        self.wait_for(name, ready)
        return psutil.Process(process.pid)

    def run(
        self, name: str, *arguments: str, more: Mapping[str, str] | None = None,
        path: Path | None = None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start `python …` in the background with the cluster's settings, and log its output."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith((*OURS, "DASK_"))}
        result = os.pathsep.join(map(str, filter(None, (path, ROOT, self.folder / "plugin"))))
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                cwd=self.folder,
                env=kept | settings_of(self.keys) | {"PYTHONPATH": result} | dict(more or {}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """Kill a process and all its children with SIGKILL."""
        process = self.processes[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, text: str) -> None:
        """Wait until the output of a process contains a text."""
        end = time.monotonic() + LIMIT_SECONDS
        while text not in self.said(name):
            assert time.monotonic() < end, self.said(name)
            assert self.processes[name].poll() is None, self.said(name)
            time.sleep(0.05)

    def client(self) -> distributed.Client:
        """Open a connection to the scheduler that is separate from those of commands."""
        return distributed.Client(
            self.address, security=connection.dask_security("client"), set_as_default=False
        )

    def wait_until_busy(self, workers: int = 1) -> None:
        """Wait until at least `workers` workers are processing a call."""
        end = time.monotonic() + LIMIT_SECONDS
        with self.client() as client:
            while sum(map(bool, client.processing().values())) < workers:
                assert time.monotonic() < end
                time.sleep(0.01)


def settings_of(keys: Path) -> dict[str, str]:
    """Return the environment variables that `tilewright cluster keys` prints."""
    lines = [line for line in dask_settings(keys).splitlines() if line.startswith("export ")]
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def client_settings(keys: Path) -> dask.config.set:
    """Return the Dask settings of a command for this process.

    Setting environment variables would be too late, because Dask reads them when it is imported.
    """
    tls = "distributed.comm.tls."
    return dask.config.set(
        {
            "distributed.comm.require-encryption": True,
            f"{tls}ca-file": str(keys / AUTHORITY),
            f"{tls}client.cert": str(keys / CLIENT), f"{tls}client.key": str(keys / CLIENT),
            f"{tls}worker.cert": str(keys / NODE), f"{tls}worker.key": str(keys / NODE),
        }
    )  # fmt: skip


def package(folder: Path, name: str, version: str, entry: str = "") -> Path:
    """Write the metadata that pip would store for an installed package. Return the folder."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry:
        (about / "entry_points.txt").write_text(f"[tilewright.targets]\n{entry}\n")
    return folder
