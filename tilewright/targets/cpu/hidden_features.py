"""Hidden features of a kernel, which are known after compilation and before it is timed.

The features describe the memory accesses of the kernel's loops, and count LLVM's instructions. For
memory accesses, TVM's `PerStoreFeature` returns 164 values per store statement (after Ansor, Zheng
et al. 2020, appendix B), most of them as log2(1 + value). This module aggregates the rows of all
store statements to one row per kernel. Each column's description ends with the rule of the
aggregation:

    sum       sum over all stores
    main      value of the store with the most arithmetic, which accumulates the products
    largest   maximum over all stores

Instructions are counted in LLVM's assembly text (`targets.cpu.assembly`).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import IRModule, PerStoreFeature, PrimFunc, TuneContext, TvmTarget
from tilewright.targets.cpu.assembly import mix_of
from tilewright.targets.features import Feature

s_tir = lazy_module("tvm.s_tir")
meta_schedule = lazy_module("tvm.s_tir.meta_schedule")
feature_extractor = lazy_module("tvm.s_tir.meta_schedule.feature_extractor")
tvm = lazy_module("tvm")

STORE_COLUMNS = (
    Feature("operations", "", "compute", "floating-point operations; sum"),
    Feature("index_operations", "", "", "integer and boolean operations; sum"),
    Feature("bytes_touched", "", "load", "bytes read and written by all iterations; sum"),
    Feature("bytes_unique", "", "load", "different bytes read and written; sum"),
    Feature("lines_touched", "", "load", "cache lines of all iterations; sum"),
    Feature("lines_unique", "", "load", "different cache lines; sum"),
    Feature("bytes_reused", "", "load", "bytes touched between uses of a number; main, largest"),
    Feature("reuses", "", "", "uses of a number by its innermost reusing loop; main, largest"),
    Feature("stride", "", "", "numbers from one access to the next in the innermost loop; main"),
    Feature("vectorised", "", "", "iterations of vectorised loops; main"),
    Feature("unrolled", "", "", "iterations of unrolled loops; main"),
    Feature("chunks", "", "", "iterations of parallel loops; largest"),
    Feature("intensity_inner", "", "", "operations a byte in the innermost loops; main"),
    Feature("intensity_half", "", "", "operations a byte half way out; main"),
    Feature("intensity_outer", "", "", "operations a byte over all loops; main"),
    Feature("bytes_allocated", "", "", "bytes of temporary buffers; sum"),
)
_BUFFERS, _EACH, _FIRST = 5, 18, 57
"""Layout of the feature row that TVM computes for a store: number of buffers, columns per buffer,
and first column of the first buffer."""
_SAMPLES = 10
"""Number of columns that sample the curve of arithmetic intensity in TVM's feature row."""
_CURVE, _ALLOCATED = _FIRST + _BUFFERS * _EACH, _FIRST + _BUFFERS * _EACH + _SAMPLES
_ROW = 164
"""Number of columns of TVM's feature row."""
CODE_COLUMNS = (
    Feature("fused_share", "", "compute", "vector multiply-adds, of all vector instructions"),
    Feature("broadcast_share", "", "load", "numbers copied into all of a vector, likewise"),
    Feature("load_share", "", "load", "vector moves from memory, likewise"),
    Feature("store_share", "", "store", "vector moves to memory, likewise"),
    Feature("spill_share", "", "", "vector moves to and from the stack, likewise"),
    Feature("wide_share", "", "", "those on the widest registers in use, likewise"),
    Feature("instructions", "", "", "in the text of the functions that compute"),
    Feature("branches", "", "", "jumps and calls in the text"),
    Feature("spills", "", "", "vector moves to and from the stack in the text"),
    Feature("stack_bytes", "", "", "of the functions' frames"),
    Feature("code_bytes", "", "", "of the library"),
)
COLUMNS = (*STORE_COLUMNS, *CODE_COLUMNS)
"""All hidden features, in the order of their values.

Models use each column separately. The columns have no `Feature` meaning, because a meaning would
allow models to add up values. Instructions are counted in the assembly text, so the counts are not
those of executed instructions. Adding up the features of several stores would ignore the caches."""


def hidden_features(
    function: PrimFunc, target: TvmTarget, assembly: str, code_bytes: int
) -> tuple[float, ...]:
    """Compute the hidden features of a kernel.

    Args:
        function: the scheduled TensorIR function.
        target: TVM's target.
        assembly: LLVM's assembly text of the function.
        code_bytes: size of the library in bytes.

    Returns:
        One value per column of `COLUMNS`.
    """
    mix = mix_of(assembly)
    vectors = max(mix.vectors, 1)
    shares = (mix.fused, mix.broadcasts, mix.vector_loads, mix.vector_stores, mix.spills, mix.wide)
    code = (mix.total, mix.branches, mix.spills, mix.stack_bytes, code_bytes)
    return (
        *store_features(function, target),
        *(share / vectors for share in shares),
        *map(float, code),
    )


def store_features(function: PrimFunc, target: TvmTarget) -> tuple[float, ...]:
    """Compute the features of a kernel's memory accesses.

    Args:
        function: the scheduled TensorIR function.
        target: TVM's target.

    Returns:
        One value per column of `STORE_COLUMNS`.
    """
    module = tvm.IRModule({"main": function})
    candidate = meta_schedule.MeasureCandidate(s_tir.Schedule(module), [])
    return sum_features(_extractor().extract_from(_context(module, target), [candidate])[0].numpy())


def sum_features(rows: NDArray[np.float64]) -> tuple[float, ...]:
    """Aggregate TVM's features of all store statements to one row, by the rule of each column.

    Args:
        rows: TVM's features, float64 array of shape (stores, 164).

    Returns:
        One value per column of `STORE_COLUMNS`.
    """
    assert rows.shape[1] == _ROW, f"TVM's features have {rows.shape[1]} columns instead of {_ROW}"
    # TVM stores sign(x) log2(1 + |x|), but values must be summed as they are.
    values = np.sign(rows) * np.expm1(np.abs(rows) * np.log(2.0))
    operations = values[:, :7].sum(axis=1)
    main = values[int(operations.argmax())]
    buffers = values[:, _FIRST:_CURVE].reshape(-1, _BUFFERS, _EACH)
    of_main = buffers[int(operations.argmax())]
    parallel = np.maximum(values[:, 39], 1.0)
    numbers = (
        operations.sum(), values[:, 7:16].sum(), buffers[..., 3].sum(), buffers[..., 4].sum(),
        buffers[..., 5].sum(), buffers[..., 6].sum(), of_main[:, 11].max(), of_main[:, 12].max(),
        of_main[:, 17].max(), main[18], main[29], parallel.max(),
        main[_CURVE], main[_CURVE + 4], main[_CURVE + 9], values[:, _ALLOCATED].sum(),
    )  # fmt: skip
    return tuple(float(number) for number in numbers)


def _context(module: IRModule, target: TvmTarget) -> TuneContext:
    """Return TVM's `TuneContext` for computing features, with the fast C++ constructor.

    The constructor in Python would first import all tensor intrinsics: hundreds of functions that
    take ten seconds to parse. Features need none of these functions.

    Args:
        module: the module that contains the kernel.
        target: TVM's target.
    """
    from tvm.s_tir import meta_schedule  # noqa: F401  registers the type of what is made

    make = tvm.get_global_func("s_tir.meta_schedule.TuneContext")
    return make(module, target, None, None, "main", 1, -1, None)


@cache
def _extractor() -> PerStoreFeature:
    return feature_extractor.PerStoreFeature()
