"""Checks whether ports can be listened on, before any server starts."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.errors import TilewrightError

HIGHEST = 65535


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
