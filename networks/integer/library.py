"""CPU islands compiled by TVM: in memory, or into one library file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from networks.integer.graph import CpuIsland, IntegerGraph
from networks.integer.reference import RunIsland
from networks.relax.islands import Library, compiled, export

Array = NDArray[Any]


def in_memory(graph: IntegerGraph) -> RunIsland:
    """Compile a graph's islands for this machine, to run them now on arrays in the shapes of their
    values. Raises `ImportFailedError`."""
    if not graph.islands:
        return _nothing
    return _runner(Library(compiled({island.name: island.function for island in graph.islands})))


def write(graph: IntegerGraph, path: Path) -> None:
    """Compile a graph's islands for this machine into a shared library at `path`. Raises
    `ImportFailedError`."""
    export({island.name: island.function for island in graph.islands}, path)


def read(path: Path) -> RunIsland:
    """The islands of a library that `write` wrote, to run on arrays in the shapes of their values.
    It runs code of the file: read none of strangers."""
    return _runner(Library.load(path))


def _runner(library: Library) -> RunIsland:
    def run(island: CpuIsland, arrays: list[Array]) -> list[Array]:
        return library(island.name, arrays)

    return run


def _nothing(island: CpuIsland, arrays: list[Array]) -> list[Array]:
    raise AssertionError(f"'{island.name}' was not compiled")
