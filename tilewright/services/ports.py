"""Checks ports before a server is started, and who listens on a port of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.core.errors import TilewrightError

HIGHEST = 65535
_LISTENING = "0A"
"""State of a socket in `/proc/net/tcp`."""


class PortError(TilewrightError):
    """A number that is no port, or one port for two servers."""


def check_ports(ports: Mapping[str, int]) -> None:
    """Ports by the option that names each. Raises `PortError`."""
    taken: dict[int, str] = {}
    for option, port in ports.items():
        if not 1 <= port <= HIGHEST:
            raise PortError(
                f"{option} {port} is not a port; give a number from 1024 to {HIGHEST}, such as 4201"
            )
        if port in taken:
            raise PortError(
                f"{taken[port]} and {option} are both {port}; give each server a port of its own, "
                f"such as {option} {port + 1 if port < HIGHEST else port - 1}"
            )
        taken[port] = option


def is_own_listener(port: int) -> bool:
    """Return whether every process that listens on this TCP port belongs to the current user.

    A command asks before it sends the secret of the workspace: another user of the machine may have
    started a program on a port that one of our servers used before.
    """
    owners = set()
    for table in Path("/proc/net/tcp"), Path("/proc/net/tcp6"):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            local, state, user = fields[1], fields[3], fields[7]
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                owners.add(int(user))
    return owners == {os.getuid()}
