"""Checks that servers on loopback are contacted directly, whatever proxies the user has set."""

from __future__ import annotations

import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import TILEWRIGHT, Place
from tests.sharing import free_port
from tilewright.services.prefect_server import Login
from tilewright.services.server_process import LOOPBACK

pytestmark = [pytest.mark.nightly(seconds=12), pytest.mark.attack]

TUNE = ("tune", "digits_cnn", "--layers", "fc", "--tuner", "random", "--trials", "2", "--out",
        "out")  # fmt: skip
VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


def proxied(
    place: Place, port: int, kind: str = "http", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a tracked command for a user who set a proxy without exceptions."""
    kept = {name: value for name, value in place.environment.items() if "proxy" not in name.lower()}
    address = f"{kind}://{LOOPBACK}:{port}"
    named = dict.fromkeys([*VARIABLES, *map(str.upper, VARIABLES)], address)
    return subprocess.run(
        [str(TILEWRIGHT), *TUNE], cwd=place.folder, env=kept | named | more, capture_output=True,
        text=True, timeout=150,
    )  # fmt: skip


@contextmanager
def proxy() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port of a running proxy and the list of requests that it receives."""
    asked: list[bytes] = []

    class Asked(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.rfile.readline())
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

    with socketserver.ThreadingTCPServer((LOOPBACK, 0), Asked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], asked
        server.shutdown()


def test_a_proxy_hears_nothing_of_what_stays_here(tmp_path: Path) -> None:
    """Neither the started server nor the command's requests to it may use the proxy."""
    with proxy() as (port, asked):
        done = proxied(Place(tmp_path), port)
    assert asked == []
    assert done.returncode == 0, done.stderr


def test_a_proxy_that_is_down_keeps_nobody_waiting(tmp_path: Path, prefect_server: Login) -> None:
    """The user names a server on this machine."""
    done = proxied(Place(tmp_path, prefect_server), free_port())
    assert done.returncode == 0, done.stderr


def test_a_socks_proxy_is_for_other_machines(tmp_path: Path, prefect_server: Login) -> None:
    """Prefect's client cannot reach other machines through a SOCKS proxy."""
    done = proxied(Place(tmp_path, prefect_server), free_port(), "socks5")
    assert done.returncode == 0, done.stderr
    elsewhere = {"PREFECT_API_URL": "http://example.invalid:4200/api"}
    done = proxied(Place(tmp_path), free_port(), "socks5", **elsewhere)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the server in PREFECT_API_URL cannot be reached through")
    assert done.stderr.count("\n") == 1
