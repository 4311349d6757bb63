"""Information about processes: their identity, usable cores and module search path.

A process stamp identifies a process even after the kernel has reused its process ID. It can be
checked only on the same machine and in the same container.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessStamp:
    """Identity of a process, which stays unambiguous after its process ID was reused.

    Attributes:
        pid: process ID, which the kernel may reuse later.
        started: start time of the process, in kernel ticks since the machine was booted.
        host: name of the machine.
        space: scope in which `pid` is valid: the boot ID of the machine and the PID namespace.
    """

    pid: int
    started: int
    host: str
    space: str

    @staticmethod
    def of_this_process() -> ProcessStamp:
        """Return the stamp of this process."""
        pid = os.getpid()
        return ProcessStamp(pid, _status(pid)[1], socket.gethostname(), _space())

    def is_alive(self) -> bool | None:
        """Return whether the process still exists.

        Returns:
            True or False. None if the process ran on another machine or in another container, from
            which this process cannot determine it.
        """
        if self.space != _space():
            return None
        state, started = _status(self.pid)
        return state not in ("", "Z", "X") and started == self.started

    def describe(self) -> str:
        """Return a description of the process for a message."""
        host = "".join(letter for letter in self.host[:64] if letter.isprintable())
        name = f"process {self.pid} on {host}"
        if self.space != _space():
            return f"{name}, on another machine or in another container"
        if _status(self.pid)[0] not in ("T", "t"):
            return name
        return (
            f"{name} (it is stopped: resume it with 'kill -CONT {self.pid}', or end it with "
            f"'kill -KILL {self.pid}')"
        )


def _status(pid: int) -> tuple[str, int]:
    """Read the state and the start time of a process from `/proc`.

    Args:
        pid: process ID.

    Returns:
        The state letter, such as "Z" for a zombie, and the start time in kernel ticks since the
        machine was booted; ("", 0) if the process does not exist.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0


def _space() -> str:
    # Not cached, because a forked process may be in another PID namespace.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use.

    The number respects the CPU affinity, which `taskset` and containers restrict.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def module_path() -> str:
    """Return the absolute folders of the module search path, as a value of `PYTHONPATH`.

    Relative folders, including "" for the working folder, are left out, because a stranger's files
    may lie there. An absolute entry is kept, even if it is the working folder, as with `python -m`.
    """
    return os.pathsep.join(filter(os.path.isabs, sys.path))
