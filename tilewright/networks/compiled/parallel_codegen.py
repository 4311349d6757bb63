"""Compile the functions of a library on all cores.

TVM generates the machine code of a module on one core. Here, functions are compiled in groups, each
by one thread into its own object file, and the linker combines the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tilewright.core.process_info import usable_cores

GROUPS = 8
"""Number of object files per library. It does not depend on the number of cores, so that equal
models give equal libraries on every machine."""


def compiling_functions(target: Any, pipeline: str, folder: Path) -> Any:
    """Return a pass that compiles a module's functions into object files in `folder`.

    It is the last pass of a Relax pipeline. Calls of the functions become calls by name, and the
    object files become modules in the attribute `external_mods`, which TVM links into the library.

    Args:
        target: TVM's description of the processor.
        pipeline: name of the TVM pipeline that lowers functions.
        folder: folder for the object files. They must exist until the library is linked.
    """

    @tvm.transform.module_pass(opt_level=0, name="CompileFunctions")
    def compile_functions(module: Any, _context: Any) -> Any:
        functions = {
            variable: function
            for variable, function in module.functions.items()
            if isinstance(function, tirx.PrimFunc)
        }
        groups = _groups(functions)

        def compile_group(number: int) -> Any:
            compiled_group = tvm.tirx.build(
                tvm.IRModule(groups[number]), target=target, pipeline=pipeline
            )
            path = str(folder / f"functions{number}.o")
            compiled_group.write_to_file(path)
            names = [str(function.attrs["global_symbol"]) for function in groups[number].values()]
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


def _groups(functions: Mapping[Any, Any]) -> Sequence[Mapping[Any, Any]]:
    """Return the functions in groups; each group keeps the order of the module."""
    ordered = list(functions.items())
    return [dict(ordered[first::GROUPS]) for first in range(min(GROUPS, len(ordered)))]


def _calling_by_name(graph: Any, functions: Mapping[Any, Any]) -> Any:
    def by_name(call: Any) -> Any:
        if call.op not in functions:
            return call
        name = functions[call.op].attrs["global_symbol"]
        return relax.Call(relax.ExternFunc(name), call.args, call.attrs, call.ty_args)

    return tvm_ffi.structural_map(graph, (relax.Call, by_name))
