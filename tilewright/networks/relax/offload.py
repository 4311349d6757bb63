"""Rewrites Relax modules so that an accelerator's programs are called in place of the layers they
run.

A run of layers without other work between is one `call_dps_packed`; what TVM keeps are functions
of the module, called in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst, GlobalVar, IRModule, StringImm

from tilewright.networks.integer.graph import CpuIsland, IntegerGraph
from tilewright.networks.relax import cpu_subgraphs
from tilewright.networks.relax.cpu_subgraphs import CALLED
from tilewright.networks.relax.module_view import ModuleView
from tilewright.targets.layer import Value

LEFT = "tilewright.left"
"""Attribute of a module: why operators stay with TVM, by their names."""


@dataclass(frozen=True, eq=False)
class OffloadedCall:
    """A call of the packed function `function`: the digest and bytes of a program, the values it
    reads, and those it writes."""

    function: str
    digest: str
    content: bytes
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]


def rewritten(
    module: IRModule,
    view: ModuleView,
    graph: IntegerGraph,
    steps: Sequence[OffloadedCall | CpuIsland],
) -> IRModule:
    """The module with a `main` of the same parameters and results that runs `steps` in order."""
    others = {var: f for var, f in module.functions.items() if var.name_hint != "main"}
    builder = relax.BlockBuilder(IRModule(others, attrs=module.attrs))
    functions = {step.name: _added(builder, step) for step in steps if isinstance(step, CpuIsland)}
    old = module["main"]
    params = [relax.Var(str(param.name), param.ty) for param in old.params]
    made = _OffloadedMain(builder, graph)
    made.known.update(zip((value.name for value in graph.inputs), params, strict=True))
    attrs = {k: v for k, v in (old.attrs or {}).items() if k != "global_symbol"}
    with builder.function("main", params, attrs):
        with builder.dataflow():
            for step in steps:
                if isinstance(step, CpuIsland):
                    made.island(step, functions[step.name])
                else:
                    made.program(step)
            results = [made.result(value) for value in graph.outputs]
            result = builder.emit_output(relax.Tuple(results) if view.is_tuple else results[0])
        builder.emit_func_output(result)
    found = relax.transform.DeadCodeElimination()(builder.finalize())
    whole: IRModule = found.with_attr(LEFT, dict(graph.left))
    return whole


def calls(module: IRModule, function: str) -> Iterator[tuple[str, bytes]]:
    """The digest and bytes of each program that `main` has for a packed function, in order."""
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if getattr(getattr(value, "op", None), "name", "") != "relax.call_dps_packed":
                continue
            if str(value.args[0].global_symbol) == function:
                digest, content = value.args[1].fields[:2]
                yield str(digest.value), _bytes(content)


def left(module: IRModule) -> dict[str, str]:
    """Why operators stay with TVM, by their names."""
    said = module.attrs.get(LEFT, {}) if module.attrs else {}
    return {str(name): str(why) for name, why in said.items()}


def _bytes(content: GenericConst) -> bytes:
    array: bytes = content.value.numpy().tobytes()
    return array


def _added(builder: Any, island: CpuIsland) -> GlobalVar:
    """An island as a function of the module."""
    function = island.function.without_attr("global_symbol").without_attr(CALLED)
    return builder.add_func(function, f"tvm_{island.name}")


class _OffloadedMain:
    """The function as far as it is written; `known` are the expressions of values."""

    def __init__(self, builder: Any, graph: IntegerGraph) -> None:
        self._builder = builder
        self._graph = graph
        self.known: dict[str, Any] = {}

    def island(self, step: CpuIsland, function: GlobalVar) -> None:
        """Call what TVM keeps."""
        made = self._builder.emit(relax.Call(function, [self._value(n) for n in step.inputs]))
        self._unpack(made, step.outputs)

    def program(self, step: OffloadedCall) -> None:
        """Call a program."""
        content = relax.const(np.frombuffer(step.content, np.uint8), "uint8")
        read = [self._value(name) for name in step.inputs]
        types = [relax.TensorType(value.shape, value.dtype) for value in step.outputs]
        operands = relax.Tuple([StringImm(step.digest), content, *read])
        single = len(types) == 1
        call = relax.call_dps_packed(step.function, operands, types[0] if single else types)
        made = self._builder.emit(call)
        if single:
            self.known[step.outputs[0].name] = made
        else:
            self._unpack(made, [value.name for value in step.outputs])

    def result(self, value: Value) -> Any:
        """The expression of an output, of its shape and type."""
        name = self._graph.results[value.name]
        found, held = self._value(name), self._graph.values[name]
        if held.dtype == "int8" and value.dtype == "uint8":
            found = self._emit(cpu_subgraphs.as_uint8(found, self._emit))
        elif held.dtype == "int8" and value.dtype != "int8":
            scale = value.scale or held.scale
            assert scale is not None
            found = self._emit(cpu_subgraphs.dequantised(found, scale))
        if held.shape != value.shape:
            found = self._emit(relax.op.reshape(found, value.shape))
        if str(found.ty.dtype) != value.dtype:
            found = self._emit(relax.op.astype(found, value.dtype))
        return found

    def _value(self, name: str) -> Any:
        """The expression of a value; TVM quantises inputs."""
        if name not in self.known:
            source, scale = self.known[self._graph.quantised[name]], self._graph.values[name].scale
            if str(source.ty.dtype) == "uint8":
                expression = cpu_subgraphs.as_int8(source, self._emit)
            else:
                assert scale is not None
                expression = cpu_subgraphs.quantised(source, scale)
            self.known[name] = self._emit(expression)
        return self.known[name]

    def _unpack(self, made: Any, names: Sequence[str]) -> None:
        for i, name in enumerate(names):
            self.known[name] = self._emit(relax.TupleGetItem(made, i))

    def _emit(self, expression: Any) -> Any:
        return self._builder.emit(expression)
