"""Runs a worker of a cluster that offers the board beside it as a resource."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header
from tilewright.core.files import Json, as_list, as_object, as_text
from tilewright.targets.board.board_runner import BoardBench, BoardDown
from tilewright.targets.cluster.connection import BOARD, ClusterError, check_address, connect
from tilewright.targets.cluster.remote_worker import UNUSABLE

REACH_SECONDS = 30.0
_offered: dict[str, BoardBench] = {}  # of this process, by name


def answer(name: str, header: Header, arrays: Arrays) -> tuple[Header, dict[str, NDArray[Any]]]:
    """What a call comes to on the board of that name, which this process offers: `describe`, or
    `measure` of the programs in `rows`, whose files are in `arrays`, (bytes,) each. Raises
    nothing."""
    bench = _offered.get(name)
    if bench is None:
        return {UNUSABLE: f"it does not offer {name}"}, {}
    try:
        if header["call"] == "describe":
            return bench.describe(), {}
        rows = [
            {file: as_text(digest) for file, digest in as_object(row).items()}
            for row in as_list(header["rows"])
        ]
        return {}, bench.measure(rows, arrays)
    except BoardDown as error:
        return {UNUSABLE: str(error)}, {}
    except Exception as error:  # of a disk, of files: nothing of the programs'
        return {UNUSABLE: f"{type(error).__name__}: {error}"}, {}


def status() -> dict[str, Json]:
    """What became of the programs on each board that this process offers, by name."""
    return {name: bench.status() for name, bench in _offered.items()}


def serve(address: str, name: str, bench: BoardBench, ready: Callable[[], None]) -> None:
    """Offer a board to a cluster until the scheduler ends; `ready` is called when it can be used.
    Raises `ClusterError` if there is no scheduler, no Dask, or another board of that name."""
    check_address(address)
    resource = BOARD + name
    try:
        from distributed import Worker
    except ImportError as error:
        raise ClusterError(
            f"--cluster {address} needs Dask ({error}): pip install 'tilewright[cluster]'"
        ) from None

    async def work() -> None:
        # One thread and one of the resource: one program at a time.
        worker = Worker(
            address, nthreads=1, resources={resource: 1}, name=resource, dashboard=False
        )
        async with asyncio.timeout(REACH_SECONDS):
            await worker
        ready()
        try:
            await worker.finished()
        finally:
            await worker.close()

    _offered[resource] = bench
    try:
        asyncio.run(work())
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"the scheduler at {address} does not take a worker '{resource}' ({error}); is it "
            "there, and has it no other of that name?"
        ) from None
    finally:
        del _offered[resource]


def boards(address: str) -> dict[str, dict[str, Json]]:
    """The boards of a cluster, by name, each as `BoardBench.status` tells it. Raises
    `ClusterError`."""
    cluster = connect(address)
    found: dict[str, dict[str, Json]] = {}
    workers = [worker for offered in cluster.offered(BOARD).values() for worker in offered]
    try:
        told = cluster.client.run(status, workers=workers) if workers else {}
    except Exception as error:  # of the connection; Dask has no class for them
        raise ClusterError(f"a board of {address} does not answer: {error}") from None
    for each in told.values():
        found |= {name.removeprefix(BOARD): as_object(about) for name, about in each.items()}
    return found
