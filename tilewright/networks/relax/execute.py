"""Compiles a Relax module for the CPU and runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from tilewright.networks.errors import ImportFailedError, InputError, refused_inputs
from tilewright.networks.relax.bindings import shape_of
from tilewright.networks.relax.failures import plain
from tilewright.networks.relax.uncompilable import uncompilable_operator


class CompiledModule:
    """`main` of a module without open weights, compiled by LLVM for this machine.

    Raises `ImportFailedError` where the module cannot be compiled.
    """

    def __init__(self, module: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        try:
            executable = tvm.compile(module, target="llvm")
        except Exception as error:
            said = uncompilable_operator(module["main"])
            said += f": {plain(error)}" if plain(error) else ""
            raise ImportFailedError(
                f"TVM {tvm.__version__} imports the model and cannot compile it for this CPU"
                f"{said}; its layers can be tuned all the same: "
                "to run it here, export it with simpler operators"
            ) from error
        self._types = [(shape_of(p), str(p.ty.dtype)) for p in module["main"].params]
        self._machine = relax.VirtualMachine(executable, tvm.cpu())

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Arrays by input name in, by output name out; raises `InputError`."""
        if set(inputs) != set(self.inputs):
            raise InputError(
                f"the network's inputs are {', '.join(self.inputs)}, not {', '.join(inputs)}; "
                "give one array for each"
            )
        arrays = [self._checked(name, np.asarray(inputs[name], order="C")) for name in self.inputs]
        try:
            result = self._machine["main"](*map(tvm.runtime.tensor, arrays))
        except (ValueError, TypeError, RuntimeError) as error:
            if isinstance(refused := refused_inputs(error), InputError):
                raise refused from error
            said = plain(error) or "TVM stops while it computes"
            raise InputError(
                f"the network cannot run on these arrays: {said}; check their values"
            ) from error
        values = [result] if len(self.outputs) == 1 and hasattr(result, "numpy") else list(result)
        return {name: value.numpy() for name, value in zip(self.outputs, values, strict=True)}

    def _checked(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        shape, dtype = self._types[self.inputs.index(name)]
        if (array.shape, array.dtype.name) != (shape, dtype):
            raise InputError(
                f"input '{name}' takes {dtype} of shape {shape}, not {array.dtype} of shape "
                f"{array.shape}; convert the array"
            )
        return array
