"""Implement ScatterND with vectors, as one loop over the rows of updates.

TVM's implementation processes a row element by element and starts its threads again for every row.
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
"""Maximum and minimum number of elements of a row that a task writes: two AVX-512 vectors, and one
AVX2 vector. With two threads, TVM's own implementation took 8 ms where 0.16 ms suffice (`python -m
benchmarks.cpu.networks --networks edges --threads 2`, a graph network that adds values along
edges)."""
COMBINED: Mapping[str, Callable[[Expression, Expression], Expression]] = MappingProxyType({
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
})  # fmt: skip
"""Functions that combine the old value with the new value of an element, by the name of the
reduction."""


def scatter_nd(builder: BlockBuilder, call: RelaxCall) -> RelaxExpr:
    """Replace ScatterND in TVM's `LegalizeOps` pass.

    With indices of shape (…, k), the data have shape (x_0, …, x_n) and the updates (…, x_k, …,
    x_n). A row consists of the elements that one index selects. If rows are too short for vectors,
    TVM's implementation is used.

    Args:
        builder: builder of the module.
        call: call of the operator.

    Returns:
        The call of the new function.
    """
    data, indices, updates = call.args
    shapes = [[int(size) for size in argument.ty.shape] for argument in (data, indices)]
    row = prod(shapes[0][shapes[1][-1] :])
    width = next(
        (argument for argument in range(min(row, WIDEST), 0, -1) if row % argument == 0), 0
    )
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
    """Build the loops that apply the updates of a scatter to a copy of the data.

    Each task processes the same columns of all rows. Updates of the same element are therefore
    applied by one task, in order.

    Args:
        buffers: buffers of the data, the indices, the updates and the result.
        shapes: shapes of the data and of the indices.
        row: elements per row, where a row is what one index selects.
        width: elements per vector.
        combined: function that returns the new value for the stored value and the update.
    """
    data, index_list, updates, output = (T.buffer_proxy(buffer) for buffer in buffers)
    data_shape, index_shape = shapes
    rows, places = prod(index_shape[:-1]), index_shape[-1]
    with IRBuilder() as ib:
        with T.parallel(0, row // width) as part:
            with T.serial(0, prod(data_shape) // row) as i, T.vectorized(0, width) as j:
                place = i * row + part * width + j
                output[place] = data[place]
            with T.serial(0, rows) as i, T.vectorized(0, width) as j:
                place = 0
                for k in range(places):
                    place = place * data_shape[k] + index_list[i * places + k]
                place = place * row + part * width + j
                output[place] = combined(output[place], updates[i * row + part * width + j])
        return ib.get()
