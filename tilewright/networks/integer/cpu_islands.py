"""Compile the CPU islands of an integer graph with TVM into one shared library.

A CPU island is a group of operators between accelerator layers that the CPU runs as one function.
"""

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
from tilewright.networks.relax.failures import plain_message

SHOWN = 4
"""Maximum number of operators that an error message names."""


def write(graph: IntegerGraph, path: Path) -> None:
    """Compile the CPU islands of a graph for this machine, and write them as a shared library.

    Args:
        graph: the integer graph.
        path: path of the library.

    Raises:
        UncompilableError: TVM cannot compile an operator.
    """
    compiled_islands(graph).export_library(str(path))


def compiled_islands(graph: IntegerGraph) -> VMExecutable:
    """Compile the CPU islands of a graph for this machine, and return TVM's executable.

    An island is a group of operators between accelerator layers that the CPU runs.

    Args:
        graph: the integer graph.

    Raises:
        UncompilableError: TVM cannot compile some operators, which the error names.
    """
    functions = {island.name: island.function for island in graph.islands}
    try:
        return compiled(functions)
    except Exception as error:  # TVM raises many kinds
        operators = _uncompilable(graph, functions)
        which = "which runs" if len(operators) == 1 else "which run together"
        said = plain_message(error)
        raise UncompilableError(
            f"TVM {tvm.__version__} cannot compile {_list_operators(operators)}, {which} on "
            f"the "
            f"CPU{': ' * bool(said)}{said}; export the model with simpler operators in place "
            f"of {'it' if len(operators) == 1 else 'some'}, or cut the model before",
            tuple(name for name, kind in operators if kind != REGION),
        ) from error


def _uncompilable(
    graph: IntegerGraph, functions: Mapping[str, RelaxFunction]
) -> list[tuple[str, str]]:
    """Return the operators of the CPU islands that TVM cannot compile.

    If the failing operator cannot be determined, all operators of the failing island are returned.
    If the failing island cannot be determined either, all operators of all islands are returned.

    Args:
        graph: the integer graph.
        functions: Relax function of each island, by island name.

    Returns:
        (name, ONNX type) of each operator.
    """
    failing = first_uncompilable(functions)
    if failing is None:
        return [node for island in graph.islands for node in island.nodes]
    island = next(island for island in graph.islands if island.name == failing)
    name = island.written.get(uncompilable_variable(island.function) or "")
    return [node for node in island.nodes if node[0] == name] or list(island.nodes)


def _list_operators(operators: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"'{name}' ({kind or '?'})" for name, kind in operators[:SHOWN])
    more = f" and {len(operators) - SHOWN} more" if len(operators) > SHOWN else ""
    return f"operator{'s' * (len(operators) != 1)} {shown}{more}"
