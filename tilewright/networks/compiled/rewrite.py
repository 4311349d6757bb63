"""Rewrites a network's Relax module: it calls kernels in place of the layers they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import IRModule

from tilewright.networks.compiled.layers import KernelLayer
from tilewright.networks.compiled.packed_operators import packed_result
from tilewright.networks.compiled.packing import PackedTensors
from tilewright.networks.errors import ImportFailedError
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

KERNEL = "tilewright.kernel"
"""Attribute of a function that has its schedule."""
OPAQUE = 8
"""TVM's pattern of functions that nothing is fused with."""


@dataclass(frozen=True, eq=False)
class Rewritten:
    """`module` calls the functions `called`, one a layer, in the order in which they run."""

    module: IRModule
    layers: Sequence[KernelLayer]
    called: Sequence[str]


def rewritten(
    flat: FlatGraph, layers: Sequence[KernelLayer], kernels: Mapping[Workload, KernelCode]
) -> Rewritten:
    """The module with a `main` of the same data and results. Raises `ImportFailedError` for a
    network with branches."""
    old = flat.module["main"]
    blocks = old.body.blocks
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        raise ImportFailedError(
            "the network has branches or loops, which are not compiled with kernels; export it "
            "without them"
        )
    own = {var: f for var, f in flat.module.functions.items() if var.name_hint != "main"}
    builder = relax.BlockBuilder(IRModule(own))  # what TVM's importer writes in TIR
    params = [relax.Var(str(param.name), param.ty) for param in old.params]
    made = _RewrittenMain(builder, kernels)
    for mine, theirs in zip(params, old.params, strict=True):
        made.tensors.put(theirs, plain=mine)
    by_result = {layer.result.var: layer for layer in layers}
    inside = frozenset[Any]().union(*(layer.inside for layer in layers))
    with builder.function("main", params):
        with builder.dataflow():
            for binding in flat.bindings:
                if binding.var in by_result:
                    made.kernel(by_result[binding.var])
                elif binding.var not in inside:
                    made.other(binding)
            result = builder.emit_output(made.result(old.body.body))
        builder.emit_func_output(result)
    module = relax.transform.DeadCodeElimination()(builder.finalize())
    return Rewritten(module, made.layers, made.called)


class _RewrittenMain:
    """The function as far as it is written."""

    def __init__(self, builder: Any, kernels: Mapping[Workload, KernelCode]) -> None:
        self._builder = builder
        self._kernels = kernels
        self._functions: dict[Workload, Any] = {}
        self.tensors = PackedTensors(builder)
        self.layers: list[KernelLayer] = []
        self.called: list[str] = []

    def kernel(self, layer: KernelLayer) -> None:
        """Call a layer's kernel on packed tensors."""
        code = self._kernels[layer.workload]
        wanted = [shape_of_parameter(parameter) for parameter in code.function.params]
        arguments = [self._read(layer.data, code.data_block)]
        if layer.weight is None:
            arguments.append(self._read(layer.match.anchor.args[1], 0))
        else:
            arguments.append(_constant(code.pack_weights(layer.weight)))
        for array in layer.constants:
            arguments.append(_constant(array.reshape(wanted[len(arguments)])))
        arguments += [self._read(var, code.out_block) for var in layer.added]
        fitting = [self._fit(arg, shape) for arg, shape in zip(arguments, wanted[:-1], strict=True)]
        function = self._function(layer.workload, code)
        out = relax.TensorType(wanted[-1], layer.workload.out_dtype)
        written = self.tensors.emit(relax.call_tir(function, fitting, out))
        self._put(layer.result, written, code.out_block)
        self.layers.append(layer)
        self.called.append(str(function.name_hint))

    def other(self, binding: Binding) -> None:
        """What TVM compiles, on packed tensors where it can be done on them."""
        found = packed_result(self.tensors, binding)
        if found is not None:
            expression, block = found
            self.tensors.put(binding.var, packed=self.tensors.emit(expression), block=block)
            return
        known = {var: self.tensors.plain(var) for var in variables(binding.value)}
        self.tensors.put(binding.var, plain=self.tensors.emit(_replaced(binding.value, known)))

    def result(self, expression: Any) -> Any:
        """What the network gives, as the model has it."""
        known = {var: self.tensors.plain(var) for var in variables(expression)}
        return _replaced(expression, known)

    def _read(self, var: Any, block: int) -> Any:
        return self.tensors.packed(var, block) if block else self.tensors.plain(var)

    def _fit(self, expression: Any, shape: tuple[int, ...]) -> Any:
        """The same values with other axes."""
        if shape_of(expression) == shape:
            return expression
        return self.tensors.emit(relax.op.reshape(expression, shape))

    def _put(self, result: Binding, written: Any, block: int) -> None:
        shape = result.shape or ()
        if not block:
            self.tensors.put(result.var, plain=self._fit(written, shape))
            return
        n, c, h, w = shape
        packed = self._fit(written, (n, c // block, h, w, block))
        self.tensors.put(result.var, packed=packed, block=block)

    def _function(self, workload: Workload, code: KernelCode) -> Any:
        if workload not in self._functions:
            name = f"{workload.operator}_{workload.id}"
            function = code.function.with_attrs({KERNEL: 1, "op_pattern": OPAQUE})
            function = function.without_attr("global_symbol")
            self._functions[workload] = self._builder.add_func(function, name)
        return self._functions[workload]


def shape_of_parameter(parameter: Any) -> tuple[int, ...]:
    """Of a buffer that a TensorIR function takes."""
    return tuple(int(size) for size in parameter.ty.shape)


def _constant(array: Any) -> Any:
    return relax.const(np.ascontiguousarray(array), str(array.dtype))


def _replaced(value: Any, known: Mapping[Any, Any]) -> Any:
    """An expression of other variables."""
    if isinstance(value, relax.Var):
        return known.get(value, value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_replaced(field, known) for field in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_replaced(value.tuple_value, known), value.index)
    if isinstance(value, relax.Call):
        arguments = [_replaced(argument, known) for argument in value.args]
        return relax.Call(value.op, arguments, value.attrs, value.ty_args)
    return value
