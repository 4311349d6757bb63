"""Connects to a Dask cluster within a time limit, and gives up one that stays unreachable."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.core.child_process import RpcDied
from tilewright.core.errors import TilewrightError

if TYPE_CHECKING:
    from distributed import Client, Future

REACH_SECONDS = 10.0
"""For a scheduler to answer."""
WORKER_SECONDS = 60.0
"""For a worker to be there: at first, and again once all are gone."""
BOARD = "board:"
"""How the names of resources begin that are boards. What needs none is not done beside one."""
LOOK_SECONDS = 2.0
"""How often a call that takes longer looks whether the cluster is still there."""
_FRESH_SECONDS = 5.0  # so long it is believed who the workers are
_ADDRESS = re.compile(r"(tcp|tls)://[^\s/@]+:\d{1,5}")
_GONE = "start it and the same command again: the ledger has all that was measured"


W = TypeVar("W")


class ClusterError(TilewrightError):
    """A cluster that cannot be used: no Dask here, no scheduler or worker there, or workers with
    something else than the command."""


class _Stranded(Exception):
    """A call that only workers may answer which are all gone, while others came."""


def check_address(address: str) -> None:
    """Raises `ClusterError` for anything but `tcp://HOST:PORT` and `tls://HOST:PORT`."""
    if not _ADDRESS.fullmatch(address):
        raise ClusterError(
            f"--cluster {address}: write tcp://HOST:PORT, as 'dask scheduler' prints it, or "
            "tls://HOST:PORT"
        )


class Cluster:
    """A connection to a scheduler, for all threads of this process."""

    def __init__(self, address: str, client: Client) -> None:
        self.address = address
        self.client = client
        self._looking = threading.Lock()
        self._looked = 0.0  # when
        self._workers: dict[str, dict[str, Any]] = {}

    def workers(self) -> dict[str, dict[str, Any]]:
        """What the scheduler knows of each worker, by its address, as of some seconds ago at most.
        Raises `ClusterError`."""
        with self._looking:
            if time.monotonic() - self._looked > _FRESH_SECONDS:
                self._workers = self._identity()
                self._looked = time.monotonic()
            return self._workers

    def offered(self, prefix: str) -> dict[str, list[str]]:
        """The resources whose names begin so, with the addresses of the workers that offer each.
        Raises `ClusterError`."""
        found: dict[str, list[str]] = {}
        for address, about in self.workers().items():
            for name in about["resources"]:
                if name.startswith(prefix):
                    found.setdefault(name, []).append(address)
        return found

    def slots(self, resource: str = "") -> int:
        """How many calls can run at a time: threads of the workers that have no board, or of a
        resource how many there are. Raises `ClusterError`."""
        workers = self.workers()
        if resource:
            return sum(int(each["resources"].get(resource, 0)) for each in workers.values())
        return sum(int(workers[address]["nthreads"]) for address in self._free())

    def call(self, function: Callable[..., Any], *arguments: Any, resource: str = "") -> Any:
        """What a function of this package, known to the workers by its name, gives on one of them
        that is free, or has a `resource` that is. If its worker dies it is called again elsewhere:
        it must depend on its arguments alone. Raises `RpcDied` where several workers died of it,
        `ClusterError`, and what the function raises."""
        from distributed.scheduler import KilledWorker

        resources = {resource: 1} if resource else None
        while True:
            free = None if resource or not self.offered(BOARD) else self._wait_for(self._free)
            future = self.client.submit(
                function, *arguments, pure=False, resources=resources, workers=free
            )
            try:
                return self._result(future, resource, free)
            except _Stranded:
                continue
            except KilledWorker as error:
                raise RpcDied(f"the workers ended that did it: {error}") from None
            finally:
                future.release()

    def _free(self) -> list[str]:
        """The workers without a board."""
        return [
            address for address, about in self.workers().items()
            if not any(name.startswith(BOARD) for name in about["resources"])
        ]  # fmt: skip

    def wait_for_worker(self) -> None:
        """Raises `ClusterError` if for `WORKER_SECONDS` there is none."""
        self._wait_for(self.workers)

    def _wait_for(self, look: Callable[[], W]) -> W:
        end = time.monotonic() + WORKER_SECONDS
        while not (found := look()):
            if time.monotonic() > end:
                raise ClusterError(self._nobody(""))
            time.sleep(0.1)
            self._looked = 0.0
        return found

    def _result(self, future: Future, resource: str, free: list[str] | None) -> Any:
        # Dask's own way to wait for a time is a race that ends in an `UnboundLocalError`.
        waiting = asyncio.run_coroutine_threadsafe(_value(future), self.client.loop.asyncio_loop)
        seen = time.monotonic()
        try:
            while not wait([waiting], LOOK_SECONDS).done:
                if self._looks_alive(resource):
                    seen = time.monotonic()
                    if free is not None and not set(free) & set(self._free()):
                        raise _Stranded
                elif time.monotonic() - seen > WORKER_SECONDS:
                    raise ClusterError(self._nobody(resource))
            return waiting.result()
        except CancelledError:
            raise ClusterError(f"the scheduler at {self.address} was lost; {_GONE}") from None
        finally:
            waiting.cancel()

    def _looks_alive(self, resource: str) -> bool:
        try:
            self._looked = 0.0
            return bool(self.slots(resource))
        except ClusterError:
            return False

    def _nobody(self, resource: str) -> str:
        what = f"worker that offers {resource}" if resource else "worker"
        return (
            f"the cluster at {self.address} has no {what} for {WORKER_SECONDS:g} s; start one "
            f"({'tilewright board serve' if resource else f'dask worker {self.address}'}) and the "
            "same command again: it resumes from the ledger"
        )

    def _identity(self) -> dict[str, dict[str, Any]]:
        try:
            about = self.client.sync(self.client.scheduler.identity, n_workers=-1)
        except Exception as error:  # of the connection; Dask has no class for them
            raise ClusterError(
                f"the scheduler at {self.address} does not answer ({error}); {_GONE}"
            ) from None
        return dict(about["workers"])


async def _value(future: Future) -> Any:
    try:
        return await future
    except asyncio.CancelledError as error:  # in no thread's way
        raise CancelledError(str(error)) from None


_connecting = threading.Lock()
_connected: dict[str, Cluster] = {}


def connect(address: str) -> Cluster:
    """The connection of this process to a scheduler that has a worker; made once, and again when it
    is lost. Raises `ClusterError`."""
    check_address(address)
    with _connecting:
        found = _connected.get(address)
        if found is None or found.client.status != "running":
            try:
                client = _client(address)
            except ClusterError:
                if found is None:
                    raise
                raise ClusterError(f"the scheduler at {address} was lost; {_GONE}") from None
            found = _connected[address] = Cluster(address, client)
            found.wait_for_worker()
        return found


def _client(address: str) -> Client:
    try:
        import dask
        from distributed import Client
    except ImportError as error:
        raise ClusterError(
            f"--cluster {address} needs Dask ({error}): pip install 'tilewright[cluster]', here "
            "and on the workers"
        ) from None
    # Programs travel with the calls that run them.
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"})
    try:
        return Client(address, timeout=REACH_SECONDS, set_as_default=False, name="tilewright")
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address} within {REACH_SECONDS:g} s "
            f"({_cause(error)}); start one with 'dask scheduler', and let this machine reach it"
        ) from None


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]
