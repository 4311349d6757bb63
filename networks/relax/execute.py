"""Compiles a Relax module for the CPU and runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from networks.errors import ImportFailedError, InputError, first_line, last_line


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
            raise ImportFailedError(
                f"the model cannot be compiled for the CPU: {last_line(error)}; simplify the model"
            ) from error
        self._machine = relax.VirtualMachine(executable, tvm.cpu())

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Arrays by input name in, by output name out; raises `InputError`."""
        if set(inputs) != set(self.inputs):
            raise InputError(
                f"the network's inputs are {', '.join(self.inputs)}, not {', '.join(inputs)}; "
                "give one array for each"
            )
        arrays = [tvm.runtime.tensor(np.ascontiguousarray(inputs[name])) for name in self.inputs]
        try:
            result = self._machine["main"](*arrays)
        except (ValueError, TypeError, RuntimeError) as error:
            reason = first_line(error)
            raise InputError(f"the network cannot run on these arrays: {reason}") from error
        values = [result] if len(self.outputs) == 1 and hasattr(result, "numpy") else list(result)
        return {name: value.numpy() for name, value in zip(self.outputs, values, strict=True)}
