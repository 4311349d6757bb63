"""Runs a child process that answers calls within limits, or is killed: for work that may crash.

Both sides exchange frames over a socket: a JSON header and an NPZ payload of plain arrays. Nothing
is pickled, and what the child prints cannot be taken for an answer. The child dies with its parent:
the kernel kills it when the parent's end of a pipe closes, however deep in native code it hangs.
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
    """A call that got no answer; `kind` is `died`, `timeout` or `nonsense`."""

    kind = "died"


class RpcDied(RpcFailed):
    """The process ended during the call."""


class RpcTimeout(RpcFailed):
    """No answer came in time; the process was killed, so none can come late."""

    kind = "timeout"


class RpcNonsense(RpcFailed):
    """What came was no answer."""

    kind = "nonsense"


@dataclass(frozen=True)
class Limits:
    """`seconds` is wall time for one call; `memory_bytes` is address space of the process, None
    for no limit."""

    seconds: float = 60.0
    memory_bytes: int | None = None


class RpcProcess:
    """A process running `python -m module arguments…`, started at the first call and again after
    every one that failed."""

    def __init__(self, module: str, arguments: Sequence[str], limits: Limits) -> None:
        self.command = [sys.executable, "-P", "-m", module]
        self.arguments = list(arguments)
        self.limits = limits
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._tether = -1

    @property
    def running(self) -> bool:
        """Whether there is a process now."""
        return self._process is not None

    def call(self, header: Header, arrays: Arrays | None = None, *, seconds: float = 0) -> Frame:
        """One question, one answer, within `seconds` (default: the limits'). Raises `RpcFailed`;
        the process is gone then. Arrays travel in any shape."""
        deadline = time.monotonic() + (seconds or self.limits.seconds)
        try:
            self._start()
            assert self._socket is not None
            self._send(encode(header, arrays or {}), deadline)
            return decode(lambda count: self._receive(count, deadline))
        except TimeoutError:
            self.stop()
            raise RpcTimeout(
                f"no answer within {seconds or self.limits.seconds:g} s; the process was killed"
            ) from None
        except (EOFError, ConnectionError, BrokenPipeError):
            raise RpcDied(f"the process ended: {self._cause()}") from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int | None:
        """Kill the process and everything it started; returns its exit status."""
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
            return "it closed its connection"
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
    """The child's side: answers calls until the parent hangs up. Exceptions of `answer` go back as
    `{"error": class, "message": text}`. Reads its descriptors from `sys.argv`, see `arguments`.
    Arrays travel in any shape."""
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
    """What the parent passed on; call it first: it also puts the limits in force."""
    reader, memory = int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        least = least_memory(memory)
        resource.setrlimit(resource.RLIMIT_AS, (least, least))
    die_with_parent(reader)
    return sys.argv[4:]


def least_memory(memory: int) -> int:
    """The lower of a limit in bytes and the one this process is under already (`ulimit -v`), which
    cannot be raised."""
    own = [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit >= 0]
    return min([memory, *own])


def die_with_parent(reader: int) -> None:
    """Have the kernel send a deadly signal when the other end of this pipe closes."""
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    if hasattr(fcntl, "F_SETSIG"):  # Linux; elsewhere SIGIO, whose default is to terminate
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
    """A frame: two lengths, the header as JSON, the arrays, in any shape, as NPZ, text in place of
    objects."""
    head = json.dumps(header).encode()
    payload = b""
    if arrays:
        buffer = io.BytesIO()
        texts = {name: plain(array) for name, array in arrays.items()}
        np.savez(buffer, allow_pickle=False, **texts)
        payload = buffer.getvalue()
    lengths = len(head).to_bytes(8, "little") + len(payload).to_bytes(8, "little")
    return lengths + head + payload


def decode(receive: Callable[[int], bytes], parse: Callable[[bytes], Json] = json.loads) -> Frame:
    """The frame that `receive` gives, so many bytes a call, its header parsed by `parse`; arrays in
    any shape. Raises `RpcNonsense` for any other bytes, arrays of objects (pickles) among them, and
    what `receive` raises."""
    prologue = receive(_PROLOGUE)
    head, payload = (int.from_bytes(part, "little") for part in (prologue[:8], prologue[8:]))
    if head > MAX_JSON_BYTES or payload > MAX_FRAME_BYTES:
        raise RpcNonsense("the process answered with an impossible length")
    try:
        header = parse(receive(head))
        arrays = unpack_arrays(receive(payload)) if payload else {}
    except (ValueError, RecursionError):
        raise RpcNonsense("the process answered with bytes that are not an answer") from None
    if not isinstance(header, dict):
        raise RpcNonsense("the process answered with bytes that are not an answer")
    return header, arrays


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """Text in place of objects, in any shape, so that nothing needs unpickling."""
    array = np.asarray(array)
    return array.astype(np.str_) if array.dtype == object else array
