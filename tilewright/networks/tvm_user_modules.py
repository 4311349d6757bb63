"""Read users' Relax modules and replace their layers by calls to accelerator programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import relax, topi
from tvm.ir import GenericConst, GlobalVar, IRModule, StringImm

from tilewright.core.tvm_types import (
    BlockBuilder,
    RelaxExpr,
    RelaxFunction,
    RelaxType,
    RelaxVar,
    Tensor,
)
from tilewright.networks.errors import DynamicShapeError, ImportFailedError, QuantisationError
from tilewright.networks.integer.graph import CpuIsland, IntegerGraph
from tilewright.networks.relax import cpu_subgraphs
from tilewright.networks.relax.bindings import Binding, FlatGraph, flatten, shape_of
from tilewright.networks.relax.constants import value_of
from tilewright.networks.relax.cpu_subgraphs import CALLED
from tilewright.networks.relax.op_patterns import DEQUANTISE, QUANTISE
from tilewright.targets.layer import Value

CALL_TIR = "relax.call_tir"
BIND = "bind them first: relax.transform.BindParams('main', params)(mod)"


@dataclass(frozen=True, eq=False)
class ModuleView:
    """The `main` function of a Relax module as a list of bindings.

    Attributes:
        flat: the bindings of `main`.
        types: operator type by operator name.
        outputs: names that are given to the results.
        is_tuple: whether `main` returns a tuple, possibly with one field, instead of a tensor.
    """

    flat: FlatGraph
    types: dict[str, str]
    outputs: tuple[str, ...]
    is_tuple: bool


def view_of(module: IRModule) -> ModuleView:
    """List the bindings of a quantised module's `main`, whose weights have to be constants.

    Args:
        module: the user's module.

    Raises:
        ImportFailedError: the module has no `main` with tensor parameters and tensor results, or
            its weights are parameters without values.
        DynamicShapeError: an input shape is unknown.
        QuantisationError: the module computes in float.
    """
    main = module["main"] if "main" in [g.name_hint for g in module.get_global_vars()] else None
    if not isinstance(main, relax.Function):
        raise ImportFailedError(
            "the module has no Relax function 'main'; give a module from from_onnx or "
            "from_exported_program"
        )
    count = int(main.attrs.get("num_input", len(main.params))) if main.attrs else len(main.params)
    _check_parameters(main.params, count)
    flat = flatten(module, main.params[:count], _names(main))
    flat = _with_clips(_with_result(flat))
    if not any(binding.op in (QUANTISE, DEQUANTISE) for binding in flat.bindings):
        raise QuantisationError(
            "the module computes in floating point, but the accelerator computes in int8; "
            "first quantise the ONNX model (tilewright.networks.quantisation.quantise), "
            "save it with onnx.save and import that file: docs/guides/quantise.md"
        )
    types = {b.node: b.op.removeprefix("relax.") for b in flat.bindings}
    fields = _fields(main.body.body)
    names = tuple(f"output{i}" for i in range(1 if fields is None else len(fields)))
    return ModuleView(flat, types, names, fields is not None)


def _check_parameters(params: Sequence[RelaxVar], count: int) -> None:
    if len(params) > count:
        raise ImportFailedError(
            f"'{params[count].name}' and {len(params) - count - 1} more of main's parameters are "
            f"weights without values; {BIND}"
        )
    for param in params:
        if not hasattr(param.ty, "dtype"):
            raise ImportFailedError(
                f"the input '{param.name}' is not a tensor; import the model again"
            )
        if shape_of(param) is None:
            raise DynamicShapeError(
                f"the shape of input '{param.name}' is unknown before the module runs; fix it: "
                f"from_onnx(model, shape_dict={{'{param.name}': [1, ...]}})"
            )


def _names(main: RelaxFunction) -> dict[RelaxVar, str]:
    """Return a unique name for each variable that `main` binds.

    A number is appended to a name that occurs several times.
    """
    taken: set[str] = {str(param.name) for param in main.params}
    names = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            name, count = str(binding.var.name), 1
            while name in taken:
                count += 1
                name = f"{binding.var.name}_{count}"
            taken.add(name)
            names[binding.var] = name
    return names


def _fields(result: RelaxExpr) -> list[RelaxType] | None:
    """Return the types of the tensors in a function's result.

    Args:
        result: the result as an expression.

    Returns:
        One type per field of a tuple, or None if the result is a single tensor.

    Raises:
        ImportFailedError: the result is neither a tensor nor a tuple of tensors.
    """
    fields = list(result.ty.fields) if isinstance(result.ty, relax.TupleType) else None
    if not all(hasattr(ty, "dtype") for ty in ([result.ty] if fields is None else fields)):
        raise ImportFailedError(
            "main returns something other than a tensor or a tuple of tensors; export the "
            "model with plain tensors as outputs"
        )
    return fields


def _with_result(flat: FlatGraph) -> FlatGraph:
    """Append a binding for the tuple that `main` returns, so that every result is a binding.

    The graph is returned unchanged if `main` returns something other than a new tuple.
    """
    body = flat.module["main"].body.body
    if not isinstance(body, relax.Tuple):
        return flat
    result = Binding(body, body, "Tuple", (), "")
    return FlatGraph(flat.module, [*flat.bindings, result], flat.data)


def _with_clips(flat: FlatGraph) -> FlatGraph:
    """Replace each pair of an elementwise maximum and minimum by one `relax.clip`.

    TVM's importer writes a clip as two TIR functions.
    """
    clips = {clip.var: (inner, clip) for inner, clip in _clips(flat)}
    gone = {inner.var for inner, _ in clips.values() if flat.sole_user(inner.var) is not None}
    bindings = [
        clips[b.var][1] if b.var in clips else b for b in flat.bindings if b.var not in gone
    ]
    return FlatGraph(flat.module, bindings, flat.data)


def _clips(flat: FlatGraph) -> Iterator[tuple[Binding, Binding]]:
    """Find each pair of an elementwise maximum and a minimum that reads its result.

    Yields:
        The binding of the maximum, and a binding with one `relax.clip` that replaces both.
    """
    for outer in flat.bindings:
        upper = _elementwise(flat, outer, topi.minimum)
        inner = None if upper is None else flat.by_var.get(upper[0])
        lower = None if inner is None else _elementwise(flat, inner, topi.maximum)
        if upper is not None and inner is not None and lower is not None:
            clip = relax.BlockBuilder().normalize(relax.op.clip(lower[0], lower[1], upper[1]))
            yield inner, replace(outer, value=clip, op="relax.clip", args=tuple(clip.args))


def _elementwise(
    flat: FlatGraph, binding: Binding, compute: Callable[..., Tensor]
) -> tuple[RelaxExpr, float] | None:
    """Match a TIR call that applies `compute` to a tensor and a constant scalar.

    Args:
        flat: the bindings of `main`.
        binding: the call.
        compute: TE function of a tensor and a scalar, such as a maximum.

    Returns:
        The tensor and the scalar, or None if the call does not match.
    """
    if binding.op != CALL_TIR or len(binding.args[1].fields) != 2:
        return None
    x, number = binding.args[1].fields
    bound = value_of(flat, number)
    if bound is None or bound.size != 1 or shape_of(x) != binding.shape or not binding.shape:
        return None
    builder = relax.BlockBuilder()
    call = builder.call_te(compute, relax.Var("x", x.ty), relax.Var("number", number.ty))
    wanted = builder.get()[call.args[0]]
    if not tvm_ffi.structural_equal(flat.module[binding.args[0]], wanted):
        return None
    return x, float(bound.ravel()[0])


LEFT = "tilewright.left"
"""Attribute of a module with the reasons why operators are compiled by TVM instead of being
offloaded, by operator name."""


@dataclass(frozen=True, eq=False)
class OffloadedCall:
    """A call of a packed function that runs an accelerator program.

    Attributes:
        function: name of the packed function.
        digest: SHA-256 of the program as hexadecimal text.
        content: the serialised program.
        inputs: names of the values that the program reads.
        outputs: the values that it writes.
    """

    function: str
    digest: str
    content: bytes
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]


def offload_layers(
    module: IRModule,
    view: ModuleView,
    graph: IntegerGraph,
    steps: Sequence[OffloadedCall | CpuIsland],
) -> IRModule:
    """Return a module whose `main` runs the given steps.

    Args:
        module: the user's module. Its other functions are kept.
        view: the bindings of its `main`.
        graph: the integer graph of `main`.
        steps: calls to accelerator programs, and CPU islands (groups of operators that stay with
            TVM), in execution order.

    Returns:
        A module whose `main` has the same parameters and results.
    """
    others = {var: f for var, f in module.functions.items() if var.name_hint != "main"}
    builder = relax.BlockBuilder(IRModule(others, attrs=module.attrs))
    functions = {
        step.name: _add_island(builder, step) for step in steps if isinstance(step, CpuIsland)
    }
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
    module = relax.transform.DeadCodeElimination()(builder.finalize())
    whole: IRModule = module.with_attr(LEFT, dict(graph.left))
    return whole


def offloaded_calls(module: IRModule, function: str) -> Iterator[tuple[str, bytes]]:
    """Yield the digest and bytes of each program that `main` passes to a packed function, in order.

    Args:
        module: a module that `offload_layers` returned.
        function: name of the packed function.
    """
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if getattr(getattr(value, "op", None), "name", "") != "relax.call_dps_packed":
                continue
            if str(value.args[0].global_symbol) == function:
                digest, content = value.args[1].fields[:2]
                yield str(digest.value), _bytes(content)


def left_operators(module: IRModule) -> dict[str, str]:
    """Return the operators of a module that TVM computes instead of the accelerator.

    Args:
        module: a module that `flows.tvm_partition.partition_for_vta` returned.

    Returns:
        The reason, by operator name.
    """
    said = module.attrs.get(LEFT, {}) if module.attrs else {}
    return {str(name): str(why) for name, why in said.items()}


def _bytes(content: GenericConst) -> bytes:
    array: bytes = content.value.numpy().tobytes()
    return array


def _add_island(builder: BlockBuilder, island: CpuIsland) -> GlobalVar:
    """Add the function of a CPU island to a module, and return its global variable."""
    function = island.function.without_attr("global_symbol").without_attr(CALLED)
    return builder.add_func(function, f"tvm_{island.name}")


class _OffloadedMain:
    """Builder of a module's new `main` function, which calls accelerator programs and islands.

    Args:
        builder: Relax builder of the new function.
        graph: the integer graph of the old `main`.

    Attributes:
        known: Relax expression of each value that was emitted so far, by value name.
    """

    def __init__(self, builder: BlockBuilder, graph: IntegerGraph) -> None:
        self._builder = builder
        self._graph = graph
        self.known: dict[str, RelaxExpr] = {}

    def island(self, step: CpuIsland, function: GlobalVar) -> None:
        """Emit a call to the function of a CPU island, a group of operators that TVM computes.

        Args:
            step: the island.
            function: global variable of the island's function.
        """
        made = self._builder.emit(relax.Call(function, [self._value(n) for n in step.inputs]))
        self._unpack(made, step.outputs)

    def program(self, step: OffloadedCall) -> None:
        """Emit a call to an accelerator program."""
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

    def result(self, value: Value) -> RelaxExpr:
        """Emit the conversion of a network output to its shape and type.

        Args:
            value: name, shape and type of the output.

        Returns:
            The expression of the output.
        """
        name = self._graph.results[value.name]
        result, held = self._value(name), self._graph.values[name]
        if held.dtype == "int8" and value.dtype == "uint8":
            result = self._emit(cpu_subgraphs.as_uint8(result, self._emit))
        elif held.dtype == "int8" and value.dtype != "int8":
            scale = value.scale or held.scale
            assert scale is not None
            result = self._emit(cpu_subgraphs.dequantise_tensor(result, scale))
        if held.shape != value.shape:
            result = self._emit(relax.op.reshape(result, value.shape))
        if str(result.ty.dtype) != value.dtype:
            result = self._emit(relax.op.astype(result, value.dtype))
        return result

    def _value(self, name: str) -> RelaxExpr:
        """Return the expression of a value. Network inputs are quantised on their first use.

        Args:
            name: name of the value.
        """
        if name not in self.known:
            source, scale = self.known[self._graph.quantised[name]], self._graph.values[name].scale
            if str(source.ty.dtype) == "uint8":
                expression = cpu_subgraphs.as_int8(source, self._emit)
            else:
                assert scale is not None
                expression = cpu_subgraphs.quantise_tensor(source, scale)
            self.known[name] = self._emit(expression)
        return self.known[name]

    def _unpack(self, made: RelaxExpr, names: Sequence[str]) -> None:
        for i, name in enumerate(names):
            self.known[name] = self._emit(relax.TupleGetItem(made, i))

    def _emit(self, expression: RelaxExpr) -> RelaxExpr:
        return self._builder.emit(expression)
