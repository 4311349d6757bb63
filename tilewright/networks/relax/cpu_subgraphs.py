"""Compiles and runs CPU islands: operators between an accelerator's layers, as Relax functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GlobalVar

from tilewright.core.tvm_types import (
    Array,
    BlockBuilder,
    IRModule,
    PrimFunc,
    RelaxConstant,
    RelaxExpr,
    RelaxFunction,
    RelaxVar,
    VMExecutable,
)
from tilewright.networks.errors import refused_inputs
from tilewright.networks.partition.region_session import RegionCalls
from tilewright.networks.relax.bindings import FlatGraph, variables
from tilewright.targets.layer import Scale

CALLED = "tilewright.called"
"""Attribute of an island's function: the functions of its module that it calls, by their variables.
"""


@dataclass(frozen=True, eq=False)
class CpuNode:
    """A binding `var = value` that the CPU computes.

    Attributes:
        var: the variable.
        value: the expression.
        node: name of the source operator.
        value_name: name of the tensor.
    """

    var: RelaxVar
    value: RelaxExpr
    node: str
    value_name: str


@dataclass(frozen=True)
class HeldTensor:
    """An int8 tensor from which a variable of the network can be computed.

    Attributes:
        holder: the int8 tensor.
        shape: shape of the variable.
        scale: quantisation of the tensor if the variable is its dequantised float; None if the
            variable is an integer.
        dtype: type of an integer variable; "uint8" means that 128 is added.
    """

    holder: RelaxExpr
    shape: tuple[int, ...]
    scale: Scale | None = None
    dtype: str = "int8"


def int8_variable(name: str, shape: Sequence[int]) -> RelaxVar:
    """Return a new variable for an int8 tensor."""
    return relax.Var(name, relax.TensorType(tuple(shape), "int8"))


def reshape_tensor(holder: RelaxExpr, shape: Sequence[int]) -> RelaxExpr:
    """Return the expression that reshapes a tensor."""
    return relax.op.reshape(holder, tuple(shape))


def transposed(holder: RelaxExpr) -> RelaxExpr:
    """Return the expression that exchanges the last two axes of a tensor."""
    rank = len(holder.ty.shape)
    return relax.op.permute_dims(holder, [*range(rank - 2), rank - 1, rank - 2])


def select_part(holder: RelaxExpr, index: int) -> RelaxExpr:
    """Return the expression that selects one index of a tensor's first axis and removes the axis.

    Args:
        holder: the tensor.
        index: the index.
    """
    return relax.op.squeeze(relax.op.strided_slice(holder, [0], [index], [index + 1]), [0])


def stack_tensors(holders: Sequence[RelaxExpr], shape: Sequence[int]) -> RelaxExpr:
    """Return the expression that concatenates tensors of one shape and reshapes the result."""
    return relax.op.reshape(relax.op.concat(list(holders), axis=0), tuple(shape))


def redirect_move(value: RelaxExpr, replaced: Mapping[RelaxVar, RelaxExpr]) -> RelaxExpr:
    """Return a data-movement call that reads other expressions in place of some variables.

    Args:
        value: the call.
        replaced: the expression to read instead, by variable.
    """
    return relax.Call(value.op, [_replace(arg, replaced) for arg in value.args], value.attrs)


def _replace(arg: RelaxExpr, replaced: Mapping[RelaxVar, RelaxExpr]) -> RelaxExpr:
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([_replace(field, replaced) for field in arg.fields])
    return replaced.get(arg, arg) if isinstance(arg, relax.Var) else arg


def quantise_tensor(real: RelaxExpr, scale: Scale) -> RelaxExpr:
    """Return the expression that quantises a float tensor to int8."""
    return relax.op.quantize(real, *_constants(scale), axis=-1, out_dtype="int8")


def dequantise_tensor(integers: RelaxExpr, scale: Scale) -> RelaxExpr:
    """Return the expression that converts an int8 tensor to float32."""
    return relax.op.dequantize(integers, *_constants(scale), axis=-1, out_dtype="float32")


def as_uint8(integers: RelaxExpr, emit: Callable[[RelaxExpr], RelaxExpr]) -> RelaxExpr:
    """Return the expression that converts int8 to uint8 by adding 128.

    Args:
        integers: the int8 tensor.
        emit: binds intermediate expressions.
    """
    wide = emit(relax.op.astype(integers, "int16"))
    return relax.op.astype(emit(relax.op.add(wide, relax.const(128, "int16"))), "uint8")


def as_int8(integers: RelaxExpr, emit: Callable[[RelaxExpr], RelaxExpr]) -> RelaxExpr:
    """Return the expression that converts uint8 to int8 by subtracting 128.

    Args:
        integers: the uint8 tensor.
        emit: binds intermediate expressions.
    """
    wide = emit(relax.op.astype(integers, "int16"))
    return relax.op.astype(emit(relax.op.subtract(wide, relax.const(128, "int16"))), "int8")


def _constants(scale: Scale) -> tuple[RelaxConstant, RelaxConstant]:
    return (
        relax.const(np.float32(scale.step), "float32"),
        relax.const(np.int8(scale.zero_point), "int8"),
    )


def function_of(
    flat: FlatGraph,
    nodes: Sequence[CpuNode],
    inputs: Sequence[RelaxVar],
    outputs: Sequence[RelaxVar],
    held: Mapping[RelaxVar, HeldTensor],
) -> RelaxFunction:
    """Build the Relax function of an island.

    Args:
        flat: the graph.
        nodes: bindings that the island computes.
        inputs: variables that are parameters of the function.
        outputs: variables whose values the function returns as a tuple.
        held: how to compute a variable that is neither an input nor computed by `nodes`.
    """
    builder = relax.BlockBuilder()
    known = set(inputs)

    def need(var: RelaxVar) -> None:
        if var in known:
            return
        known.add(var)
        if var in held:
            _emit(builder, var, _unpack_held(builder, held[var]))
        elif var in flat.constants:
            binding = flat.by_var[var]
            for operand in variables(binding.value):
                need(operand)
            builder.emit_normalized(relax.VarBinding(var, binding.value))

    with builder.function("island", list(inputs)):
        with builder.dataflow():
            for node in nodes:
                for operand in variables(node.value):
                    need(operand)
                known.add(node.var)
                _emit(builder, node.var, node.value)
            result = builder.emit_output(relax.Tuple(list(outputs)))
        builder.emit_func_output(result)
    function = relax.utils.copy_with_new_vars(builder.finalize()["island"])
    called = {variable: flat.module[variable] for variable in _called_functions(nodes, flat)}
    return function.with_attr(CALLED, called) if called else function


def _called_functions(nodes: Sequence[CpuNode], flat: FlatGraph) -> list[GlobalVar]:
    """Return the functions of the module that an island or constants in it call.

    These are operators that TVM's importer writes in TIR.
    """
    result: dict[str, GlobalVar] = {}
    waiting, seen = [node.value for node in nodes], set()
    while waiting:
        value = waiting.pop()
        for arg in getattr(value, "args", ()):
            if isinstance(arg, GlobalVar):
                result[arg.name_hint] = arg
        for operand in variables(value):
            if operand in flat.constants and operand in flat.by_var and operand not in seen:
                seen.add(operand)
                waiting.append(flat.by_var[operand].value)
    return list(result.values())


def _unpack_held(builder: BlockBuilder, held: HeldTensor) -> RelaxExpr:
    value = held.holder
    if held.scale is not None:
        value = builder.emit(dequantise_tensor(value, held.scale))
    elif held.dtype == "uint8":
        value = builder.emit(as_uint8(value, builder.emit))
    if tuple(int(size) for size in held.holder.ty.shape) != held.shape:
        value = relax.op.reshape(value, held.shape)
    return value


def _emit(builder: BlockBuilder, var: RelaxVar, value: RelaxExpr) -> None:
    builder.emit_normalized(relax.VarBinding(var, builder.normalize(value)))


class Library:
    """Compiled islands, which are called by name.

    Args:
        executable: the compiled islands.
        regions: regions that the islands call in onnxruntime.
    """

    def __init__(self, executable: VMExecutable, regions: RegionCalls | None = None) -> None:
        self._regions = regions
        with regions.registered() if regions else nullcontext():
            self._machine = relax.VirtualMachine(executable, tvm.cpu())

    @classmethod
    def load(cls, path: Path, regions: RegionCalls | None = None) -> Library:
        """Load a compiled library. This runs code from the file, so the file must be trusted.

        Args:
            path: the shared library.
            regions: regions that the islands call in onnxruntime.
        """
        return cls(tvm.runtime.load_module(str(path)), regions)

    def __call__(self, name: str, arrays: Sequence[Array]) -> list[Array]:
        """Run an island.

        Args:
            name: name of the island.
            arrays: its inputs in order, with the shapes and types of the island's parameters.

        Returns:
            The outputs of the island in order.

        Raises:
            InputError: an index lies outside its tensor, or an integer is divided by zero.
        """
        # not ascontiguousarray, which makes a vector of a lone number
        given = [tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays]
        try:
            with self._regions.reraise_errors() if self._regions else nullcontext():
                result = self._machine[name](*given)
        except ValueError as error:
            raise refused_inputs(error) from error
        return [item.numpy() for item in result]


def compiled(functions: Mapping[str, RelaxFunction]) -> VMExecutable:
    """Compile functions for this machine's CPU. Exceptions of TVM are passed on.

    Args:
        functions: Relax functions by name.
    """
    from tilewright.networks.relax.nan_propagation import propagating_nan

    target = tvm.target.Target("llvm")
    passes = [  # those that TVM's pipeline begins with, and ours behind them
        relax.backend.DispatchSampling(), relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(), propagating_nan(),
    ]  # fmt: skip
    with target:
        module = tvm.ir.transform.Sequential(passes)(_module(functions))
    return tvm.compile(module, target=target)


def compiles(functions: Mapping[str, RelaxFunction]) -> bool:
    """Return whether `compiled` succeeds for the functions."""
    try:
        compiled(functions)
    except Exception:
        return False
    return True


def _module(functions: Mapping[str, RelaxFunction]) -> IRModule:
    """Return a module with the islands by name and the functions that they call."""
    called: dict[GlobalVar, PrimFunc | RelaxFunction] = {}
    for function in functions.values():
        called.update((function.attrs or {}).get(CALLED) or {})
    module = tvm.IRModule(called)
    for name, function in functions.items():
        module[name] = function.without_attr(CALLED).with_attr("global_symbol", name)
    return module
