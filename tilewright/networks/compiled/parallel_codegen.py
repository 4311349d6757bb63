"""Compiles the functions of a library on all cores.

TVM generates the machine code of a module on one core. Here functions are compiled in groups, each
by a thread into an object file of its own, and the linker joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tilewright.core.process_info import usable_cores
from tilewright.core.tvm_types import (
    IRModule,
    Pass,
    PrimFunc,
    RelaxCall,
    RelaxFunction,
    RuntimeModule,
    TvmTarget,
)

GROUPS = 8
"""Number of object files per library. It does not depend on the number of cores, so that equal
models give equal libraries on every machine."""

Functions: TypeAlias = Mapping[GlobalVar, PrimFunc]
"""Functions of TensorIR by their variables in a module."""


def compiling_functions(target: TvmTarget, pipeline: str, folder: Path) -> Pass:
    """Return a pass that compiles a module's functions into object files in `folder`.

    It comes last in a pipeline of Relax. Calls of the functions become calls by name, and the
    object files become modules of `external_mods`, which TVM links into the library.

    Args:
        target: What the code is for.
        pipeline: The name of the pipeline that lowers functions.
        folder: Where object files are written. They must exist until the library is linked.
    """

    @tvm.transform.module_pass(opt_level=0, name="CompileFunctions")
    def compile_functions(module: IRModule, _context: object) -> IRModule:
        functions = {
            variable: function
            for variable, function in module.functions.items()
            if isinstance(function, tirx.PrimFunc)
        }
        groups = _groups(functions)

        def compile_group(number: int) -> RuntimeModule:
            made = tvm.tirx.build(tvm.IRModule(groups[number]), target=target, pipeline=pipeline)
            path = str(folder / f"functions{number}.o")
            made.write_to_file(path)
            names = list(map(_symbol, groups[number].values()))
            return tvm.runtime.load_static_library(path, names)

        with ThreadPoolExecutor(min(len(groups), usable_cores()) or 1) as pool:
            libraries = list(pool.map(compile_group, range(len(groups))))
        graphs = {
            variable: _calling_by_name(function, functions)
            for variable, function in module.functions.items()
            if variable not in functions
        }
        return tvm.IRModule(graphs, attrs=module.attrs).with_attr("external_mods", libraries)

    return compile_functions


def _groups(functions: Functions) -> Sequence[Functions]:
    """Return the functions in groups, in the order in which the module has them."""
    ordered = list(functions.items())
    return [dict(ordered[first::GROUPS]) for first in range(min(GROUPS, len(ordered)))]


def _calling_by_name(graph: RelaxFunction, functions: Functions) -> RelaxFunction:
    def by_name(call: RelaxCall) -> RelaxCall:
        if call.op not in functions:
            return call
        name = _symbol(functions[call.op])
        return relax.Call(relax.ExternFunc(name), call.args, call.attrs, call.ty_args)

    return tvm_ffi.structural_map(graph, (relax.Call, by_name))


def _symbol(function: PrimFunc) -> str:
    """Return the name under which a function is linked; it has one since the module was lowered."""
    assert function.attrs is not None
    return str(function.attrs["global_symbol"])
