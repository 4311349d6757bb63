"""Reads what compiling reveals of a kernel: what its loops touch, and what LLVM made of them.

TVM's `PerStoreFeature` gives 164 numbers a statement that stores (after Ansor, Zheng et al. 2020,
appendix B), most of them as log2(1 + number). They are summed up to one row a kernel, by the rule
at the end of a column's text:

    sum       over all stores
    main      of the store with the most arithmetic, which is the sum of products
    largest   over all stores

What LLVM made of the loops is counted in its assembly (`targets.cpu.assembly`).
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
_BUFFERS, _EACH, _FIRST = 5, 18, 57  # places in a row: buffers, columns a buffer, the first one
_SAMPLES = 10
_CURVE, _ALLOCATED = _FIRST + _BUFFERS * _EACH, _FIRST + _BUFFERS * _EACH + _SAMPLES
_ROW = 164
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
"""None has a meaning that models sum up: counts in a program's text are not counts of what runs,
and sums over stores leave out what the caches do. Models see each column by itself."""


def hidden_features(
    function: PrimFunc, target: TvmTarget, assembly: str, code_bytes: int
) -> tuple[float, ...]:
    """A number a column of `COLUMNS`, from the scheduled TensorIR function and LLVM's assembly."""
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
    """A number a column of `STORE_COLUMNS`, of a scheduled TensorIR function for TVM's target."""
    module = tvm.IRModule({"main": function})
    candidate = meta_schedule.MeasureCandidate(s_tir.Schedule(module), [])
    return summed(_extractor().extract_from(_context(module, target), [candidate])[0].numpy())


def summed(rows: NDArray[np.float64]) -> tuple[float, ...]:
    """One row of `STORE_COLUMNS` from those of all stores, shape (stores, 164)."""
    assert rows.shape[1] == _ROW, f"TVM's features have {rows.shape[1]} columns, not {_ROW}"
    plain = np.sign(rows) * np.expm1(np.abs(rows) * np.log(2.0))
    work = plain[:, :7].sum(axis=1)
    main = plain[int(work.argmax())]
    buffers = plain[:, _FIRST:_CURVE].reshape(-1, _BUFFERS, _EACH)
    of_main = buffers[int(work.argmax())]
    parallel = np.maximum(plain[:, 39], 1.0)
    numbers = (
        work.sum(), plain[:, 7:16].sum(), buffers[..., 3].sum(), buffers[..., 4].sum(),
        buffers[..., 5].sum(), buffers[..., 6].sum(), of_main[:, 11].max(), of_main[:, 12].max(),
        of_main[:, 17].max(), main[18], main[29], parallel.max(),
        main[_CURVE], main[_CURVE + 4], main[_CURVE + 9], plain[:, _ALLOCATED].sum(),
    )  # fmt: skip
    return tuple(float(number) for number in numbers)


def _context(module: IRModule, target: TvmTarget) -> TuneContext:
    """A `TuneContext`, by the constructor that TVM registers. The one in Python imports all tensor
    intrinsics first, hundreds of functions that take ten seconds to parse; features need none."""
    from tvm.s_tir import meta_schedule  # noqa: F401  registers the type of what is made

    make = tvm.get_global_func("s_tir.meta_schedule.TuneContext")
    return make(module, target, None, None, "main", 1, -1, None)


@cache
def _extractor() -> PerStoreFeature:
    return feature_extractor.PerStoreFeature()
