"""Connects to workers within a time limit, and gives up those that stay unreachable.

Which of them answers a call does not matter: it depends on its arguments alone.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.core.child_process import Arrays, Frame, Header, RpcNonsense
from tilewright.core.files import as_int, as_text
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.channel import (
    ABOUT,
    CALL,
    OFFERS,
    SLOTS,
    UNUSABLE,
    Channel,
    dial,
)
from tilewright.targets.cluster.keys import VARIABLE, command_context, keys_folder

REACH_SECONDS = 10.0
"""For a worker to answer at first."""
WORKER_SECONDS = 60.0
"""For one to be there again once all are gone."""
LOOK_SECONDS = 2.0
"""How often those that are away are looked for."""
MOST_LOSSES = 3
"""Workers that may be lost with the same call in hand."""
BOARD = "board:"
"""How the names of what is offered begin that are boards. What needs none is not done there."""
_ADDRESS = re.compile(r"(?:tls://)?([^\s/@,:]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")


def check_address(address: str) -> list[tuple[str, int]]:
    """Host and port of each worker. Raises `ClusterError` for anything but `HOST:PORT`, several
    with commas."""
    found = [_ADDRESS.fullmatch(part.strip()) for part in address.split(",")]
    if not all(found):
        raise ClusterError(
            f"--cluster {address}: write HOST:PORT, as 'tilewright cluster serve' prints it, of "
            "several workers with commas"
        )
    return [(each[1].strip("[]"), int(each[2])) for each in found if each is not None]


@dataclass
class _Worker:
    """A worker by its address. `about` is what it says of itself, empty while it is away; `cause`
    why it is; `calls` are ours that it has in hand, `idle` connections that nothing is asked on."""

    host: str
    port: int
    about: Header = field(default_factory=dict)
    cause: str = ""
    calls: int = 0
    idle: list[Channel] = field(default_factory=list)

    @property
    def offers(self) -> str:
        return as_text(self.about[OFFERS])

    @property
    def slots(self) -> int:
        return as_int(self.about[SLOTS])

    def leave(self, cause: str) -> None:
        """It is away: connections to it are dead."""
        self.about, self.cause = {}, cause
        while self.idle:
            self.idle.pop().close()


class Cluster:
    """The workers at an address, for all threads of this process."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._keys = keys_folder()
        self._context = command_context(self._keys)
        self._workers = [_Worker(host, port) for host, port in check_address(address)]
        self._changed = threading.Condition()

    def offered(self, prefix: str) -> dict[str, list[Header]]:
        """By the name of what is offered, of those that begin so, what each worker says of itself
        that offers it."""
        found: dict[str, list[Header]] = {}
        for each in self._present():
            if each.offers.startswith(prefix):
                found.setdefault(each.offers, []).append(each.about)
        return found

    def slots(self, offer: str = "") -> int:
        """How many calls can be answered at a time: by the workers without a board, or by what is
        offered under a name."""
        return sum(each.slots for each in self._present() if each.offers == offer)

    def call(self, header: Header, arrays: Arrays, offer: str = "") -> Frame:
        """What a worker answers that is free, or that offers what is wanted; arrays in any shape.
        If it is lost with the call in hand, another is asked. Raises `ClusterError`, also for what
        the worker calls `UNUSABLE`, and `RpcNonsense`."""
        losses = 0
        while losses < MOST_LOSSES:
            with self._held(offer) as worker:
                try:
                    channel = self._channel(worker)
                except OSError as error:
                    self._lose(worker, error)
                    continue
                try:
                    reply, results = self._ask(worker, channel, header, arrays)
                except (OSError, EOFError) as error:
                    self._lose(worker, error)
                    losses += 1
                    continue
            if UNUSABLE in reply:
                raise ClusterError(
                    f"the worker at {worker.host}:{worker.port} cannot be used: {reply[UNUSABLE]}"
                )
            return reply, results
        raise ClusterError(
            f"{MOST_LOSSES} workers of {self.address} were lost with the same call in hand; see "
            "what they said, and start the same command again: the ledger has all that was measured"
        )

    def look(self) -> None:
        """Ask all workers what they are, those that are there already, too."""
        with ThreadPoolExecutor(len(self._workers)) as pool:
            list(pool.map(self._look_at, self._workers))

    def wait_for_worker(self) -> None:
        """Raises `ClusterError` if none answers for `REACH_SECONDS`, or none takes our keys."""
        end = time.monotonic() + REACH_SECONDS
        while True:
            self.look()
            if self._present():
                break
            refused = all(each.cause.startswith("the keys") for each in self._workers)
            if refused or time.monotonic() > end:
                raise ClusterError(self._nobody())
            time.sleep(0.2)
        threading.Thread(target=self._look_again, daemon=True).start()

    def _present(self) -> list[_Worker]:
        with self._changed:
            return [each for each in self._workers if each.about]

    @contextmanager
    def _held(self, offer: str) -> Iterator[_Worker]:
        """A slot of a worker. Raises `ClusterError` if for `WORKER_SECONDS` there is none."""
        end = time.monotonic() + WORKER_SECONDS
        with self._changed:
            while True:
                there = [each for each in self._workers if each.about and each.offers == offer]
                free = [each for each in there if each.calls < each.slots]
                if free:
                    break
                if there:
                    end = time.monotonic() + WORKER_SECONDS
                elif time.monotonic() > end:
                    raise ClusterError(
                        f"the cluster at {self.address} has no worker "
                        f"{f'that offers {offer} ' if offer else ''}for {WORKER_SECONDS:g} s; "
                        f"start it ({'tilewright board serve' if offer else _START}) and the same "
                        "command again: it resumes from the ledger"
                    )
                self._changed.wait(LOOK_SECONDS)
            worker = min(free, key=lambda each: each.calls / each.slots)
            worker.calls += 1
        try:
            yield worker
        finally:
            with self._changed:
                worker.calls -= 1
                self._changed.notify_all()

    def _channel(self, worker: _Worker) -> Channel:
        """A connection that nobody else uses. Raises `OSError`."""
        with self._changed:
            while worker.idle:
                channel = worker.idle.pop()
                if not channel.is_stale:
                    return channel
                channel.close()
        return dial(worker.host, worker.port, self._context, REACH_SECONDS)

    def _ask(self, worker: _Worker, channel: Channel, header: Header, arrays: Arrays) -> Frame:
        try:
            answer = channel.ask(header, arrays)
        except BaseException:  # what came on it later would be the answer to this
            channel.close()
            raise
        with self._changed:
            worker.idle.append(channel)
        return answer

    def _look_at(self, worker: _Worker) -> None:
        try:
            about, _ = self._ask(worker, self._channel(worker), {CALL: ABOUT}, {})
            as_text(about[OFFERS]), as_int(about[SLOTS])
        except (OSError, EOFError, RpcNonsense, ValueError, KeyError) as error:
            self._lose(worker, error)
        else:
            with self._changed:
                worker.about, worker.cause = about, ""
                self._changed.notify_all()

    def _look_again(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            for each in self._workers:
                if not each.about:
                    self._look_at(each)

    def _lose(self, worker: _Worker, error: Exception) -> None:
        refused = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        with self._changed:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            worker.leave(f"the keys of {self._keys} do not fit: {said}" if refused else said)

    def _nobody(self) -> str:
        causes = "; ".join(f"{e.host}:{e.port}: {e.cause}" for e in self._workers)
        return (
            f"no worker answers at {self.address} within {REACH_SECONDS:g} s ({causes}); start one "
            f"with '{_START}', let this machine reach it, and give both the same keys ({VARIABLE})"
        )


_START = "tilewright cluster serve"
_connecting = threading.Lock()
_connected: dict[tuple[int, str], Cluster] = {}


def connect(address: str) -> Cluster:
    """The connection of this process to the workers at an address, made once. Raises
    `ClusterError`."""
    with _connecting:
        key = (os.getpid(), address)  # a fork has none of the connections
        if (found := _connected.get(key)) is None:
            found = Cluster(address)
            found.wait_for_worker()
            _connected[key] = found
        return found
