"""Remote procedure calls to a child process, for work that may crash or hang.

Parent and child exchange frames over a socket. A frame consists of a JSON header and an NPZ payload
of plain arrays. Nothing is pickled, and output that the child prints cannot be mistaken for an
answer.

The child is killed when a call exceeds its time limit. It also dies with its parent: the kernel
kills it when the parent's end of a pipe closes, even if the child hangs in native code.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.core.files import MAX_JSON_BYTES, Json, unpack_arrays
from tilewright.core.process_info import module_path

Header = dict[str, Json]
Arrays = Mapping[str, NDArray[Any]]
Frame = tuple[Header, dict[str, NDArray[Any]]]
MAX_FRAME_BYTES = 1 << 30
_PROLOGUE = 16  # two little-endian 64-bit lengths: header, payload


class RpcFailed(TilewrightError):
    """A call to a child process got no valid answer.

    Attributes:
        kind: the reason: "died", "timeout", or "nonsense" for an answer that is not valid.
    """

    kind = "died"


class RpcDied(RpcFailed):
    """The child process ended during the call."""


class RpcTimeout(RpcFailed):
    """The child process did not answer in time. It was killed, so no late answer can arrive."""

    kind = "timeout"


class RpcNonsense(RpcFailed):
    """The child process sent bytes that are not a valid answer."""

    kind = "nonsense"


@dataclass(frozen=True)
class Limits:
    """Resource limits of a child process.

    Attributes:
        seconds: maximum wall-clock time of one call.
        memory_bytes: maximum address space of the process; None for no limit.
    """

    seconds: float = 60.0
    memory_bytes: int | None = None


class RpcProcess:
    """A child process that runs `python -m MODULE ARGUMENTS…` and answers calls.

    The process is started at the first call. If a call fails, the next call starts a new process.

    Args:
        module: name of the Python module to run. It must call `arguments` and then `serve`.
        arguments: command-line arguments for the module.
        limits: limits on the time of a call and on memory.
    """

    def __init__(self, module: str, arguments: Sequence[str], limits: Limits) -> None:
        self.command = [sys.executable, "-P", "-m", module]
        self.arguments = list(arguments)
        self.limits = limits
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._tether = -1

    @property
    def is_running(self) -> bool:
        """True if the process exists now."""
        return self._process is not None

    def call(self, header: Header, arrays: Arrays | None = None, *, seconds: float = 0) -> Frame:
        """Send a request to the child process and wait for its answer.

        Args:
            header: header of the request, which is sent as JSON.
            arrays: arrays to send, of any shape, by name.
            seconds: time limit of this call; 0 for `limits.seconds`.

        Returns:
            The header and the arrays of the answer.

        Raises:
            RpcFailed: the process died, did not answer in time or sent a malformed answer. The
                process is stopped in all three cases.
        """
        deadline = time.monotonic() + (seconds or self.limits.seconds)
        try:
            self._start()
            assert self._socket is not None
            self._send(encode(header, arrays or {}), deadline)
            return decode(lambda count: self._receive(count, deadline))
        except TimeoutError:
            self.stop()
            raise RpcTimeout(
                f"no response within {seconds or self.limits.seconds:g} s; the process was killed"
            ) from None
        except (EOFError, ConnectionError, BrokenPipeError):
            raise RpcDied(f"the process ended: {self._cause()}") from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int | None:
        """Kill the process and its process group.

        Returns:
            The exit status of the process, or None if no process was running.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        if self._socket is not None:
            self._socket.close()
        os.close(self._tether)
        return process.wait()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.stop()

    def _cause(self) -> str:
        assert self._process is not None
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.stop()
            return "it closed the connection"
        status = self.stop() or 0
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def _start(self) -> None:
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        reader, self._tether = os.pipe()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*self.command, str(theirs.fileno()), str(reader),
                     str(self.limits.memory_bytes or 0), *self.arguments],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), reader), start_new_session=True,
                    env=os.environ | {"PYTHONPATH": module_path()},
                )  # fmt: skip
            finally:
                os.close(reader)
        self._socket = ours
        self.starts += 1

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
        self._socket.sendall(data)

    def _receive(self, count: int, deadline: float) -> bytes:
        assert self._socket is not None
        parts, left = [], count
        while left:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
            part = self._socket.recv(min(left, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def serve(answer: Callable[[Header, dict[str, NDArray[Any]]], tuple[Header, Arrays]]) -> None:
    """Answer calls in the child process until the parent closes the connection.

    `RpcProcess` passes the socket's file descriptor in `sys.argv`. If `answer` raises an exception,
    the parent receives the header `{"error": class, "message": text}`.

    Args:
        answer: function that computes the header and the arrays of an answer from the header and
            the arrays of a request. Arrays may have any shape.
    """
    with socket.socket(fileno=int(sys.argv[1])) as channel:

        def receive(count: int) -> bytes:
            data = bytearray()
            while len(data) < count:
                part = channel.recv(min(count - len(data), 1 << 20))
                if not part:
                    raise EOFError
                data += part
            return bytes(data)

        while True:
            try:
                header, arrays = decode(receive)
            except (EOFError, ConnectionError):
                return
            try:
                reply, results = answer(header, arrays)
            except Exception as error:
                reply, results = {"error": type(error).__name__, "message": str(error)}, {}
            channel.sendall(encode(reply, results))


def arguments() -> list[str]:
    """Apply the limits that the parent set, and return the command-line arguments from the parent.

    A child process must call this function first. It limits the memory, disables core dumps and
    lets the process die with its parent.
    """
    reader, memory = int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        least = least_memory(memory)
        resource.setrlimit(resource.RLIMIT_AS, (least, least))
    die_with_parent(reader)
    return sys.argv[4:]


def least_memory(memory: int) -> int:
    """Return the lower of a memory limit and the limit that already applies to this process.

    An existing limit, for example from `ulimit -v`, cannot be raised.

    Args:
        memory: the requested limit in bytes.

    Returns:
        The limit to set, in bytes.
    """
    limits = [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit >= 0]
    return min([memory, *limits])


def die_with_parent(reader: int) -> None:
    """Let the kernel kill this process when the parent's end of a pipe closes.

    Args:
        reader: file descriptor of the pipe's reading end. The parent holds the writing end.
    """
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    if hasattr(fcntl, "F_SETSIG"):  # Linux. Elsewhere SIGIO is sent, which ends the process
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
    else:
        signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(reader, False)
    try:
        if os.read(reader, 1) == b"":
            os._exit(1)  # the parent was gone before the signal was set up
    except BlockingIOError:
        pass


def encode(header: Header, arrays: Arrays) -> bytes:
    """Serialise a message: two 64-bit lengths, the header as JSON and the arrays as NPZ.

    Args:
        header: the header.
        arrays: arrays of any shape by name. Arrays of objects are stored as text.
    """
    head = json.dumps(header).encode()
    payload = b""
    if arrays:
        buffer = io.BytesIO()
        texts = {name: to_plain_array(array) for name, array in arrays.items()}
        np.savez(buffer, allow_pickle=False, **texts)
        payload = buffer.getvalue()
    lengths = len(head).to_bytes(8, "little") + len(payload).to_bytes(8, "little")
    return lengths + head + payload


def decode(receive: Callable[[int], bytes], parse: Callable[[bytes], Json] = json.loads) -> Frame:
    """Read one message that `encode` serialised from a stream.

    Args:
        receive: function that returns the next bytes of the stream; its argument is the number of
            bytes.
        parse: function that parses the JSON header.

    Returns:
        The header, and the arrays by name. Arrays may have any shape.

    Raises:
        RpcNonsense: the bytes are not a valid message, or they contain pickled objects.
    """
    prologue = receive(_PROLOGUE)
    head, payload = (int.from_bytes(part, "little") for part in (prologue[:8], prologue[8:]))
    if head > MAX_JSON_BYTES or payload > MAX_FRAME_BYTES:
        raise RpcNonsense("the process sent a response with an invalid length")
    try:
        header = parse(receive(head))
        arrays = unpack_arrays(receive(payload)) if payload else {}
    except (ValueError, RecursionError):
        raise RpcNonsense("the process sent bytes that are not a valid response") from None
    if not isinstance(header, dict):
        raise RpcNonsense("the process sent bytes that are not a valid response")
    return header, arrays


def to_plain_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose objects are converted to strings, so that reading needs no pickle."""
    array = np.asarray(array)
    return array.astype(np.str_) if array.dtype == object else array
