"""The embedded Prefect server: a child process on the loopback interface, one a command.

Prefect's own ephemeral server takes seconds to answer and is started only when the first flow asks
for it. Here it starts at once, while the command reads its input, and a killed command leaves no
orphan: the child ends when the pipe to its parent closes.

Run as `python -m tasks.server`, this module *is* that child.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from targets.errors import TilewrightError
from tasks.home import Home

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
UI_PORT = 4200
MLFLOW_PORT = 5000
START_LIMIT_SECONDS = 180.0
STOP_LIMIT_SECONDS = 10.0


class ServerError(TilewrightError):
    """A server of this command did not start."""


@dataclass
class PrefectServer:
    """A running child. `wait` before the first flow; `stop` at the end."""

    process: subprocess.Popen[bytes]
    port: int
    host: str
    log: Path

    @property
    def api_url(self) -> str:
        return f"http://{self.host}:{self.port}/api"

    def wait(self) -> None:
        """Block until the server answers. Raises `ServerError` if it does not."""
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while not answers(self.api_url):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"the embedded Prefect server did not start; see {self.log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ask the child to end, then insist."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_prefect_server(
    home: Home, *, interface: bool = False, host: str = LOOPBACK, port: int = 0
) -> PrefectServer:
    """Start the child; returns at once. `port` 0 takes a free one.

    With `interface` the server also serves the web pages and runs its scheduler. Sets
    `PREFECT_API_URL` for this process, so call it before Prefect is imported.
    """
    provide_database(home)
    with listening_socket(host, port) as listener, home.server_log.open("ab") as log:
        command = [sys.executable, "-m", "tasks.server", str(listener.fileno())]
        process = subprocess.Popen(
            command + ["--interface"] * interface,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C reaches the command first, which then stops the child
            env=os.environ
            | {"PREFECT_UI_API_URL": f"http://{host}:{listener.getsockname()[1]}/api"},
        )
        server = PrefectServer(process, listener.getsockname()[1], host, home.server_log)
    os.environ["PREFECT_API_URL"] = server.api_url
    return server


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket to hand to a server. Raises `ServerError` when the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServerError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port"
        ) from None
    return listener


def answers(api_url: str) -> bool:
    """Whether a Prefect API is healthy at this address."""
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


# -- a server that is already there ------------------------------------------------------------


def announce(home: Home, api_url: str) -> None:
    """Let later commands on this home use the server of `tilewright ui`."""
    (home.root / "prefect" / "server.json").write_text(json.dumps({"api_url": api_url}))


def withdraw(home: Home) -> None:
    (home.root / "prefect" / "server.json").unlink(missing_ok=True)


def announced(home: Home) -> str | None:
    """The API address of a server that runs on this home's data, if there is a live one."""
    try:
        api_url = str(json.loads((home.root / "prefect" / "server.json").read_text())["api_url"])
    except (OSError, ValueError, KeyError):
        return None
    return api_url if answers(api_url) else None


# -- a database that is already migrated -------------------------------------------------------


def _template() -> Path:
    return Path(sys.prefix) / "share" / "tilewright" / f"prefect-{version('prefect')}.db"


def provide_database(home: Home) -> None:
    """Give a new home the migrated, empty database of set-up: migrating takes seconds."""
    if home.prefect_database.exists() or not _template().exists():
        return
    fresh = home.prefect_database.with_suffix(f".{os.getpid()}.tmp")
    shutil.copyfile(_template(), fresh)
    fresh.rename(home.prefect_database)


def prepare_database_template(home: Home) -> None:
    """Start a server once on an empty home and keep its database for later homes."""
    if _template().exists():
        return
    server = start_prefect_server(home)
    server.wait()
    server.stop()
    _template().parent.mkdir(parents=True, exist_ok=True)
    fresh = _template().with_suffix(".tmp")
    fresh.unlink(missing_ok=True)
    with sqlite3.connect(home.prefect_database) as database:
        database.execute("VACUUM INTO ?", (str(fresh),))
    fresh.rename(_template())


# -- the child ---------------------------------------------------------------------------------


def _serve(descriptor: int, interface: bool) -> None:
    listener = socket.socket(fileno=descriptor)
    _end_with_parent()
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=not interface, final=True)
    app.add_middleware(RetrySoon)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


class RetrySoon:
    """ASGI middleware: a busy SQLite file (503) is free again within milliseconds, so tell the
    client to come back then; by itself it would wait two seconds."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_hint(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                message["headers"] = [*message.get("headers", []), (b"retry-after", b"0.05")]
            await send(message)

        await self.app(scope, receive, send_with_hint)


def _end_with_parent() -> None:
    def watch() -> None:
        sys.stdin.buffer.read()
        signal.raise_signal(signal.SIGTERM)
        time.sleep(STOP_LIMIT_SECONDS / 2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), "--interface" in sys.argv)
