"""Carries calls between a command and a worker, over TLS that knows both ends (`keys`).

A message is a frame of `core.child_process`: a JSON header and plain arrays, no pickle.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.core.child_process import Arrays, Frame, Header, decode, encode
from tilewright.core.files import read_json

CALL, ABOUT, OFFERS, SLOTS = "call", "about", "offers", "slots"
"""Of a header: the name of a call; the call for what a worker is; of its answer the board that it
offers, "" for none, and how many calls it answers at a time."""
UNUSABLE = "unusable"
"""Of an answer's header: why this worker cannot answer at all."""
BEAT_SECONDS = 5.0
"""How often a worker that has a call in hand says that it is there."""
SILENT_SECONDS = 60.0
"""After so long a time without a word the other side is lost."""
_BEAT = "at work"
_CHUNK = 1 << 20


class Channel:
    """One connection, for one thread at a time. What it does raises `OSError` or `EOFError` where
    the other side is gone, and `RpcNonsense` where it says what is no message."""

    def __init__(self, link: ssl.SSLSocket) -> None:
        self._link = link

    def ask(self, header: Header, arrays: Arrays) -> Frame:
        """A call and its answer, arrays in any shape, however long that takes as long as the worker
        is there."""
        self.send(header, arrays)
        while _BEAT in (answer := self.receive())[0]:
            pass
        return answer

    def send(self, header: Header, arrays: Arrays) -> None:
        """One message, arrays in any shape."""
        self._link.sendall(encode(header, arrays))

    def receive(self) -> Frame:
        """The next message, arrays in any shape."""
        return decode(self._read, read_json)

    def beat(self) -> None:
        """Say that an answer is on its way."""
        self.send({_BEAT: True}, {})

    def wait_for(self, seconds: float | None) -> None:
        """From now on nothing said for so long a time is a `TimeoutError`; None waits for ever."""
        self._link.settimeout(seconds)

    @property
    def is_stale(self) -> bool:
        """Whether the other side has hung up on a connection that nothing was asked on."""
        return bool(select.select([self._link], [], [], 0)[0])

    def close(self) -> None:
        """Hang up."""
        self._link.close()

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._link.recv(min(count - len(data), _CHUNK))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def dial(host: str, port: int, context: ssl.SSLContext, seconds: float) -> Channel:
    """A connection to a worker. Raises `OSError`; `ssl.SSLError` among it for keys that do not
    fit."""
    link = socket.create_connection((host, port), timeout=seconds)
    try:
        channel = Channel(context.wrap_socket(link))
    except BaseException:
        link.close()
        raise
    channel.wait_for(SILENT_SECONDS)
    return channel


@contextmanager
def admitted(link: socket.socket, context: ssl.SSLContext, seconds: float) -> Iterator[Channel]:
    """The worker's side of a connection, once the other side has shown its key within a time.
    Raises `OSError`."""
    with link:
        # A command that vanished with its machine is noticed after some minutes.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with context.wrap_socket(link, server_side=True, do_handshake_on_connect=False) as secure:
            _shake_hands(secure, time.monotonic() + seconds)
            channel = Channel(secure)
            channel.wait_for(None)
            yield channel


def _shake_hands(link: ssl.SSLSocket, end: float) -> None:
    """Within a time for all of it: a byte now and then does not prolong it. Raises `OSError`."""
    while (left := end - time.monotonic()) > 0:
        link.setblocking(False)
        try:
            return link.do_handshake()
        except ssl.SSLWantReadError:
            select.select([link], [], [], left)
        except ssl.SSLWantWriteError:
            select.select([], [link], [], left)
    raise TimeoutError("it has shown no key in time")
