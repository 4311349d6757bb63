"""Offers a board to remote commands, as a worker of a Dask cluster.

The worker runs on the machine that is connected to the board. It has the Dask resources `board` and
`board:NAME`. Calls that use the board require the resource `board:NAME`. Dask therefore gives the
worker one of these calls at a time, and sends them to no other worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.core.child_process import Arrays
from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_object
from tilewright.core.lazy_module import lazy_module
from tilewright.targets.board.board_runner import BoardBench
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.connection import (
    BOARD,
    BOARD_RESOURCE,
    causes_of,
    check_scheduler_address,
    connect,
    dask_security,
    silence_dask,
)

if TYPE_CHECKING:
    import distributed
else:
    distributed = lazy_module("distributed")

STATUS = "status"
"""Key of the board's status in the dictionary that `describe_board` returns."""
END_SECONDS = 5.0
_benches: dict[str, BoardBench] = {}


def measure_on_board(
    name: str, programs: Sequence[Mapping[str, str]], blobs: Arrays
) -> dict[str, NDArray[Any]] | str:
    """Run programs on the board of this worker.

    Args:
        name: name of the board.
        programs: one mapping per program, from file name to the digest of the file's content.
        blobs: content of the files, as uint8 arrays, by digest.

    Returns:
        Arrays of shape (programs,), in the format that `targets.remote_target.checked_measurements`
        reads. If the board cannot be used, an error message.
    """
    try:
        return _benches[name].measure(programs, blobs)
    except TilewrightError as error:
        return " ".join(str(error).split())


def describe_board(name: str) -> dict[str, Json]:
    """Return the status and the description of a board of this worker, as JSON.

    The description contains the machine and the options of the measurements
    (`BoardBench.describe`). The status is stored under the key `STATUS` (`BoardBench.status`).

    Args:
        name: name of the board.
    """
    bench = _benches[name]
    return {STATUS: bench.status(), **bench.describe()}


def list_boards(address: str) -> dict[str, dict[str, Json]]:
    """Return the status of each board of a cluster.

    Args:
        address: address of the Dask scheduler.

    Returns:
        Name of the machine and counts of programs, by the name of the board.

    Raises:
        ClusterError: the cluster cannot be used.
    """
    boards = {}
    for name, workers in connect(address).boards().items():
        about = connect(address).ask(describe_board, name, workers=workers[:1])
        boards[name] = as_object(about[workers[0]][STATUS])
    return boards


def serve_board(
    name: str, bench: BoardBench, address: str, host: str, port: int, ready: Callable[[str], None]
) -> None:
    """Run a worker that offers a board to a cluster, until a `KeyboardInterrupt`.

    The worker reconnects after a restart of the cluster's scheduler.

    Args:
        name: name of the board.
        bench: runs programs on the board.
        address: `tls://HOST:PORT` of the Dask scheduler.
        host: address on which this worker listens.
        port: port on which it listens; 0 for any free port.
        ready: called with the worker's address each time the worker is registered at the scheduler.

    Raises:
        ClusterError: the certificates are rejected, the worker cannot listen on the address, or
            another worker of the cluster offers a board with the same name.
    """
    check_scheduler_address(address)
    silence_dask()
    security = dask_security("worker")
    _benches[name] = bench
    ended = list[BaseException]()

    async def work() -> None:
        while True:
            worker = distributed.Worker(
                address, nthreads=1, name=BOARD + name, security=security, host=host,
                port=port, resources={BOARD_RESOURCE: 1, BOARD + name: 1}, memory_limit=0,
                local_directory=str(bench.folder),  # deleted together with the bench
                dashboard_address=f"{host}:0", dashboard=False,
            )  # fmt: skip
            async with worker:
                ready(worker.address)
                await worker.finished()

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            ended.append(error)

    # The worker runs in a thread of its own, so that Ctrl-C does not wait for the program on the
    # board.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with suppress(KeyboardInterrupt):
        while thread.is_alive():
            thread.join(0.2)
        cause = causes_of(ended[0]) if ended else "it ended"
        if "name taken" in cause:
            raise ClusterError(
                f"a worker at {address} already offers {BOARD}{name}; give each board a "
                "different name"
            )
        raise ClusterError(
            f"the worker of {BOARD}{name} cannot join the cluster at {address}: {cause}"
        )
