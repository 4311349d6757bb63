"""Compile a rewritten module into a shared library, and extract its weights.

The list of passes ends with the memory plan: TVM's `StaticPlanBlockMemory` determines which tensors
between calls can share memory because they are never needed at the same time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm import relax
from tvm.target.codegen import target_has_features

from tilewright.core.tvm_types import Array, IRModule, TvmTarget, VMExecutable
from tilewright.networks.compiled.attention import JoinedAttention
from tilewright.networks.compiled.default_schedules import joining_rows, scheduling
from tilewright.networks.compiled.kernel_calls import KERNEL
from tilewright.networks.compiled.parallel_codegen import compiling_functions
from tilewright.networks.compiled.scatter import OPERATOR, scatter_nd
from tilewright.networks.compiled.vector_math import vector_legalizations
from tilewright.networks.compiled.weights_parameter import taking_out
from tilewright.networks.errors import ImportFailedError, UncompilableError
from tilewright.networks.relax.bindings import FlatGraph
from tilewright.networks.relax.execute import uncompilable_nodes
from tilewright.networks.relax.failures import plain
from tilewright.networks.relax.nan_propagation import propagating_nan


def compiled_library(
    module: IRModule, target: TvmTarget, pipeline: str, source: FlatGraph | None = None,
    attention: JoinedAttention | None = None, *, ignore_nan: bool = False,
) -> tuple[bytes, Sequence[Array]]:  # fmt: skip
    """Compile `main` and its kernels into a shared library.

    Args:
        module: a Relax module that `networks.compiled.kernel_calls` made.
        target: TVM's description of the processor.
        pipeline: name of the TVM pipeline that lowers kernels.
        source: the module before it was rewritten, used to name the operator that fails to compile.
        attention: fuses the attention that it finds, if given.
        ignore_nan: keep TVM's maxima and minima in operators without a kernel. They return a number
            if one operand is NaN.

    Returns:
        The library as bytes, and its weights, arrays that `LoadedLibrary` reads together with it.

    Raises:
        UncompilableError: TVM cannot compile an operator.
        ImportFailedError: there is no linker.
    """
    with tempfile.TemporaryDirectory() as folder:
        executable, weights = _compiled(
            module, target, pipeline, source, attention, Path(folder), ignore_nan
        )
        return _linked(executable, Path(folder)), weights


def _compiled(
    module: IRModule, target: TvmTarget, pipeline: str, source: FlatGraph | None,
    attention: JoinedAttention | None, folder: Path, ignore_nan: bool,
) -> tuple[VMExecutable, Sequence[Array]]:  # fmt: skip
    """Compile into object files in `folder`, and return an executable that refers to them."""
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
        # This pass only recognises reshapes in TVM's own form of functions.
        relax.transform.RewriteDataflowReshape(),
        *([] if attention is None else [attention.joining(lanes)]),
        scheduling(lanes), taking_out(weights), relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(), relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(), relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(), relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(), compiling_functions(target, pipeline, folder),
    ]  # fmt: skip
    try:
        with target:
            executable = tvm.compile(
                module,
                target=target,
                relax_pipeline=tvm.ir.transform.Sequential(passes),
            )
    except Exception as error:
        # TVM raises exceptions of many types.
        reason = f": {plain(error)}" if plain(error) else ""
        raise UncompilableError(
            f"TVM {tvm.__version__} cannot compile it for this processor{reason}",
            () if source is None else uncompilable_nodes(source),
        ) from error
    return executable, weights


def _lanes(target: TvmTarget) -> int:
    """Return the number of float32 values in a vector of the processor."""
    lanes = {"avx512f": 16, "avx2": 8}
    return next((n for name, n in lanes.items() if target_has_features(name, target)), 4)


def _linked(executable: VMExecutable, folder: Path) -> bytes:
    """Link an executable and its object files into a shared library, returned as bytes."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise ImportFailedError(
            "a network's library is linked by a C compiler, and there is none: install gcc or clang"
        )
    path = folder / "network.so"
    # Without symbols and a build ID, so that equal code gives equal libraries.
    executable.export_library(str(path), options=["-s", "-Wl,--build-id=none"])
    return path.read_bytes()
