"""Server processes that end when the command that started them ends, even if it is killed.

Between the command and the server is a watching process: `python -m
tilewright.services.server_process COMMAND…`. It runs the server in a process group of its own, and
restarts a server that is killed or crashes. When its standard input closes, it ends the whole
group. The command holds the other end of that pipe, which the kernel closes when the command ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.lazy_module import lazy_module
from tilewright.core.process_info import module_path

psutil = lazy_module("psutil")

LOOPBACK = "127.0.0.1"
IDLE_LIMIT_SECONDS = 120.0
"""Maximum time in seconds that a starting server may wait without using processor time."""
WORK_LIMIT_SECONDS = 300.0
"""Maximum processor time in seconds that a server may use to start; about ten seconds are usual.
The wall-clock time is not limited, because a busy machine needs longer."""
ASK_SECONDS, ASK_AT_MOST_SECONDS = 5.0, 60.0
"""Timeouts of a health request in seconds: of the first request, and the maximum after requests
without an answer."""
LOOK_SECONDS = 1.0
"""Seconds between two readings of a server's processor time. The interval is long because each
reading scans all processes of the machine."""
TELL_SECONDS = 10.0
STOP_LIMIT_SECONDS = 10.0
RESTARTS = 3


class ServerError(TilewrightError):
    """A server of this command did not start, or it ended."""


@dataclass
class ServerProcess:
    """A server that was started in a separate process and may not be ready yet.

    Attributes:
        name: name of the server in messages.
        process: the process that watches the server.
        health: address that returns status 200 once the server is ready.
        log: file with the output of the server.
        headers: HTTP headers of the requests to `health`.
    """

    name: str
    process: subprocess.Popen[bytes]
    health: str
    log: Path
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def wait(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Block until the server answers, without a time limit as long as it makes progress.

        Args:
            tell: function that is called from time to time with a progress message.

        Raises:
            ServerError: the server ended, used no processor time for `IDLE_LIMIT_SECONDS`, or used
                more processor time than `WORK_LIMIT_SECONDS`.
        """
        patience, ask_seconds = _Patience(self.process.pid), ASK_SECONDS
        started = told = time.monotonic()
        while True:
            begin = time.monotonic()
            if is_answering(self.health, self.headers, ask_seconds):
                return
            if time.monotonic() - begin > ask_seconds:
                ask_seconds = min(2 * ask_seconds, ASK_AT_MOST_SECONDS)
            if self.process.poll() is not None or patience.is_over():
                self.stop()
                said = self._last_words()
                raise ServerError(f"the {self.name} server did not start{said}; see {self.log}")
            if (now := time.monotonic()) - told > TELL_SECONDS:
                told = now
                tell(f"… starting the {self.name} server, for {now - started:.0f} s so far")
            time.sleep(0.05)

    def _last_words(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return next((f" ({line.strip()})" for line in reversed(lines) if line.strip()), "")

    def stop(self) -> None:
        """Ask the server to end, and kill it if it does not."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(2 * STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Patience:
    """Watches the processor time of a starting server, to give up if it hangs or works too long.

    Args:
        pid: ID of the process. The processor time of its children is included.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used, self._since = 0.0, time.monotonic()
        self._looked = self._since

    def is_over(self) -> bool:
        """Return whether to give up: too much processor time was used, or none for too long."""
        if (now := time.monotonic()) - self._looked < LOOK_SECONDS:
            return False
        self._looked, used = now, _processor_seconds(self._pid)
        if used != self._used:
            self._used, self._since = used, now
        return used > WORK_LIMIT_SECONDS or now - self._since > IDLE_LIMIT_SECONDS


def _processor_seconds(pid: int) -> float:
    """Return the processor time in seconds that a process and its descendants have used.

    Processes that cannot be read are left out.
    """
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        server = psutil.Process(pid)
        for process in (server, *server.children(recursive=True)):
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
    return total


def start_server(
    name: str,
    command: Sequence[str],
    *,
    health: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
    headers: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Start a server and return without waiting until it answers.

    Args:
        name: name of the server in messages.
        command: command line of the server.
        health: address that returns status 200 once the server is ready.
        log: file to which the server's output is appended.
        environment: additional environment variables.
        descriptors: open file descriptors that the server inherits.
        headers: HTTP headers of the requests to `health`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.services.server_process", *command],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            pass_fds=tuple(descriptors),
            # Neither import files of the command's folder nor read them as settings.
            env=os.environ
            | {"PYTHONSAFEPATH": "1", "PYTHONPATH": module_path()}
            | dict(environment or {}),
            cwd="/",
            start_new_session=True,  # Ctrl-C reaches the command, which then stops its servers
        )
    return ServerProcess(name, process, health, log, headers or {})


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, to hand to a server.

    Args:
        host: address on which the server listens.
        port: port on which the server listens.

    Raises:
        ServerError: the address cannot be bound, for example because the port is in use.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise ServerError(
            f"cannot listen on {host}:{port}: {reason}; choose another port"
        ) from None
    return listener


def is_answering(
    url: str, headers: Mapping[str, str] | None = None, seconds: float = ASK_SECONDS
) -> bool:
    """Return whether a server answers with status 200.

    Args:
        url: address to request.
        headers: HTTP headers of the request.
        seconds: timeout of the request.
    """
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=seconds) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


# -- the process between -----------------------------------------------------------------------


class Tethered:
    """A server in a process group of its own, which ends with the parent process.

    A server that is killed or crashes is restarted on the same open sockets, at most `RESTARTS`
    times. Meanwhile, new connections wait in the sockets' queues.

    Args:
        command: command line of the server.
        descriptors: open file descriptors that the server inherits.
    """

    def __init__(self, command: Sequence[str], descriptors: Sequence[int]) -> None:
        self.command = list(command)
        self.descriptors = tuple(descriptors)
        self._ending = False
        self._changing = threading.RLock()
        self._server = self._start_process()

    def run(self) -> int:
        """Run the server until it ends by itself or `end` is called. Return its exit status."""
        status = self._server.wait()
        for _ in range(RESTARTS):
            if status >= 0 or -status in (signal.SIGTERM, signal.SIGINT):
                break
            with self._changing:
                if self._ending:
                    break
                self._server = self._start_process()
            if self._ending:  # a signal arrived while the server was started
                self.end()
            status = self._server.wait()
        return status

    def end(self) -> None:
        """Ask all processes of the group to end, and kill them if they do not.

        The server is not restarted afterwards.
        """
        with self._changing:
            self._ending = True
        for wanted in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._server.pid, wanted)
                self._server.wait(STOP_LIMIT_SECONDS)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def end_with_parent(self) -> None:
        """Block until standard input closes, which means that the parent ended; then call `end`."""
        while os.read(0, 4096):  # unbuffered: at exit, this thread may still read
            pass
        self.end()

    def _start_process(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=self.descriptors,
        )


def _run_tethered(command: Sequence[str], descriptors: Sequence[int]) -> int:
    tethered = Tethered(command, descriptors)
    threading.Thread(target=tethered.end_with_parent, daemon=True).start()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, lambda *_: tethered.end())
    return tethered.run()


def _inherited_descriptors() -> list[int]:
    """Return the inherited file descriptors, except for standard input, output and error."""
    descriptors = []
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            if descriptor > 2 and os.get_inheritable(descriptor):
                descriptors.append(descriptor)
    return descriptors


if __name__ == "__main__":
    sys.exit(_run_tethered(sys.argv[1:], _inherited_descriptors()))
