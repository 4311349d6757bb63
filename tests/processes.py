"""Observes a command and its child processes from outside.

A command may start short-lived children (for example to ask for the CPU's name). A child may end
between being listed and being inspected; such children are left out.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import psutil


class Address(NamedTuple):
    """An address on which a process listens."""

    ip: str
    port: int


def family(pid: int) -> list[int]:
    """Return the IDs of a process and all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def listening(pid: int) -> set[Address]:
    """Return the addresses on which a process or one of its descendants listens."""
    result = set()
    for one in family(pid):
        with suppress(psutil.NoSuchProcess):
            sockets = psutil.Process(one).net_connections("inet")
            result |= {Address(*e.laddr) for e in sockets if e.status == psutil.CONN_LISTEN}
    return result


def servers(pid: int) -> list[psutil.Process]:
    """Return the Prefect servers that a command started."""
    servers = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.cmdline()[1:3] == ["-m", "tilewright.services.prefect_server"]:
                servers.append(child)
    return servers
