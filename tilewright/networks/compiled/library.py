"""Compiles a rewritten module into a shared library, and its weights."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.target.codegen import target_has_features

from tilewright.networks.compiled.attention import JoinedAttention
from tilewright.networks.compiled.default_schedules import joining_rows, scheduling
from tilewright.networks.compiled.rewrite import KERNEL
from tilewright.networks.compiled.scatter import OPERATOR, scatter_nd
from tilewright.networks.compiled.vector_math import vector_legalizations
from tilewright.networks.compiled.weights import taking_out
from tilewright.networks.errors import ImportFailedError, UncompilableError
from tilewright.networks.relax.bindings import FlatGraph
from tilewright.networks.relax.execute import uncompilable_nodes
from tilewright.networks.relax.failures import plain
from tilewright.networks.relax.nan_propagation import propagating_nan

Array = NDArray[Any]


def compiled(
    module: Any, target: Any, pipeline: str, source: FlatGraph | None = None,
    attention: JoinedAttention | None = None,
) -> tuple[Any, Sequence[Array]]:  # fmt: skip
    """An executable of `main` and its kernels, which TVM's `pipeline` lowers, and the weights of
    any shape that a `LoadedLibrary` reads with it. `attention` joins what it finds. Raises
    `UncompilableError` naming the operator of `source`, the module before it was rewritten, that
    fails alone."""
    weights: list[Array] = []
    lanes = _lanes(target)
    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps({**vector_legalizations(), OPERATOR: scatter_nd}),
        propagating_nan(KERNEL),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(), joining_rows(lanes),
        relax.transform.FuseOps(), relax.transform.FuseTIR(),
        relax.transform.RewriteDataflowReshape(),  # of functions in TVM's own form
        *([] if attention is None else [attention.joining(lanes)]),
        scheduling(lanes), taking_out(weights), relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(), relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(), relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(), relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]  # fmt: skip
    try:
        with target:
            made = tvm.compile(
                module,
                target=target,
                relax_pipeline=tvm.ir.transform.Sequential(passes),
                tir_pipeline=pipeline,
            )
    except Exception as error:
        said = f": {plain(error)}" if plain(error) else ""
        raise UncompilableError(
            f"TVM {tvm.__version__} cannot compile it for this processor{said}",
            () if source is None else uncompilable_nodes(source),
        ) from error
    return made, weights


def _lanes(target: Any) -> int:
    """Numbers of float32 that the vectors of a processor hold."""
    lanes = {"avx512f": 16, "avx2": 8}
    return next((n for name, n in lanes.items() if target_has_features(name, target)), 4)


def library_bytes(executable: Any) -> bytes:
    """The executable as a shared library. Raises `ImportFailedError` without a
    linker."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise ImportFailedError(
            "a network's library is linked by a C compiler, and there is none: install gcc or clang"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        executable.export_library(str(path), options=["-s", "-Wl,--build-id=none"])
        return path.read_bytes()
