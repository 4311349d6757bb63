"""Measures how fast the processor is, by two kernels.

A product of small matrices keeps its multipliers busy, and a sum over a piece of memory its loads.
Other kernels are timed beside the product. Its data fit the second-level cache of a core. So it
suffers from a lower clock or a lost core as they do, and leaves their data in cache.
"""

from __future__ import annotations

import numpy as np

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, PrimFunc
from tilewright.targets.cpu.spec import CpuSpec

te = lazy_module("tvm.te")
s_tir = lazy_module("tvm.s_tir")
tvm = lazy_module("tvm")

ROWS, DEPTH = 96, 256
_STREAMS = 8
"""Vectors of sums that a thread reads into: enough to hide the latency of an addition."""


def product(spec: CpuSpec) -> tuple[PrimFunc, list[Array], int]:
    """A scheduled TensorIR function, its arguments as arrays, and its floating-point operations.
    Every thread multiplies (96, 256) by (256, 4 vectors) for itself."""
    threads, columns = spec.threads, 4 * spec.lanes
    tall = 12 if spec.registers == 32 else 6
    left = te.placeholder((threads, ROWS, DEPTH), name="left")
    right = te.placeholder((threads, DEPTH, columns), name="right")
    k = te.reduce_axis((0, DEPTH), "k")
    out = te.compute(
        (threads, ROWS, columns),
        lambda t, m, n: te.sum(left[t, m, k] * right[t, k, n], axis=[k]),
        name="out",
    )
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([left, right, out])}))
    block = sch.get_sblock("out")
    t, m, n, depth = sch.get_loops(block)
    m_outer, m_tile = sch.split(m, [None, tall])
    n_outer, n_vectors, n_lanes = sch.split(n, [None, 2, spec.lanes])
    sch.reorder(t, n_outer, m_outer, depth, m_tile, n_vectors, n_lanes)
    sch.parallel(t)
    sch.unroll(m_tile)
    sch.unroll(n_vectors)
    sch.vectorize(n_lanes)
    initial = sch.decompose_reduction(block, depth)
    *_, rows, vectors, lanes = sch.get_loops(initial)
    sch.unroll(rows)
    sch.unroll(vectors)
    sch.vectorize(lanes)
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal((threads, ROWS, DEPTH), dtype=np.float32),
        rng.standard_normal((threads, DEPTH, columns), dtype=np.float32),
        np.zeros((threads, ROWS, columns), np.float32),
    ]
    return sch.mod["main"], arrays, 2 * threads * ROWS * DEPTH * columns


def reading(spec: CpuSpec, size: int) -> tuple[PrimFunc, list[Array], int]:
    """A scheduled TensorIR function, its arguments as arrays, and the bytes it reads: about
    `size`, each thread its part."""
    threads, row = spec.threads, _STREAMS * spec.lanes
    rows = max(1, size // (4 * threads * row))
    data = te.placeholder((threads, rows, row), name="data")
    k = te.reduce_axis((0, rows), "k")
    out = te.compute((threads, row), lambda t, i: te.sum(data[t, k, i], axis=[k]), name="out")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, out])}))
    block = sch.get_sblock("out")
    t, i, depth = sch.get_loops(block)
    streams, lanes = sch.split(i, [_STREAMS, spec.lanes])
    sch.reorder(t, depth, streams, lanes)
    sch.parallel(t)
    sch.unroll(streams)
    sch.vectorize(lanes)
    initial = sch.decompose_reduction(block, depth)
    *_, streams, lanes = sch.get_loops(initial)
    sch.unroll(streams)
    sch.vectorize(lanes)
    arrays = [np.ones((threads, rows, row), np.float32), np.zeros((threads, row), np.float32)]
    return sch.mod["main"], arrays, 4 * threads * rows * row
