"""Checks that servers live exactly as long as the command that started them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sharing import ANSWER_SECONDS, free_port
from tilewright.services.server_process import (
    LOOPBACK,
    ServerError,
    is_answering,
    listening_socket,
    start_server,
)

SERVER = [sys.executable, "-m", "http.server", "--bind", LOOPBACK]


def wait_until_gone(url: str) -> bool:
    deadline = time.monotonic() + 120
    while is_answering(url) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not is_answering(url)


def test_a_server_answers_after_wait_and_is_gone_after_stop(tmp_path: Path) -> None:
    url = f"http://{LOOPBACK}:{(port := free_port())}/"
    process = start_server("files", [*SERVER, str(port)], health=url, log=tmp_path / "log")
    process.wait()
    assert is_answering(url)
    process.stop()
    assert wait_until_gone(url)


def test_a_killed_parent_leaves_no_server_behind(tmp_path: Path) -> None:
    url = f"http://{LOOPBACK}:{(port := free_port())}/"
    command, log = [*SERVER, str(port)], str(tmp_path / "log")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tilewright.services.server_process import start_server\n"
        f"server = start_server('files', {command!r}, health={url!r}, log=Path({log!r}))\n"
        "server.wait(); print('up', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert wait_until_gone(url)


def test_a_server_that_does_not_start_is_one_message_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    process = start_server("broken", [sys.executable, "-c", "print('why', flush=True); exit(3)"],
                  health=f"http://{LOOPBACK}:{free_port()}/", log=log)  # fmt: skip
    with pytest.raises(ServerError, match=r"server\.log"):
        process.wait()
    assert "why" in log.read_text()


def _slow(port: int, begin: str) -> list[str]:
    """Return the command of an HTTP server that first runs the code `begin`."""
    serve = "import runpy; runpy.run_module('http.server', run_name='__main__')"
    code = f"import sys, time; sys.argv[1:] = ['--bind', '{LOOPBACK}', '{port}']; {begin}; {serve}"
    return [sys.executable, "-c", code]


@pytest.mark.slow(seconds=3)
def test_a_server_that_works_is_waited_for_longer_than_one_that_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is on idle time, not on elapsed time, because a busy machine slows everybody."""
    monkeypatch.setattr("tilewright.services.server_process.IDLE_LIMIT_SECONDS", 1.0)
    monkeypatch.setattr("tilewright.services.server_process.LOOK_SECONDS", 0.1)
    url = f"http://{LOOPBACK}:{(port := free_port())}/"
    work = "end = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n0"
    process = start_server("busy", _slow(port, f"exec({work!r})"), health=url, log=tmp_path / "log")
    monkeypatch.setattr("tilewright.services.server_process.TELL_SECONDS", 0.5)
    said: list[str] = []
    process.wait(said.append)
    assert any(line.startswith("… starting the busy server, for ") for line in said)
    process.stop()
    idle = start_server("idle", _slow(port, "time.sleep(60)"), health=url, log=tmp_path / "log")
    with pytest.raises(ServerError, match="did not start"):
        idle.wait()


def test_a_server_that_works_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.services.server_process.WORK_LIMIT_SECONDS", 0.5)
    monkeypatch.setattr("tilewright.services.server_process.LOOK_SECONDS", 0.1)
    command = [sys.executable, "-c", "while True: pass"]
    process = start_server("endless", command, health=f"http://{LOOPBACK}:{free_port()}/",
                    log=tmp_path / "log")  # fmt: skip
    with pytest.raises(ServerError, match="did not start"):
        process.wait()


def test_a_port_that_is_taken_is_named() -> None:
    with listening_socket(LOOPBACK, 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"{LOOPBACK}:{port}.*another port"):
            listening_socket(LOOPBACK, port)


def test_a_server_that_is_killed_is_started_again_on_its_port(tmp_path: Path) -> None:
    url = f"http://{LOOPBACK}:{(port := free_port())}/"
    code = (
        "import http.server, os, sys\n"
        "class Pid(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "        self.wfile.write(str(os.getpid()).encode())\n"
        f"http.server.HTTPServer(('{LOOPBACK}', {port}), Pid).serve_forever()"
    )
    process = start_server("pid", [sys.executable, "-c", code], health=url, log=tmp_path / "log")
    process.wait()
    first = int(urllib.request.urlopen(url, timeout=ANSWER_SECONDS).read())
    os.kill(first, signal.SIGKILL)
    process.wait()
    assert int(urllib.request.urlopen(url, timeout=ANSWER_SECONDS).read()) != first
    process.stop()
    assert wait_until_gone(url)


ON_DESCRIPTOR = """
import http.server, socket, sys
server = http.server.HTTPServer(("", 0), http.server.SimpleHTTPRequestHandler, False)
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.socket.listen()
server.serve_forever()
"""


def test_a_server_inherits_a_socket_whatever_its_number(tmp_path: Path) -> None:
    with listening_socket(LOOPBACK, 0) as listener, ExitStack() as closing:
        high = fcntl.fcntl(listener, fcntl.F_DUPFD, 200)
        closing.callback(os.close, high)
        url = f"http://{LOOPBACK}:{listener.getsockname()[1]}/"
        process = start_server(
            "files", [sys.executable, "-c", ON_DESCRIPTOR, str(high)], health=url,
            log=tmp_path / "log", descriptors=[high],
        )  # fmt: skip
    process.wait()
    process.stop()
