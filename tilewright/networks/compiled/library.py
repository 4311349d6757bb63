"""Compile a rewritten module into a shared library, and extract its weights.

One of the last compiler passes is TVM's memory planning, `StaticPlanBlockMemory`. It lets tensors
between calls share memory if they are never needed at the same time.

TVM generates the machine code of a module on one core. To use several cores, this module divides
the functions into groups and compiles each group into an object file, on one thread per group. The
linker joins the object files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar
from tvm.target.codegen import target_has_features

from tilewright.core.process_info import usable_cores
from tilewright.core.tvm_types import (
    Array,
    IRModule,
    Pass,
    PrimFunc,
    RelaxCall,
    RelaxFunction,
    RuntimeModule,
    TvmTarget,
    VMExecutable,
)
from tilewright.networks.compiled.attention import JoinedAttention
from tilewright.networks.compiled.default_schedules import joining_rows, make_schedule_pass
from tilewright.networks.compiled.kernel_calls import KERNEL
from tilewright.networks.compiled.scatter import OPERATOR, scatter_nd
from tilewright.networks.compiled.vector_math import vector_legalizations
from tilewright.networks.compiled.weights_parameter import taking_out
from tilewright.networks.errors import ImportFailedError, UncompilableError
from tilewright.networks.relax.bindings import FlatGraph
from tilewright.networks.relax.execute import uncompilable_nodes
from tilewright.networks.relax.failures import plain_message
from tilewright.networks.relax.nan_propagation import propagating_nan


def compiled_library(
    module: IRModule, target: TvmTarget, pipeline: str, source: FlatGraph | None = None,
    attention: JoinedAttention | None = None, *, ignore_nan: bool = False,
) -> tuple[bytes, Sequence[Array]]:  # fmt: skip
    """Compile `main` and its kernels into a shared library.

    Args:
        module: a Relax module that `networks.compiled.kernel_calls` rewrote.
        target: TVM's description of the processor.
        pipeline: name of the TVM pipeline that lowers kernels.
        source: the module before it was rewritten. It is used to name operators that fail to
            compile.
        attention: finds and fuses attention. If None, attention is not fused.
        ignore_nan: keep TVM's maxima and minima in operators without a kernel. They may return a
            number although one operand is NaN.

    Returns:
        The library as bytes, and the weights that were moved out of it. `LoadedLibrary` needs both.

    Raises:
        UncompilableError: TVM cannot compile an operator.
        ImportFailedError: no C compiler was found, which is needed for linking.
    """
    with tempfile.TemporaryDirectory() as folder:
        executable, weights = _compile_objects(
            module, target, pipeline, source, attention, Path(folder), ignore_nan
        )
        return _link_library(executable, Path(folder)), weights


def _compile_objects(
    module: IRModule, target: TvmTarget, pipeline: str, source: FlatGraph | None,
    attention: JoinedAttention | None, folder: Path, ignore_nan: bool,
) -> tuple[VMExecutable, Sequence[Array]]:  # fmt: skip
    """Compile a module into object files, and return an executable that refers to them.

    Args:
        module: the Relax module.
        target: TVM's description of the processor.
        pipeline: name of the TVM pipeline that lowers kernels.
        source: the module before it was rewritten, for error messages.
        attention: finds and fuses attention, or None.
        folder: folder for the object files, which must exist until the library is linked.
        ignore_nan: keep TVM's maxima and minima, which do not propagate NaN.

    Returns:
        The executable, and the weights that were moved out of it.
    """
    weights: list[Array] = []
    lanes = _lanes(target)
    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps({**vector_legalizations(), OPERATOR: scatter_nd}),
        *([] if ignore_nan else [propagating_nan(KERNEL)]),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(), joining_rows(lanes),
        relax.transform.FuseOps(), relax.transform.FuseTIR(),
        relax.transform.RewriteDataflowReshape(),  # of functions in TVM's own form
        *([] if attention is None else [attention.make_pass(lanes)]),
        make_schedule_pass(lanes), taking_out(weights), relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(), relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(), relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(), relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(), compiling_functions(target, pipeline, folder),
    ]  # fmt: skip
    try:
        with target:
            made = tvm.compile(
                module,
                target=target,
                relax_pipeline=tvm.ir.transform.Sequential(passes),
            )
    except Exception as error:
        said = f": {plain_message(error)}" if plain_message(error) else ""
        raise UncompilableError(
            f"TVM {tvm.__version__} cannot compile the network for this CPU{said}",
            () if source is None else uncompilable_nodes(source),
        ) from error
    return made, weights


def _lanes(target: TvmTarget) -> int:
    """Return the number of float32 values in a vector of the processor."""
    lanes = {"avx512f": 16, "avx2": 8}
    return next((n for name, n in lanes.items() if target_has_features(name, target)), 4)


def _link_library(executable: VMExecutable, folder: Path) -> bytes:
    """Link an executable and its object files into a shared library, and return it as bytes."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise ImportFailedError(
            "linking the library of a network needs a C compiler, and none was found; "
            "install gcc or clang"
        )
    path = folder / "network.so"
    executable.export_library(str(path), options=["-s", "-Wl,--build-id=none"])
    return path.read_bytes()


GROUPS = 8
"""Number of object files per library. It does not depend on the number of cores, so that a model is
compiled to the same library on every machine."""

Functions: TypeAlias = Mapping[GlobalVar, PrimFunc]
"""TensorIR functions of a module, by their global variables."""


def compiling_functions(target: TvmTarget, pipeline: str, folder: Path) -> Pass:
    """Return a pass that compiles a module's TensorIR functions into object files.

    It is the last pass of the Relax pipeline. Calls of the functions become calls by name. The
    object files are added to the module's `external_mods`, which TVM links into the library.

    Args:
        target: TVM's description of the processor.
        pipeline: name of the pipeline that lowers functions.
        folder: folder for the object files, which must exist until the library is linked.
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
    """Divide functions into groups that are compiled in parallel, on one thread per group.

    Functions are assigned to the groups in turn, in the order of the module.

    Args:
        functions: the functions of a module, by global variable.
    """
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
    """Return the symbol name under which a lowered function is linked."""
    assert function.attrs is not None
    return str(function.attrs["global_symbol"])
