"""Submits function calls to a Dask cluster, and translates Dask's errors into one sentence.

Dask schedules the calls, repeats the calls of a worker that died, and shares the workers among
several commands. This module adds three features: connections that survive a restart of the
scheduler, a time limit for waiting if no worker is left, and workers with boards, which only
receive calls that need their board.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.core.files import Json
from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cluster import ClusterError

if TYPE_CHECKING:
    import dask
    import distributed
else:
    dask, distributed = lazy_module("dask"), lazy_module("distributed")

REACH_SECONDS = 10.0
"""Timeout in seconds for connecting to a scheduler for the first time."""
WORKER_SECONDS = 60.0
"""Maximum time in seconds to wait while there is no scheduler or no worker. Dask's setting
`no-workers-timeout` replaces it."""
LOOK_SECONDS = 2.0
"""Interval in seconds between two checks of a waiting call. Each check tests whether a worker still
exists that can run the call."""
SEEN_SECONDS = 1.0
"""Time in seconds for which the list of workers is cached. The cached list is used to divide work
and to choose workers for a call."""
RETRIES = 3
"""Maximum number of times that Dask repeats a call that raised an error, for example because a disk
was full."""
MOST_LOSSES = 3
"""Maximum number of times that a call is submitted again because the scheduler lost it."""
MOST_THREADS = 256
BOARD_RESOURCE = "board"
"""Dask resource of a worker that is connected to a board. Such a worker runs only calls that need
the board."""
BOARD = "board:"
"""Prefix of two names: the Dask resource for a particular board, and the name of a board's
target."""
KEYS_STEP = "'tilewright cluster keys DIR' creates keys and prints Dask's settings for them"
_ADDRESS = re.compile(r"tls://(?:[^\s/@,:]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
_LOCAL = re.compile(r"local:([1-9]\d{0,2})")

_IGNORE_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""Python code that each worker process of `local:N` runs when it starts. The worker then ignores
Ctrl-C. Only the command reacts to Ctrl-C, and it ends the worker processes."""
_NOBODY = "tls://0.0.0.0:1"
"""Address that no worker has. A call that is restricted to this address waits. An adaptive cluster
sees the waiting call and starts a worker."""
_LOST = (TimeoutError, CancelledError, OSError)
"""Exceptions that Dask raises if a call has finished, but its result was lost together with the
worker that held it."""

Function = Callable[..., Any]


def check_address(address: str) -> None:
    """Check the value of the option `--cluster`.

    Raises:
        ClusterError: the value is neither `tls://HOST:PORT` nor `local:N`.
    """
    if _ADDRESS.fullmatch(address) or _LOCAL.fullmatch(address):
        return
    raise ClusterError(
        f"--cluster {address}: write tls://HOST:PORT, the address of a Dask scheduler, or "
        "local:N for N processes on this machine (connections without TLS are refused)"
    )


def check_scheduler_address(address: str) -> None:
    """Check the value of an option that must be the address of a Dask scheduler.

    Args:
        address: the value.

    Raises:
        ClusterError: the value is not `tls://HOST:PORT`.
    """
    if not _ADDRESS.fullmatch(address):
        raise ClusterError(
            f"--cluster {address}: write tls://HOST:PORT, the address of a Dask scheduler"
        )


def check_answer(cluster: str, answer: Any) -> Any:
    """Return the answer of a worker, unless the answer is an error message.

    Args:
        cluster: address of the cluster, for the error message.
        answer: the answer. A string is the reason why the worker cannot execute the call.

    Raises:
        ClusterError: the answer is a string.
    """
    if isinstance(answer, str):
        raise ClusterError(f"a worker of {cluster} cannot do the work of this command: {answer}")
    return answer


def local_cluster(processes: int) -> str:
    """Return the value of `--cluster` for a number of local processes.

    Args:
        processes: number of processes.

    Returns:
        `local:N`; "" for a single process, which needs no cluster.
    """
    return f"local:{processes}" if processes > 1 else ""


def cluster_for(address: str, calls: int) -> str:
    """Return the value of `--cluster` to use for a given number of calls.

    A local cluster gets at most as many processes as there are calls. A single call runs in this
    process. The addresses of other clusters are returned unchanged.

    Args:
        address: value of `--cluster` that the user chose.
        calls: number of calls.
    """
    local = _LOCAL.fullmatch(address)
    return address if local is None else local_cluster(min(int(local[1]), calls))


class Cluster:
    """The connection of this process to a Dask cluster, which all threads of the process may use.

    Args:
        address: `tls://HOST:PORT` of a Dask scheduler, or `local:N`.

    Raises:
        ClusterError: the scheduler cannot be reached, or the certificates do not match.
    """

    def __init__(self, address: str) -> None:
        check_address(address)
        self.address = address
        self._reconnecting = threading.Lock()
        silence_dask()
        self._seen: tuple[float, Mapping[str, Mapping[str, Any]]] = (float("-inf"), {})
        self._local = _start_local(address)
        self._client = self._connect()

    def call(self, function: Function, *arguments: Any, board: str = "") -> Any:
        """Call a function on a worker and return its result.

        The duration of the call is not limited.

        Args:
            function: a module-level function of this package.
            arguments: JSON values, bytes and plain arrays.
            board: name of the board that the call needs; "" for a call that needs none.

        Raises:
            ClusterError: there is no worker for the call, the call crashed several workers, or the
                function raised an error each time it was called.
        """
        return self._call(threading.Event(), board, function, arguments)

    def call_each(
        self, function: Function, calls: Iterable[Sequence[Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Call a function many times, and yield each result when it is available.

        At most two calls per slot are submitted at a time, so that `calls` is consumed lazily.

        Args:
            function: a module-level function of this package.
            calls: arguments of each call.

        Yields:
            Index and result of a finished call, in the order in which the calls finish.

        Raises:
            ClusterError: as for `call`.
        """
        stop, numbered = threading.Event(), enumerate(calls)
        under_way: dict[Future[Any], int] = {}
        with ThreadPoolExecutor(MOST_THREADS) as pool:
            try:
                while True:
                    room = min(MOST_THREADS, 2 * max(1, self.slots())) - len(under_way)
                    for place, arguments in islice(numbered, max(0, room)):
                        future = pool.submit(self._call, stop, "", function, arguments)
                        under_way[future] = place
                    if not under_way:
                        return
                    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                        yield under_way.pop(future), future.result()
            finally:
                stop.set()

    def call_everywhere(self, function: Function, *arguments: Any) -> None:
        """Call a function once on every worker and wait for it, but ignore its errors.

        If a worker has a problem, later calls on it raise the error.

        Args:
            function: a module-level function of this package.
            arguments: arguments of the function, as for `call`.

        Raises:
            ClusterError: the scheduler cannot be reached.
            TimeoutError: the calls have not finished after `WORKER_SECONDS`.
        """
        client = self._usable_client()
        futures = [
            client.submit(function, *arguments, pure=False, workers=[worker])
            for worker in self._workers(client)
        ]
        distributed.wait(futures, timeout=WORKER_SECONDS)

    def slots(self) -> int:
        """Return the number of calls that the cluster can run at the same time.

        Workers with a board do not count, because they only run calls for their board.
        """
        workers = self._workers(None, SEEN_SECONDS)
        return sum(_threads(worker) for worker in workers.values() if not _boards(worker))

    def boards(self) -> dict[str, list[str]]:
        """Return the boards of the cluster.

        Returns:
            Addresses of the workers that are connected to a board, by the name of the board.
        """
        addresses: dict[str, list[str]] = {}
        for address, worker in self._workers().items():
            for name in _boards(worker):
                addresses.setdefault(name, []).append(address)
        return addresses

    def ask(self, function: Function, *arguments: Any, workers: Sequence[str]) -> dict[str, Any]:
        """Call a function on given workers immediately, even if they are busy with other calls.

        Args:
            function: a module-level function of this package.
            arguments: arguments of the function.
            workers: addresses of the workers.

        Returns:
            The result of each worker, by address.

        Raises:
            ClusterError: a worker does not answer, or the function raises an exception there.
        """
        try:
            answers: dict[str, Any] = self._client.run(function, *arguments, workers=list(workers))
        except Exception as error:
            raise ClusterError(
                f"a worker of {self.address} does not respond: {_one_line(error)}"
            ) from None
        return answers

    def close(self) -> None:
        """Close the connection, and end the processes of a local cluster."""
        with suppress(Exception):
            self._client.close()
        if self._local is not None:
            with suppress(Exception):
                self._local.close()

    # -- one call ------------------------------------------------------------------------------

    def _call(
        self, stop: threading.Event, board: str, function: Function, arguments: Sequence[Any]
    ) -> Any:
        for _ in range(MOST_LOSSES + 1):
            client = self._usable_client()
            among = self._allowed_workers(client, board)
            try:
                future = client.submit(
                    function, *arguments,
                    pure=False,  # otherwise Dask would reuse the result of an equal call
                    retries=RETRIES,
                    resources={BOARD + board: 1} if board else None,
                    workers=among or None,
                )  # fmt: skip
            except Exception as error:  # perhaps the connection was closed meanwhile
                if client.status == "running":
                    raise ClusterError(f"Dask rejects the call: {_one_line(error)}") from None
                continue
            try:
                if self._wait_for_call(client, future, board, among, stop):
                    with suppress(*_LOST):
                        return future.result(timeout=_patience())
            finally:
                self._forget(future)
        raise ClusterError(
            f"the scheduler at {self.address} lost the same call {MOST_LOSSES + 1} times; "
            "see its log, then repeat the command to resume from the recorded measurements"
        )

    def _wait_for_call(
        self, client: distributed.Client, future: distributed.Future, board: str,
        among: Sequence[str], stop: threading.Event,
    ) -> bool:  # fmt: skip
        """Wait until a call finishes or has to be submitted again.

        A call has to be submitted again if the scheduler was restarted, or if all workers that may
        execute the call are gone.

        Args:
            client: connection to the scheduler.
            future: the call.
            board: name of the board that the call needs; empty for none.
            among: addresses of the workers that may execute the call; empty if all may.
            stop: set if the command is stopped.

        Returns:
            True if the call finished; False if it has to be submitted again.

        Raises:
            ClusterError: the call failed, no worker can execute it, or the command was stopped.
        """
        end = time.monotonic() + _patience()
        while True:
            with suppress(TimeoutError):
                future.exception(timeout=LOOK_SECONDS)
            if future.status == "finished":
                return True
            if future.status == "error":
                raise ClusterError(self._failure(future.exception())) from None
            if stop.is_set():
                raise ClusterError("the command was stopped")
            if future.status in ("cancelled", "lost") or client.status != "running":
                return False
            able = self._able_workers(client, board)
            if able:
                end = time.monotonic() + _patience()
                if among and not set(among) & set(able):
                    return False
            elif time.monotonic() > end:
                raise ClusterError(self._no_worker_message(board))

    def _forget(self, future: distributed.Future) -> None:
        """Cancel a call, or release its result, so that the scheduler no longer keeps it.

        Args:
            future: the call.
        """
        with suppress(Exception):
            if future.status == "pending":
                future.cancel()
            else:
                future.release()

    def _failure(self, error: BaseException) -> str:
        """Convert the exception of a call to an error message for the user.

        Args:
            error: exception that the call raised on a worker or in Dask.
        """
        said = _one_line(error)
        cause = error.__cause__ or error
        if isinstance(error, distributed.KilledWorker):
            return (
                f"the same batch crashed {error.allowed_failures + 1} workers of "
                f"{self.address}, because memory ran out or a program crashed; see the "
                "workers' logs, or use --isolate SECONDS, so that only the program that "
                "crashes fails"
            )
        if "deserialization of the task graph" in said or isinstance(cause, ImportError):
            return (
                "Tilewright is not installed at the scheduler or a worker of "
                f"{self.address}, or has another version ({_one_line(cause)}); install the "
                "version of this command on all of them"
            )
        return f"a call failed at a worker of {self.address}: {said}; see the worker's log"

    def _allowed_workers(self, client: distributed.Client, board: str) -> list[str]:
        """Return the addresses of the workers that may execute a call; empty if all may.

        A call that needs no board must not run on a worker with a board. It would disturb
        measurements on the board, and the worker's machine may have no compiler.

        Args:
            client: connection to the scheduler.
            board: name of the board that the call needs; empty for none.
        """
        if board:
            return []
        workers = self._workers(client, SEEN_SECONDS)
        able = [address for address, worker in workers.items() if not _boards(worker)]
        return (able or [_NOBODY]) if len(able) < len(workers) else []

    def _able_workers(self, client: distributed.Client, board: str) -> list[str]:
        return [
            address
            for address, worker in self._workers(client).items()
            if (board in _boards(worker) if board else not _boards(worker))
        ]

    def _workers(
        self, client: distributed.Client | None = None, age: float = 0.0
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the scheduler's information about each worker, by the worker's address.

        Args:
            client: connection to the scheduler; None for the current one.
            age: maximum age in seconds of a cached result.

        Returns:
            Information by address; empty if the scheduler cannot be reached.
        """
        now = time.monotonic()
        if now - self._seen[0] > age:
            try:
                result = (client or self._usable_client()).scheduler_info()["workers"]
            except (OSError, RuntimeError, KeyError):
                result = {}
            self._seen = (now, result)
        return self._seen[1]

    # -- the connection ------------------------------------------------------------------------

    def _usable_client(self) -> distributed.Client:
        """Return a connected client, after waiting for the scheduler or reconnecting if necessary.

        Raises:
            ClusterError: the scheduler stays unreachable.
        """
        end = time.monotonic() + _patience()
        while True:
            client = self._client
            if client.status == "running":
                return client
            if client.status == "closed":
                with self._reconnecting:
                    if self._client is client:
                        with suppress(ClusterError):
                            self._client = self._connect()
                            continue
            if time.monotonic() > end:
                raise ClusterError(
                    f"the scheduler at {self.address} has been unreachable for "
                    f"{_patience():g} s; start it and its workers again, then repeat the "
                    "command to resume from the recorded measurements"
                )
            time.sleep(0.2)

    def _connect(self) -> distributed.Client:
        try:
            if self._local is not None:
                return distributed.Client(self._local, set_as_default=False)
            return distributed.Client(
                self.address, security=dask_security("client"), timeout=REACH_SECONDS,
                set_as_default=False, name="tilewright",
            )  # fmt: skip
        except ClusterError:
            raise
        except Exception as error:
            raise ClusterError(_unreachable_message(self.address, error)) from None

    def _no_worker_message(self, board: str) -> str:
        start = "'tilewright board serve'" if board else "'dask worker'"
        offering = f"that offers {BOARD}{board} " if board else ""
        return (
            f"the cluster at {self.address} has had no worker {offering}for {_patience():g} "
            f"s; start one ({start}), then repeat the command to resume from the recorded "
            "measurements"
        )


def dask_security(role: str) -> distributed.Security:
    """Return Dask's security settings, and check that they name a CA and a certificate.

    Args:
        role: "client" for commands, "worker" for a worker.

    Raises:
        ClusterError: a setting is missing, or its file cannot be read.
    """
    security = distributed.Security(require_encryption=True)
    settings = {
        "CA_FILE": security.tls_ca_file,
        f"{role.upper()}__CERT": getattr(security, f"tls_{role}_cert"),
    }
    for name, value in settings.items():
        variable = f"DASK_DISTRIBUTED__COMM__TLS__{name}"
        if not value:
            raise ClusterError(f"{variable} is not set: {KEYS_STEP}")
        if not Path(value).is_file():
            raise ClusterError(f"{variable}: the file {value} does not exist; {KEYS_STEP}")
    try:
        security.get_connection_args(role)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"Dask's TLS settings name no key that matches the certificate ({error}); {KEYS_STEP}"
        ) from None
    return security


_connecting = threading.Lock()
_connected: dict[tuple[int, str], Cluster] = {}


def connect(address: str) -> Cluster:
    """Return the connection of this process to a cluster.

    The connection is created at the first call for an address, and is shared by later calls.

    Args:
        address: `tls://HOST:PORT` of a Dask scheduler, or `local:N`.

    Raises:
        ClusterError: the cluster cannot be used.
    """
    with _connecting:
        key = (os.getpid(), address)  # connections do not survive a fork
        if (result := _connected.get(key)) is None:
            result = _connected[key] = Cluster(address)
        return result


def connect_early(address: str, function: Function, *arguments: Any) -> None:
    """Connect to a cluster before the connection is needed.

    The processes of `local:N` start in the background. If that fails, a later call of `connect`
    raises the error.

    Args:
        address: `tls://HOST:PORT` of a Dask scheduler, or `local:N`.
        function: a module-level function that prepares each process of `local:N` for its calls. It
            is not called for other clusters.
        arguments: arguments of the function, as for `Cluster.call`.

    Raises:
        ClusterError: the scheduler cannot be used.
    """
    if _LOCAL.fullmatch(address) is None:
        connect(address)
        return

    def start() -> None:
        with suppress(Exception):  # the command may have ended meanwhile
            connect(address).call_everywhere(function, *arguments)

    threading.Thread(target=start, daemon=True).start()


def _start_local(address: str) -> distributed.LocalCluster | None:
    """Start the processes of `local:N`, to which no other program can connect.

    Returns:
        The local cluster; None if the address is not `local:N`.

    Raises:
        ClusterError: the processes cannot be started.
    """
    local = _LOCAL.fullmatch(address)
    if local is None:
        return None
    quiet: dict[str, Json] = {
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.dashboard.status.task-stream-length": 0,
    }
    try:
        with dask.config.set(quiet):
            return distributed.LocalCluster(
                n_workers=int(local[1]), threads_per_worker=1, processes=True,
                host="127.0.0.1", protocol="tls",
                security=distributed.Security.temporary(),  # keys that exist only in memory
                dashboard_address="127.0.0.1:0", worker_dashboard_address="127.0.0.1:0",
                memory_limit=0, preload=[_IGNORE_CTRL_C], silence_logs=logging.CRITICAL,
            )  # fmt: skip
    except Exception as error:
        raise ClusterError(
            f"--cluster {address}: the worker processes cannot be started: {_one_line(error)}"
        ) from None


def silence_dask() -> None:
    """Suppress Dask's log messages, because a command reports problems as errors."""
    _ = distributed.Client  # importing the module sets log levels, which are overwritten below
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("distributed."):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _patience() -> float:
    """Return the maximum time in seconds to wait for a worker or the scheduler.

    A user can increase the time in Dask's settings, because a job queue may need some time to start
    a worker.
    """
    named = dask.config.get("distributed.scheduler.no-workers-timeout", default=None)
    if named is None:
        return WORKER_SECONDS
    return float(dask.utils.parse_timedelta(named))


def _boards(worker: Mapping[str, Any]) -> list[str]:
    """Return the names of the boards that are connected to a worker.

    Args:
        worker: the scheduler's information about the worker.

    Returns:
        Names; "" stands for a board without a name.
    """
    resources = worker.get("resources", {})
    names = [resource.removeprefix(BOARD) for resource in resources if resource.startswith(BOARD)]
    return names or [""] * (BOARD_RESOURCE in resources)


def _threads(worker: Mapping[str, Any]) -> int:
    return int(worker.get("nthreads", 1))


def _unreachable_message(address: str, error: BaseException) -> str:
    """Return the error message for a scheduler that cannot be reached.

    Args:
        address: address of the scheduler.
        error: exception of the attempt to connect.
    """
    said = causes_of(error)
    # A scheduler that rejects our certificate closes the connection, and its TLS alert may be lost.
    if re.search(r"certificate|SSL\w*Error|\[SSL|ConnectionResetError|BrokenPipeError", said):
        return (
            f"the scheduler at {address} and this command do not accept each other's "
            f"certificates ({said}); give both of them keys of the same cluster ({KEYS_STEP})"
        )
    return (
        f"no Dask scheduler responds at {address} within {REACH_SECONDS:g} s ({said}); start "
        "one with 'dask scheduler --protocol tls', and check that this machine can reach it"
    )


def causes_of(error: BaseException) -> str:
    """Return the messages of an error and of all errors that caused it, in one line.

    Args:
        error: the error, whose chain of causes is followed.
    """
    causes = list[str]()
    current: BaseException | None = error
    while current is not None:
        causes.append(_one_line(current))
        current = current.__cause__ or current.__context__
    return "; ".join(dict.fromkeys(causes))


def _one_line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}".rstrip(": ")[:400]
