"""Coordinates the processes of a test session: ports, shared folders, servers and turns."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tilewright.services.prefect_server import Login, start_prefect_pages, start_prefect_server
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace, use_workspace

OURS = ("PREFECT_", "MLFLOW_", "TILEWRIGHT_")
"""Prefixes of the environment variables that decide where records are kept."""

ANSWER_SECONDS = 300
"""Time limit in seconds for one answer of a server. The usual five seconds of a client are too
short for Prefect while every core is busy compiling."""


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def folder_of_the_run(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder of the session, which contains those of the workers."""
    folder = factory.getbasetemp()
    return folder.parent if folder.name.startswith("popen-") else folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder `name`, which the first process that asks fills with `make`.

    Tests only read it.
    """
    folder = folder_of_the_run(factory) / name
    done = folder.with_suffix(".done")
    with _held(folder.with_suffix(".lock"), fcntl.LOCK_EX):
        if not done.exists():
            assert not folder.exists(), f"the first to ask could not make {folder}"
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@contextmanager
def prefect_beside(root: Path, *, acting: bool = False) -> Iterator[Login]:
    """Yield the login of a Prefect server that keeps its records below `root`.

    With `acting`, the server also schedules runs and acts on events.
    """
    before = dict(os.environ)
    try:
        for name in [name for name in before if name.startswith(OURS)]:
            del os.environ[name]
        if acting:
            os.environ["PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED"] = "true"
            server = start_prefect_pages(use_workspace(Workspace(root)), LOOPBACK, free_port())
        else:
            server = start_prefect_server(use_workspace(Workspace(root)))
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        server.process.wait()
        yield server.login
    finally:
        server.process.stop()


class Turns:
    """A lock with which tests run side by side or alone. A waiting lone test is not overtaken."""

    def __init__(self, folder: Path) -> None:
        self._gate, self._room = folder / "gate.lock", folder / "room.lock"

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        with ExitStack() as held:
            with _held(self._gate, fcntl.LOCK_EX):
                held.enter_context(_held(self._room, fcntl.LOCK_SH))
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        with _held(self._gate, fcntl.LOCK_EX), _held(self._room, fcntl.LOCK_EX):
            yield


@contextmanager
def _held(path: Path, how: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may keep the file open
