"""The one machine-level kernel: 16 accumulators += 16×16 weights · 16 inputs, many times over.

Written as vector IR, because whether a compiler finds this form in a scalar loop is luck. Pairs of
16-bit products are summed into 32-bit lanes, which LLVM turns into one instruction a pair where the
CPU has it (x86 `vpdpwssd`, `vpmaddwd`). Sums wrap modulo 2³², exactly as the hardware's.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Accumulators of one tile; scratchpad rows are padded to a multiple of it."""
TILE = LANES * LANES
"""Weights of one tile, ordered [input pair][output][2]."""

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_SUMS = ir.VectorType(_I32, LANES)
_PRODUCTS = ir.VectorType(_I32, 2 * LANES)
_PAIRS = ir.VectorType(_I16, 2 * LANES)
_EVEN = ir.Constant(_SUMS, [2 * k for k in range(LANES)])
_ODD = ir.Constant(_SUMS, [2 * k + 1 for k in range(LANES)])
_BROADCAST = ir.Constant(_SUMS, [0] * LANES)


@intrinsic
def gemm_tile(
    typingctx: Any, acc: Any, acc_at: Any, acc_step: Any,
    inp: Any, inp_at: Any, inp_step: Any, wgt: Any, wgt_at: Any, count: Any,
) -> Any:  # fmt: skip
    """acc[acc_at + n·acc_step :][:16] += W · inp[inp_at + n·inp_step :][:16] for n < count.

    `acc` int32, `inp` int16, `wgt` int16, flat C-contiguous arrays; W is the tile at `wgt_at`;
    offsets in array items, not checked.
    """
    whole = types.int64
    signature = types.void(acc, whole, whole, inp, whole, whole, wgt, whole, whole)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        acc_value, a_at, a_step, inp_value, x_at, x_step, wgt_value, w_at, n = args
        a_data = context.make_array(acc)(context, builder, value=acc_value).data
        x_data = context.make_array(inp)(context, builder, value=inp_value).data
        w_data = context.make_array(wgt)(context, builder, value=wgt_value).data
        weights = [
            _load(builder, w_data, builder.add(w_at, _I64(pair * 2 * LANES)), _PAIRS, 2)
            for pair in range(LANES // 2)
        ]
        with cgutils.for_range(builder, n, intp=_I64) as loop:
            row = builder.add(x_at, builder.mul(loop.index, x_step))
            target = builder.add(a_at, builder.mul(loop.index, a_step))
            sums = _load(builder, a_data, target, _SUMS, 4)
            for pair, weight in enumerate(weights):
                at = builder.add(row, _I64(2 * pair))
                sums = _add_products(builder, sums, _load(builder, x_data, at, _I32, 2), weight)
            pointer = builder.bitcast(builder.gep(a_data, [target]), _SUMS.as_pointer())
            builder.store(sums, pointer).align = 4
        return context.get_dummy_value()

    return signature, codegen


def _load(builder: Any, data: Any, at: Any, kind: Any, align: int) -> Any:
    """A value of type `kind` from item `at` of an array."""
    value = builder.load(builder.bitcast(builder.gep(data, [at]), kind.as_pointer()))
    value.align = align
    return value


def _add_products(builder: Any, sums: Any, input_pair: Any, weight: Any) -> Any:
    """sums[l] + x₀·w[l][0] + x₁·w[l][1], the input pair x held in one 32-bit value."""
    blank = ir.Constant(_SUMS, ir.Undefined)
    spread = builder.insert_element(blank, input_pair, _I32(0))
    spread = builder.bitcast(builder.shuffle_vector(spread, blank, _BROADCAST), _PAIRS)
    products = builder.mul(builder.sext(spread, _PRODUCTS), builder.sext(weight, _PRODUCTS))
    unused = ir.Constant(_PRODUCTS, ir.Undefined)
    even = builder.shuffle_vector(products, unused, _EVEN)
    odd = builder.shuffle_vector(products, unused, _ODD)
    return builder.add(sums, builder.add(even, odd))
