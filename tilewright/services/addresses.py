"""Stores where the web pages of a workspace are: each server's address as it was last up.

Links that a run stores name a port, so a workspace has fixed ports. `tilewright ui` comes back on
those it used last, and runs link to them whether or not the pages are up.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from tilewright.core.files import as_object, read_json_file, write_atomically
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace, current_workspace

RUNS, PREFECT, MLFLOW = "runs", "prefect", "mlflow"
"""The start page, and the pages it leads to."""
DEFAULT_PORTS = {RUNS: 4100, PREFECT: 4200, MLFLOW: 5000}
ANY_INTERFACE = "0.0.0.0"
LOCAL = (LOOPBACK, ANY_INTERFACE, "localhost", "::1")


def page_address(server: str) -> str:
    """Of the pages of one of `DEFAULT_PORTS` on this workspace's records: where they were last, or
    where they are by default."""
    known = _read(current_workspace()).get(server, "")
    return known if is_local(known) else f"http://{LOOPBACK}:{DEFAULT_PORTS[server]}"


def port_or_last(port: int | None, server: str) -> int:
    """The port that is asked for; without one that of `page_address`."""
    if port is not None:
        return port
    return urlsplit(page_address(server)).port or DEFAULT_PORTS[server]


def remember(workspace: Workspace, **addresses: str) -> None:
    """Keep addresses of pages that are up on this machine, by server. Raises `OSError`."""
    here = {name: reachable(address) for name, address in addresses.items() if is_local(address)}
    text = json.dumps(_read(workspace) | here, indent=2)
    write_atomically(_file(workspace), text.encode())


def is_local(address: str) -> bool:
    """Whether an address can lead to no other machine."""
    try:
        parts = urlsplit(address)
        return parts.scheme == "http" and parts.hostname in LOCAL and parts.port is not None
    except ValueError:
        return False


def reachable(address: str) -> str:
    """The address to open of a server that listens there: on every interface, it is loopback."""
    parts = urlsplit(address)
    if parts.hostname != ANY_INTERFACE:
        return address
    return parts._replace(netloc=f"{LOOPBACK}:{parts.port}").geturl()


def _read(workspace: Workspace) -> dict[str, str]:
    try:
        found = as_object(read_json_file(_file(workspace)))
    except (OSError, ValueError):
        return {}
    return {name: str(found[name]) for name in DEFAULT_PORTS if name in found}


def _file(workspace: Workspace) -> Path:
    return workspace.root / "pages.json"
