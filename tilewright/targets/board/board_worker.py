"""Offers the board beside this machine to commands elsewhere."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header
from tilewright.core.files import Json, as_list, as_object, as_text
from tilewright.targets.board import MEASURE, ROWS, STATUS
from tilewright.targets.board.board_runner import BoardBench
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.channel import CALL, OFFERS
from tilewright.targets.cluster.connection import BOARD, connect


class BoardService:
    """Implements `cluster.serve.Service`: one program at a time on a bench, under a name."""

    slots = 1

    def __init__(self, name: str, bench: BoardBench) -> None:
        self._name, self._bench = name, bench

    def about(self) -> Header:
        """The machine, what else can change a measurement, and what became of the programs."""
        return {OFFERS: BOARD + self._name, STATUS: self._bench.status(), **self._bench.describe()}

    def answer(self, header: Header, arrays: dict[str, NDArray[Any]]) -> tuple[Header, Arrays]:
        """`measure` the programs in `rows`, each its files by name and digest, whose bytes are in
        arrays of shape (bytes,). Raises `BoardDown`, and `ClusterError` for another call."""
        if header[CALL] != MEASURE:
            raise ClusterError(f"there is no call '{header[CALL]}'")
        rows = [
            {file: as_text(digest) for file, digest in as_object(row).items()}
            for row in as_list(header[ROWS])
        ]
        return {}, self._bench.measure(rows, arrays)


def boards(address: str) -> dict[str, dict[str, Json]]:
    """The boards at an address by name, each as `BoardBench.status` tells it. Raises
    `ClusterError`."""
    cluster = connect(address)
    cluster.look()  # they ran programs meanwhile
    return {
        name.removeprefix(BOARD): as_object(about[STATUS])
        for name, (about, *_) in cluster.offered(BOARD).items()
    }
