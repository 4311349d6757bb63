"""Compile a Relax module for the CPU, run it, and find operators that TVM cannot compile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

from tilewright.core.tvm_types import Array, IRModule, RelaxBinding, RelaxFunction
from tilewright.networks.errors import ImportFailedError, InputError, refused_inputs
from tilewright.networks.partition.region_models import RegionModel
from tilewright.networks.partition.region_session import RegionCalls, RegionSession
from tilewright.networks.relax.bindings import FlatGraph, shape_of, variables
from tilewright.networks.relax.cpu_subgraphs import compiles
from tilewright.networks.relax.failures import plain_message


class CompiledModule:
    """A module that is compiled with LLVM for this machine.

    Args:
        module: the module, whose function `main` is run. All weights must be constants, so that the
            parameters of `main` are the network's inputs.
        inputs: names of the inputs, in the order of the parameters.
        outputs: names of the outputs.
        regions: the parts of the network that the module runs in onnxruntime.

    Raises:
        ImportFailedError: TVM cannot compile the module.
    """

    def __init__(
        self, module: IRModule, inputs: Sequence[str], outputs: Sequence[str],
        regions: Sequence[RegionModel] = (),
    ) -> None:  # fmt: skip
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        try:
            executable = tvm.compile(module, target="llvm")
        except Exception as error:
            said = uncompilable_operator(module["main"])
            said += f": {plain_message(error)}" if plain_message(error) else ""
            raise ImportFailedError(
                f"TVM {tvm.__version__} can import the model but cannot compile it for this "
                f"CPU{said}; its layers can still be tuned. To run it here, export it with "
                "simpler operators"
            ) from error
        self._types = [(shape_of(p), str(p.ty.dtype)) for p in module["main"].params]
        self._calls = RegionCalls(
            [RegionSession.for_region(region, threads=0) for region in regions]
        )
        with self._calls.registered():
            self._machine = relax.VirtualMachine(executable, tvm.cpu())

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the module.

        Args:
            inputs: arrays by input name, with the shapes and types of the parameters.

        Returns:
            Arrays by output name.

        Raises:
            InputError: an input is missing or unknown, has the wrong shape or type, or has values
                on which the network cannot run.
        """
        if set(inputs) != set(self.inputs):
            raise InputError(
                f"the network's inputs are {', '.join(self.inputs)}, not "
                f"{', '.join(inputs)}; give one array for each input"
            )
        arrays = [
            self._check_array(name, np.asarray(inputs[name], order="C")) for name in self.inputs
        ]
        try:
            with self._calls.reraise_errors():
                result = self._machine["main"](*map(tvm.runtime.tensor, arrays))
        except (ValueError, TypeError, RuntimeError) as error:
            if isinstance(refused := refused_inputs(error), InputError):
                raise refused from error
            said = plain_message(error) or "TVM failed while computing"
            raise InputError(
                f"the network cannot run on these arrays: {said}; check their values"
            ) from error
        values = [result] if len(self.outputs) == 1 and hasattr(result, "numpy") else list(result)
        return {name: value.numpy() for name, value in zip(self.outputs, values, strict=True)}

    def _check_array(self, name: str, array: Array) -> Array:
        shape, dtype = self._types[self.inputs.index(name)]
        if (array.shape, array.dtype.name) != (shape, dtype):
            raise InputError(
                f"the input '{name}' must have type {dtype} and shape {shape}, not "
                f"{array.dtype} and {array.shape}; convert the array"
            )
        return array


def first_uncompilable(functions: Mapping[str, RelaxFunction]) -> str | None:
    """Return the name of the first function that TVM cannot compile, or None if there is none.

    Args:
        functions: the functions, by name. Each function is compiled by itself.
    """
    return next(
        (name for name, function in functions.items() if not compiles({name: function})), None
    )


def uncompilable_variable(function: RelaxFunction) -> str | None:
    """Return the name of the first variable whose expression TVM cannot compile by itself.

    Args:
        function: the function that contains the variables.

    Returns:
        The name of the variable. None if TVM can compile each expression, even if it cannot compile
        the whole function.
    """
    binding = _uncompilable(function)
    return None if binding is None else str(binding.var.name)


def uncompilable_nodes(flat: FlatGraph) -> tuple[str, ...]:
    """Return the source operator of the first expression that TVM cannot compile by itself.

    Args:
        flat: the network.

    Returns:
        The name of the operator in a tuple. The tuple is empty if TVM can compile each expression,
        or if the operator is unknown.
    """
    binding = _uncompilable(flat.module["main"])
    node = "" if binding is None else flat.by_var[binding.var].node
    return (node,) if node else ()


def uncompilable_operator(function: RelaxFunction) -> str:
    """Return a part of an error message that names the first operator that TVM cannot compile.

    Args:
        function: the function that contains the operator.

    Returns:
        A text such as ", operator topk". It is "" if TVM can compile each operator by itself.
    """
    binding = _uncompilable(function)
    if binding is None or not isinstance(binding.value, relax.Call):
        return ""
    name = str(getattr(binding.value.op, "name", None) or binding.var.name)
    return f", operator {name.rpartition('.')[2]}"


def _uncompilable(function: RelaxFunction) -> RelaxBinding | None:
    constants: list[RelaxBinding] = []
    for binding in _bindings(function):
        if isinstance(binding.value, relax.Tuple | relax.Var):
            continue
        alone = _single_expression_function(binding, constants)
        if not compiles({"alone": alone.with_attrs(function.attrs) if function.attrs else alone}):
            return binding
        if set(variables(binding.value)) <= {constant.var for constant in constants}:
            constants.append(binding)
    return None


def _bindings(function: RelaxFunction) -> Iterator[RelaxBinding]:
    for block in function.body.blocks:
        yield from block.bindings


def _single_expression_function(
    binding: RelaxBinding, constants: Sequence[RelaxBinding]
) -> RelaxFunction:
    """Return a function that computes a single expression.

    The variables that the expression reads become parameters of the function. Constants are
    computed inside the function.
    """
    known = {constant.var for constant in constants}
    read = [var for var in dict.fromkeys(variables(binding.value)) if var not in known]
    builder = relax.BlockBuilder()
    with builder.function("alone", read):
        with builder.dataflow():
            for needed in (*constants, binding):
                builder.emit_normalized(needed)
            output = builder.emit_output(binding.var)
        builder.emit_func_output(output)
    return relax.utils.copy_with_new_vars(builder.finalize()["alone"])
