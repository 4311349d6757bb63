"""Answers the calls of commands until the process is ended."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Protocol

from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header, RpcNonsense
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.channel import (
    ABOUT,
    BEAT_SECONDS,
    CALL,
    SLOTS,
    UNUSABLE,
    Channel,
    admitted,
)
from tilewright.targets.cluster.keys import worker_context, worker_keys

HANDSHAKE_SECONDS = 10.0
"""For a stranger to show a key."""
MOST_LINKS = 256
"""Connections at a time; further ones are hung up on."""


class Service(Protocol):
    """What a worker does. `slots` is how many calls it answers at a time, each in a thread that it
    has for itself."""

    slots: int

    def about(self) -> Header:
        """What it is, with `channel.OFFERS`; asked at any time, in any thread."""
        ...

    def answer(self, header: Header, arrays: dict[str, NDArray[Any]]) -> tuple[Header, Arrays]:
        """What a call comes to, arrays in any shape. What it raises is the command's to see as
        `UNUSABLE`."""
        ...


_Call = tuple["Future[tuple[Header, Arrays]]", Header, dict[str, NDArray[Any]]]


def serve(service: Service, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Listen there, 0 for any free port, until a `KeyboardInterrupt`; `ready` is told the address.
    Only holders of a command's key are answered. Raises `ClusterError`."""
    context = worker_context(worker_keys(host))
    calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
    for _ in range(service.slots):
        threading.Thread(target=_work, args=(service, calls), daemon=True).start()
    room = threading.Semaphore(MOST_LINKS)

    def converse(link: socket.socket) -> None:
        try:
            with admitted(link, context, HANDSHAKE_SECONDS) as channel:
                while True:
                    header, arrays = channel.receive()
                    _reply(service, calls, channel, header, arrays)
        except (OSError, EOFError, RpcNonsense):
            pass  # gone, or nobody who belongs here
        finally:
            room.release()

    with suppress(KeyboardInterrupt), _listening(host, port) as listener:
        ready(f"{host}:{listener.getsockname()[1]}")
        while True:
            try:
                link, _ = listener.accept()
            except ConnectionError:
                continue  # it hung up in the queue
            if room.acquire(blocking=False):
                threading.Thread(target=converse, args=(link,), daemon=True).start()
            else:
                link.close()


def _work(service: Service, calls: queue.SimpleQueue[_Call]) -> None:
    while True:
        answered, header, arrays = calls.get()
        if not answered.set_running_or_notify_cancel():
            continue
        try:
            answered.set_result(service.answer(header, arrays))
        except Exception as error:
            said = " ".join(str(error).split())
            answered.set_result(({UNUSABLE: f"{type(error).__name__}: {said}"}, {}))


def _reply(
    service: Service,
    calls: queue.SimpleQueue[_Call],
    channel: Channel,
    header: Header,
    arrays: dict[str, NDArray[Any]],
) -> None:
    if header.get(CALL) == ABOUT:
        channel.send({**service.about(), SLOTS: service.slots}, {})
        return
    answered: Future[tuple[Header, Arrays]] = Future()
    calls.put((answered, header, arrays))
    try:
        while not wait([answered], BEAT_SECONDS).done:
            channel.beat()
    except BaseException:
        answered.cancel()  # nobody waits for it any more
        raise
    channel.send(*answered.result())


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(
            f"cannot listen on {host}:{port}: {reason.lower()}; choose another --host or --port"
        ) from None
