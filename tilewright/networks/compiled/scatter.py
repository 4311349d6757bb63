"""Writes ScatterND as one loop over rows of updates, each in vectors.

TVM's form goes through a row value by value, and starts its threads anew for every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilewright.core.tvm_types import (
    BlockBuilder,
    Expression,
    RelaxCall,
    RelaxExpr,
    Statement,
    Tensor,
    TirBuffer,
)

OPERATOR = "relax.scatter_nd"
WIDEST, LEAST = 32, 8
"""Values of a row that a task writes, at most and at least: two vectors of AVX-512, one of AVX2.
With two threads TVM's form took 8 ms where 0.16 suffice (`python -m benchmarks.cpu.networks
--networks edges --threads 2`, whose graph adds along edges)."""
COMBINED: Mapping[str, Callable[[Expression, Expression], Expression]] = MappingProxyType({
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
})  # fmt: skip


def scatter_nd(builder: BlockBuilder, call: RelaxCall) -> RelaxExpr:
    """`LegalizeOps` of data (x_0, …, x_n), indices (…, k) and updates (…, x_k, …, x_n). Rows that
    can have no vectors keep TVM's way."""
    data, indices, updates = call.args
    shapes = [[int(size) for size in each.ty.shape] for each in (data, indices)]
    row = prod(shapes[0][shapes[1][-1] :])
    width = next((each for each in range(min(row, WIDEST), 0, -1) if row % each == 0), 0)
    if width < LEAST:
        return tvm.ir.Op.get(OPERATOR).get_attr("FLegalize")(builder, call)
    combined = COMBINED[str(call.attrs.reduction)]

    def compute(data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        def body(ins: Sequence[TirBuffer], outs: Sequence[TirBuffer]) -> Statement:
            return _body((*ins, *outs), shapes, row, width, combined)

        out = tirx.decl_buffer(data.shape, data.dtype, "out", layout=None)
        return te.extern(
            [data.shape], [data, indices, updates], body,
            dtype=data.dtype, out_buffers=[out], name="scatter_nd",
        )  # fmt: skip

    return builder.call_te(compute, data, indices, updates, primfunc_name_hint="scatter_nd")


def _body(
    buffers: Sequence[TirBuffer], shapes: list[list[int]], row: int, width: int,
    combined: Callable[[Expression, Expression], Expression],
) -> Statement:  # fmt: skip
    """A task has the same part of every row, so updates of one place come in their order."""
    given, at, new, made = (T.buffer_proxy(each) for each in buffers)
    whole, depth = shapes
    rows, places = prod(depth[:-1]), depth[-1]
    with IRBuilder() as ib:
        with T.parallel(0, row // width) as part:
            with T.serial(0, prod(whole) // row) as i, T.vectorized(0, width) as j:
                place = i * row + part * width + j
                made[place] = given[place]
            with T.serial(0, rows) as i, T.vectorized(0, width) as j:
                place = 0
                for k in range(places):
                    place = place * whole[k] + at[i * places + k]
                place = place * row + part * width + j
                made[place] = combined(made[place], new[i * row + part * width + j])
        return ib.get()
