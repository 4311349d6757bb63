"""Compiles CPU islands with TVM into one library file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm

from tilewright.core.tvm_types import RelaxFunction, VMExecutable
from tilewright.networks.errors import UncompilableError
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.partition.region_models import REGION
from tilewright.networks.relax.cpu_subgraphs import compiled
from tilewright.networks.relax.execute import first_uncompilable, uncompilable_variable
from tilewright.networks.relax.failures import plain

SHOWN = 4
"""Operators that a message names at most."""


def write(graph: IntegerGraph, path: Path) -> None:
    """Compile a graph's islands for this machine into a shared library at `path`. Raises as
    `compiled_islands`."""
    compiled_islands(graph).export_library(str(path))


def compiled_islands(graph: IntegerGraph) -> VMExecutable:
    """TVM's executable of a graph's islands, for this machine. Raises `UncompilableError` naming
    the operators that TVM cannot compile."""
    functions = {island.name: island.function for island in graph.islands}
    try:
        return compiled(functions)
    except Exception as error:  # TVM raises many kinds
        operators = _uncompilable(graph, functions)
        which = "which is" if len(operators) == 1 else "together, which are"
        said = plain(error)
        raise UncompilableError(
            f"TVM {tvm.__version__} cannot compile {_listed(operators)}, {which} left to the CPU"
            f"{': ' * bool(said)}{said}; export the model with simpler operators in place of "
            f"{'it' if len(operators) == 1 else 'some'}, or cut the model before",
            tuple(name for name, kind in operators if kind != REGION),
        ) from error


def _uncompilable(
    graph: IntegerGraph, functions: Mapping[str, RelaxFunction]
) -> list[tuple[str, str]]:
    """The operator (name, type) that does not compile, or those that do not together."""
    failing = first_uncompilable(functions)
    if failing is None:
        return [node for island in graph.islands for node in island.nodes]
    island = next(island for island in graph.islands if island.name == failing)
    name = island.written.get(uncompilable_variable(island.function) or "")
    return [node for node in island.nodes if node[0] == name] or list(island.nodes)


def _listed(operators: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"'{name}' ({kind or '?'})" for name, kind in operators[:SHOWN])
    more = f" and {len(operators) - SHOWN} more" if len(operators) > SHOWN else ""
    return f"operator{'s' * (len(operators) != 1)} {shown}{more}"
