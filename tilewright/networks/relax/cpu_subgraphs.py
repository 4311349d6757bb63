"""Compile and run CPU islands (operators between an accelerator's layers) as Relax functions."""

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
"""Attribute of the function of an island (a group of operators on the CPU). It contains the
functions of the island's module that the function calls, by their global variables."""


@dataclass(frozen=True, eq=False)
class CpuNode:
    """A binding `var = value` that the CPU computes.

    Attributes:
        var: the variable.
        value: the bound expression.
        node: name of the operator in the source model.
        value_name: name of the tensor.
    """

    var: RelaxVar
    value: RelaxExpr
    node: str
    value_name: str


@dataclass(frozen=True)
class HeldTensor:
    """An int8 tensor from which the value of a network variable can be computed.

    Attributes:
        holder: the int8 tensor.
        shape: shape of the variable.
        scale: quantisation of the tensor if the variable is the dequantised float32 tensor; None if
            the variable is an integer tensor.
        dtype: type of an integer variable. If it is "uint8", the variable equals the int8 tensor
            plus 128.
    """

    holder: RelaxExpr
    shape: tuple[int, ...]
    scale: Scale | None = None
    dtype: str = "int8"


def int8_variable(name: str, shape: Sequence[int]) -> RelaxVar:
    """Return a new Relax variable for an int8 tensor.

    Args:
        name: name of the variable.
        shape: shape of the tensor.
    """
    return relax.Var(name, relax.TensorType(tuple(shape), "int8"))


def reshape_tensor(holder: RelaxExpr, shape: Sequence[int]) -> RelaxExpr:
    """Return an expression that reshapes a tensor.

    Args:
        holder: the tensor.
        shape: the new shape.
    """
    return relax.op.reshape(holder, tuple(shape))


def transposed(holder: RelaxExpr) -> RelaxExpr:
    """Return an expression that exchanges the last two axes of a tensor.

    Args:
        holder: the tensor.
    """
    rank = len(holder.ty.shape)
    return relax.op.permute_dims(holder, [*range(rank - 2), rank - 1, rank - 2])


def select_part(holder: RelaxExpr, index: int) -> RelaxExpr:
    """Return an expression that selects one index along a tensor's first axis and removes the axis.

    Args:
        holder: the tensor.
        index: the index.
    """
    return relax.op.squeeze(relax.op.strided_slice(holder, [0], [index], [index + 1]), [0])


def stack_tensors(holders: Sequence[RelaxExpr], shape: Sequence[int]) -> RelaxExpr:
    """Return an expression that concatenates tensors along axis 0 and reshapes the result.

    Args:
        holders: the tensors, which have equal shapes.
        shape: shape of the result.
    """
    return relax.op.reshape(relax.op.concat(list(holders), axis=0), tuple(shape))


def redirect_move(value: RelaxExpr, replaced: Mapping[RelaxVar, RelaxExpr]) -> RelaxExpr:
    """Return a copy of a data-movement call in which some variables are replaced.

    Args:
        value: the call.
        replaced: the expression that the call reads instead, by variable.
    """
    return relax.Call(value.op, [_replace(arg, replaced) for arg in value.args], value.attrs)


def _replace(arg: RelaxExpr, replaced: Mapping[RelaxVar, RelaxExpr]) -> RelaxExpr:
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([_replace(field, replaced) for field in arg.fields])
    return replaced.get(arg, arg) if isinstance(arg, relax.Var) else arg


def quantise_tensor(real: RelaxExpr, scale: Scale) -> RelaxExpr:
    """Return an expression that quantises a float32 tensor to int8.

    Args:
        real: the float32 tensor.
        scale: step and zero point of the int8 tensor.
    """
    return relax.op.quantize(real, *_constants(scale), axis=-1, out_dtype="int8")


def dequantise_tensor(integers: RelaxExpr, scale: Scale) -> RelaxExpr:
    """Return an expression that converts an int8 tensor to float32.

    Args:
        integers: the int8 tensor.
        scale: step and zero point of the int8 tensor.
    """
    return relax.op.dequantize(integers, *_constants(scale), axis=-1, out_dtype="float32")


def as_uint8(integers: RelaxExpr, emit: Callable[[RelaxExpr], RelaxExpr]) -> RelaxExpr:
    """Return an expression that converts int8 to uint8 by adding 128.

    Args:
        integers: the int8 tensor.
        emit: function that binds an intermediate expression to a variable and returns the variable.
    """
    wide = emit(relax.op.astype(integers, "int16"))
    return relax.op.astype(emit(relax.op.add(wide, relax.const(128, "int16"))), "uint8")


def as_int8(integers: RelaxExpr, emit: Callable[[RelaxExpr], RelaxExpr]) -> RelaxExpr:
    """Return an expression that converts uint8 to int8 by subtracting 128.

    Args:
        integers: the uint8 tensor.
        emit: function that binds an intermediate expression to a variable and returns the variable.
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
    """Build the Relax function of an island, a group of operators that the CPU runs.

    Args:
        flat: the graph.
        nodes: the bindings that the island computes, in execution order.
        inputs: variables that become parameters of the function.
        outputs: variables whose values the function returns as a tuple.
        held: for a variable that is neither an input nor computed by `nodes`, the int8 tensor from
            which its value is computed.
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
    """Return the TensorIR functions of the module that an island, or a constant in it, calls.

    TVM's importer writes TensorIR functions for some operators.

    Args:
        nodes: the bindings that the island computes.
        flat: the graph.
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
    """A compiled library of CPU islands (groups of operators), which are called by name.

    Args:
        executable: the compiled islands.
        regions: the parts of the network that the islands run in onnxruntime, or None.
    """

    def __init__(self, executable: VMExecutable, regions: RegionCalls | None = None) -> None:
        self._regions = regions
        with regions.registered() if regions else nullcontext():
            self._machine = relax.VirtualMachine(executable, tvm.cpu())

    @classmethod
    def load(cls, path: Path, regions: RegionCalls | None = None) -> Library:
        """Load a compiled library of CPU islands from a file.

        Loading executes code from the file, so the file must be trusted.

        Args:
            path: path of the shared library.
            regions: the parts of the network that the islands run in onnxruntime, or None.
        """
        return cls(tvm.runtime.load_module(str(path)), regions)

    def __call__(self, name: str, arrays: Sequence[Array]) -> list[Array]:
        """Run an island, a group of operators between an accelerator's layers.

        Args:
            name: name of the island.
            arrays: inputs of the island, with the shapes and types of its parameters.

        Returns:
            The outputs of the island, in order.

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
    """Compile islands (groups of operators) for this machine's CPU.

    Exceptions of TVM are not caught.

    Args:
        functions: the Relax functions of the islands, by name.
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
    """Return whether TVM can compile the given Relax functions.

    Args:
        functions: the functions, by name.
    """
    try:
        compiled(functions)
    except Exception:
        return False
    return True


def _module(functions: Mapping[str, RelaxFunction]) -> IRModule:
    """Return a module that contains CPU islands and the TensorIR functions that they call."""
    called: dict[GlobalVar, PrimFunc | RelaxFunction] = {}
    for function in functions.values():
        called.update((function.attrs or {}).get(CALLED) or {})
    module = tvm.IRModule(called)
    for name, function in functions.items():
        module[name] = function.without_attr(CALLED).with_attr("global_symbol", name)
    return module
