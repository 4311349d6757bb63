"""Facts about processes: identity, usable cores, and where a child process finds modules.

A stamp identifies a process so that other processes, containers and machines can tell if it is
alive.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessStamp:
    """A process.

    Attributes:
        pid: process number, which the kernel uses again later.
        started: kernel ticks between the start of the machine and of the process.
        host: name of the machine.
        space: where `pid` counts: running period of the machine, and PID namespace.
    """

    pid: int
    started: int
    host: str
    space: str

    @staticmethod
    def own() -> ProcessStamp:
        """Return the stamp of this process."""
        pid = os.getpid()
        return ProcessStamp(pid, _status(pid)[1], socket.gethostname(), _space())

    def is_alive(self) -> bool | None:
        """Return whether the process exists; None if it cannot be seen from here, because it ran on
        another machine or in another container."""
        if self.space != _space():
            return None
        state, started = _status(self.pid)
        return state not in ("", "Z", "X") and started == self.started

    def describe(self) -> str:
        """Return the process in words for a message."""
        host = "".join(letter for letter in self.host[:64] if letter.isprintable())
        name = f"process {self.pid} on {host}"
        if self.space != _space():
            return f"{name}, on another machine or in another container"
        if _status(self.pid)[0] not in ("T", "t"):
            return name
        return (
            f"{name} (it is stopped: 'kill -CONT {self.pid}' lets it continue, "
            f"'kill -KILL {self.pid}' ends it)"
        )


def _status(pid: int) -> tuple[str, int]:
    """Return the state letter and the start time; ("", 0) if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0


def _space() -> str:
    # Not cached: a fork may enter another namespace.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def usable_cores() -> int:
    """Return how many cores this process may use: those of its affinity, which `taskset` and
    containers narrow, or all cores if there is none."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def module_path() -> str:
    """Return where this process finds modules: never the folder that it happens to run in (`-P`),
    in which a stranger's files may lie, nor a folder that is named relative to it."""
    return os.pathsep.join(filter(os.path.isabs, sys.path))
