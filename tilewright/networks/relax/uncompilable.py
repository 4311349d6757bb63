"""Finds the operators of a function that TVM cannot compile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import relax

from tilewright.networks.relax.bindings import FlatGraph, variables
from tilewright.networks.relax.cpu_subgraphs import compiles


def first_uncompilable(functions: Mapping[str, Any]) -> str | None:
    """The name of the first function that does not compile alone; None where each does."""
    return next((name for name, each in functions.items() if not compiles({name: each})), None)


def uncompilable_variable(function: Any) -> str | None:
    """The first variable of an island whose own expression does not compile; None where each does,
    and only together they do not."""
    binding = _uncompilable(function)
    return None if binding is None else str(binding.var.name)


def uncompilable_nodes(flat: FlatGraph) -> tuple[str, ...]:
    """Return the source operator of the first expression that does not compile alone; none where
    each does."""
    binding = _uncompilable(flat.module["main"])
    node = "" if binding is None else flat.by_var[binding.var].node
    return (node,) if node else ()


def uncompilable_operator(function: Any) -> str:
    """ ", operator relax.topk" for the first that does not compile alone; "" where each does."""
    binding = _uncompilable(function)
    if binding is None or not isinstance(binding.value, relax.Call):
        return ""
    name = str(getattr(binding.value.op, "name", None) or binding.var.name)
    return f", operator {name.rpartition('.')[2]}"


def _uncompilable(function: Any) -> Any:
    constants: list[Any] = []
    for binding in _bindings(function):
        if isinstance(binding.value, relax.Tuple | relax.Var):
            continue
        alone = _alone(binding, constants)
        if not compiles({"alone": alone.with_attrs(function.attrs) if function.attrs else alone}):
            return binding
        if set(variables(binding.value)) <= {each.var for each in constants}:
            constants.append(binding)
    return None


def _bindings(function: Any) -> Iterator[Any]:
    for block in function.body.blocks:
        yield from block.bindings


def _alone(binding: Any, constants: Sequence[Any]) -> Any:
    """A function of the variables that one expression reads, but for those that are constant."""
    known = {each.var for each in constants}
    read = [var for var in dict.fromkeys(variables(binding.value)) if var not in known]
    builder = relax.BlockBuilder()
    with builder.function("alone", read):
        with builder.dataflow():
            for each in (*constants, binding):
                builder.emit_normalized(each)
            output = builder.emit_output(binding.var)
        builder.emit_func_output(output)
    return relax.utils.copy_with_new_vars(builder.finalize()["alone"])
