"""Addresses and ports of the start page and of the pages of Prefect and MLflow, and links to them.

Runs store links, which contain a port. Each workspace therefore has fixed ports, which no other
workspace of the user has. `tilewright ui` uses the same ports every time, and runs link to these
ports even if no server is running. If the user has set other servers, links lead to the pages of
these servers instead.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tilewright.core.errors import TilewrightError
from tilewright.core.files import as_int, as_object, read_json_file, write_atomically
from tilewright.services.prefect_mlflow_settings import LOOPBACK_NAMES, without_login
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace, current_workspace

HIGHEST = 65535
_LISTENING = "0A"
"""State of a listening socket in `/proc/net/tcp`."""
RUNS, PREFECT, MLFLOW = "runs", "prefect", "mlflow"
"""Names of the three servers: the start page, Prefect and MLflow."""
DEFAULT_PORTS = {RUNS: 4100, PREFECT: 4200, MLFLOW: 5000}
"""Default port of each server. The ports of Prefect and MLflow are the defaults of these
packages."""
_PORTS_TRIED = 100
_CLAIMS = "ports.json"
"""File in the user's state folder that stores the ports of each workspace, by the workspace's
folder."""
ANY_INTERFACE = "0.0.0.0"
LOCAL = (*LOOPBACK_NAMES, ANY_INTERFACE)
TRAINING_PAGES = "?workflowType=machine_learning"
"""Query string that opens MLflow's pages for model training. By default, MLflow opens its pages for
language models."""
PREFECT_PAGES, MLFLOW_PAGES = "PREFECT_UI_URL", "MLFLOW_UI_URL"
"""Environment variables with the addresses of the pages, for users whose browser needs a different
address than programs do. `PREFECT_UI_URL` is defined by Prefect, `MLFLOW_UI_URL` by Tilewright."""


class PortError(TilewrightError):
    """A number is not a valid port, or two servers have the same port."""


def check_ports(ports: Mapping[str, int]) -> None:
    """Check that all ports are valid and different.

    Args:
        ports: each port, by the name of the option that sets it.

    Raises:
        PortError: a number is not a valid port, or a port occurs twice.
    """
    taken: dict[int, str] = {}
    for option, port in ports.items():
        if not 1 <= port <= HIGHEST:
            raise PortError(
                f"{option} {port} is not a valid port; give a number from 1024 to {HIGHEST}, "
                "such as 4201"
            )
        if port in taken:
            raise PortError(
                f"{taken[port]} and {option} both use port {port}; give each server its own "
                f"port, such as {option} {port + 1 if port < HIGHEST else port - 1}"
            )
        taken[port] = option


def is_own_listener(port: int) -> bool:
    """Return whether every process that listens on a TCP port belongs to the current user.

    A command checks this before it sends the secret of the workspace. Another user of the machine
    may have started a program on a port that one of our servers used before.

    Args:
        port: the port.
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


def page_address(server: str) -> str:
    """Return the address of a server's web pages, even if the server is not running.

    The pages keep the address at which they ran last. Pages that have never run get a port that no
    other workspace of the user has.

    Args:
        server: name of the server, a key of `DEFAULT_PORTS`.
    """
    workspace = current_workspace()
    known = _read(workspace).get(server, "")
    return known if is_local(known) else f"http://{LOOPBACK}:{_claimed_ports(workspace)[server]}"


def port_or_last(port: int | None, server: str) -> int:
    """Return the requested port. If it is None, return the port at which the pages ran last.

    Args:
        port: requested port, or None.
        server: name of the server, a key of `DEFAULT_PORTS`.
    """
    if port is not None:
        return port
    return urlsplit(page_address(server)).port or DEFAULT_PORTS[server]


def remember_addresses(workspace: Workspace, **addresses: str) -> None:
    """Store the addresses of web pages, so that later runs link to them.

    Only addresses on this machine are stored.

    Args:
        workspace: the workspace whose servers serve the pages.
        addresses: address of the pages of each server, by name.

    Raises:
        OSError: the file cannot be written.
    """
    here = {
        name: browser_address(address) for name, address in addresses.items() if is_local(address)
    }
    known = _read(workspace) | here
    write_atomically(_file(workspace), json.dumps(known, indent=2).encode())
    with suppress(OSError, RuntimeError), _locked_claims() as claims:
        ports = {name: urlsplit(address).port or 0 for name, address in known.items()}
        claims[str(workspace.root)] = claims.get(str(workspace.root), {}) | ports


def is_taken(port: int) -> bool:
    """Return whether a program of this machine listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def free_port_above(port: int) -> int:
    """Return a free port above `port` that no other workspace of the user has claimed.

    If none of the next `_PORTS_TRIED` ports is free, `port` itself is returned.

    Args:
        port: the port that is not available.
    """
    claimed: set[int] = set()
    with suppress(OSError, RuntimeError), _locked_claims() as claims:
        claimed = _ports_in(claims.values())
    others = range(port + 1, min(port + 1 + _PORTS_TRIED, HIGHEST + 1))
    return next(
        (candidate for candidate in others if candidate not in claimed and not is_taken(candidate)),
        port,
    )


def _claimed_ports(workspace: Workspace) -> dict[str, int]:
    """Return the ports of a workspace, by server. If the workspace has none, claim free ports.

    Claimed ports are stored in the user's state folder, so that other workspaces use other ports.
    If that folder cannot be written, free ports are returned without claiming them.

    Args:
        workspace: the workspace.
    """
    root = str(workspace.root)
    try:
        with _locked_claims() as claims:
            own = claims.get(root, {})
            if own.keys() < DEFAULT_PORTS.keys():
                others = [ports for folder, ports in claims.items() if folder != root]
                claims[root] = own = _free_ports(_ports_in(others)) | own
            return dict(own)
    except (OSError, RuntimeError):  # no state folder
        return _free_ports(set())


def _free_ports(claimed: Collection[int]) -> dict[str, int]:
    for step in range(_PORTS_TRIED):
        ports = {server: port + step for server, port in DEFAULT_PORTS.items()}
        if not any(port in claimed or is_taken(port) for port in ports.values()):
            return ports
    return dict(DEFAULT_PORTS)


def _ports_in(claims: Iterable[Mapping[str, int]]) -> set[int]:
    return {port for ports in claims for port in ports.values()}


@contextmanager
def _locked_claims() -> Iterator[dict[str, dict[str, int]]]:
    """Lock the file with the ports of the user's workspaces, and yield its content.

    The content maps the folder of each workspace to its ports, by server. Workspaces whose folder
    no longer exists are removed. Changes are written when the context ends. Raises `OSError`, or
    `RuntimeError` if the user has no home folder.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "tilewright"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / f"{_CLAIMS}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _read_claims(folder / _CLAIMS)
        claims = {root: dict(ports) for root, ports in held.items() if Path(root).is_dir()}
        yield claims
        if claims != held:
            write_atomically(folder / _CLAIMS, json.dumps(claims, indent=2).encode())


def _read_claims(path: Path) -> dict[str, dict[str, int]]:
    try:
        return {
            root: {server: as_int(as_object(ports)[server]) for server in as_object(ports)}
            for root, ports in as_object(read_json_file(path)).items()
        }
    except (OSError, ValueError):
        return {}


def is_local(address: str) -> bool:
    """Return whether an address certainly refers to this machine."""
    try:
        parts = urlsplit(address)
        return parts.scheme == "http" and parts.hostname in LOCAL and parts.port is not None
    except ValueError:
        return False


def browser_address(address: str) -> str:
    """Return the address at which a browser of this machine reaches a server.

    A server that listens on all interfaces is reached through the loopback address.
    """
    parts = urlsplit(address)
    if parts.hostname != ANY_INTERFACE:
        return address
    return parts._replace(netloc=f"{LOOPBACK}:{parts.port}").geturl()


def _read(workspace: Workspace) -> dict[str, str]:
    try:
        stored = as_object(read_json_file(_file(workspace)))
    except (OSError, ValueError):
        return {}
    return {name: str(stored[name]) for name in DEFAULT_PORTS if name in stored}


def _file(workspace: Workspace) -> Path:
    return workspace.root / "pages.json"


def flow_run_url(flow_run_id: str) -> str:
    """Return the address of the Prefect page of a flow run."""
    return f"{_prefect_pages()}/runs/flow-run/{flow_run_id}"


def mlflow_run_url(experiment_id: str, run_id: str) -> str:
    """Return the address of the MLflow page of a run."""
    return f"{_mlflow_pages()}/#/experiments/{experiment_id}/runs/{run_id}{TRAINING_PAGES}"


def runs_url(pages: str, experiment_id: str | None) -> str:
    """Return the address of the MLflow page that lists the runs of an experiment.

    Args:
        pages: address of MLflow's pages.
        experiment_id: ID of the experiment; None for the list of all experiments.
    """
    runs = "" if experiment_id is None else f"/{experiment_id}/runs"
    return f"{pages.rstrip('/')}/#/experiments{runs}{TRAINING_PAGES}"


def other_pages() -> dict[str, str]:
    """Return the addresses of the pages that the start page links to, by their titles."""
    return {"Prefect": _prefect_pages(), "MLflow": runs_url(_mlflow_pages(), None)}


def name_prefect_pages(api_url: str) -> None:
    """Set the environment variable that makes links lead to the pages of a Prefect server.

    The function does nothing if the user has already set the variable.

    Args:
        api_url: address of the server's API. If it does not end in `/api`, nothing is set.
    """
    if api_url.rstrip("/").endswith("/api"):
        pages = without_login(api_url).removesuffix("/api")
        os.environ.setdefault(PREFECT_PAGES, pages)


def _prefect_pages() -> str:
    return without_login(os.environ.get(PREFECT_PAGES) or page_address(PREFECT))


def _mlflow_pages() -> str:
    tracking = os.environ.get(MLFLOW_PAGES) or os.environ.get("MLFLOW_TRACKING_URI", "")
    return without_login(tracking if tracking.startswith("http") else page_address(MLFLOW))
