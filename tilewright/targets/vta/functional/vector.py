"""Vector kernels in LLVM IR: a tile of a GEMM, an ALU operation, and a transposition of weights.

They are written as vector IR, because a compiler does not reliably vectorise the equivalent scalar
loops. Offsets count array items and are not checked. Arrays are flat and C-contiguous. Integer
arithmetic wraps modulo 2³², as in the hardware.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Number of accumulators per tile. Scratchpad rows are padded to a multiple of this number."""
TILE = LANES * LANES
"""Number of weights per tile. The weights are ordered as [pair of inputs][output][input of the
pair]."""

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_LANES = ir.VectorType(_I32, LANES)
_PRODUCTS = ir.VectorType(_I32, 2 * LANES)
_PAIRS = ir.VectorType(_I16, 2 * LANES)
_WHOLE = types.int64


@intrinsic
def gemm_tile(
    typingctx: Any, acc: Any, acc_at: Any, acc_step: Any,
    inp: Any, inp_at: Any, inp_step: Any, wgt: Any, wgt_at: Any, count: Any,
) -> Any:  # fmt: skip
    """Compute acc[acc_at + n·acc_step :][:16] += W · inp[inp_at + n·inp_step :][:16] for n < count.

    W is a 16×16 tile of weights. Pairs of 16-bit products are summed in 32-bit lanes, with one
    instruction per pair if the CPU has it (x86 `vpdpwssd`, `vpmaddwd`). All positions count array
    items.

    Args:
        typingctx: numba's typing context.
        acc: accumulators, int32, flat; changed in place.
        acc_at: position of the first 16 accumulators.
        acc_step: distance to the next accumulators.
        inp: inputs, int16, flat.
        inp_at: position of the first 16 inputs.
        inp_step: distance to the next inputs.
        wgt: weights, int16, flat.
        wgt_at: position of the tile of weights.
        count: number of iterations n.
    """
    signature = types.void(
        acc, _WHOLE, _WHOLE, inp, _WHOLE, _WHOLE, wgt, _WHOLE, _WHOLE
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a_array, a_at, a_step, x_array, x_at, x_step, w_array, w_at, n = args
        a_data = _data(context, builder, acc, a_array)
        x_data = _data(context, builder, inp, x_array)
        w_data = _data(context, builder, wgt, w_array)
        weights = [
            _load(builder, w_data, builder.add(w_at, _I64(pair * 2 * LANES)), _PAIRS, 2)
            for pair in range(LANES // 2)
        ]
        with cgutils.for_range(builder, n, intp=_I64) as loop:
            row = builder.add(x_at, builder.mul(loop.index, x_step))
            target = builder.add(a_at, builder.mul(loop.index, a_step))
            sums = _load(builder, a_data, target, _LANES, 4)
            for pair, weight in enumerate(weights):
                at = builder.add(row, _I64(2 * pair))
                sums = _add_products(builder, sums, _load(builder, x_data, at, _I32, 2), weight)
            _store(builder, sums, a_data, target, 4)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def alu_tile(
    typingctx: Any, acc: Any, dst: Any, left: Any, right: Any, use_imm: Any, imm: Any,
    operation: Any, shift: Any, amount_mask: Any, step: Any, count: Any,
) -> Any:  # fmt: skip
    """Compute acc[dst :][:16] = x op y, `count` times, advancing by `step` items, in strict order.

    x is acc[left :] and y is acc[right :] or the immediate. A SHR shifts right by y &
    `amount_mask`, or left by −y & `amount_mask`. It shifts left if y < 0 with `shift` 0, always
    left with 1, and always right with 2.

    Args:
        typingctx: numba's typing context.
        acc: accumulators, int32, flat; changed in place.
        dst: position of the first destination.
        left: position of the first operand.
        right: position of the second operand.
        use_imm: whether y is the immediate.
        imm: the immediate.
        operation: the ALU opcode; 5 to 7 act as MUL.
        shift: direction of shifts, see above.
        amount_mask: mask of shift amounts.
        step: distance of two iterations, in items.
        count: number of iterations.
    """
    signature = types.void(acc, *[_WHOLE] * 10)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, d_at, x_at, y_at, immediate, value, code, direction, mask, by, n = args
        data = _data(context, builder, acc, array)
        immediate = builder.icmp_signed("!=", immediate, _I64(0))
        constant = _splat(builder, builder.trunc(value, _I32))
        amounts = _splat(builder, builder.trunc(mask, _I32))
        left_only = _splat(builder, builder.icmp_signed("==", direction, _I64(1)))
        by_sign = _splat(builder, builder.icmp_signed("==", direction, _I64(0)))
        zero = ir.Constant(_LANES, [0] * LANES)
        with cgutils.for_range(builder, n, intp=_I64) as loop:
            move = builder.mul(loop.index, by)
            x = _load(builder, data, builder.add(x_at, move), _LANES, 4)
            y = _load(builder, data, builder.add(y_at, move), _LANES, 4)
            y = builder.select(immediate, constant, y)
            leftwards = builder.and_(by_sign, builder.icmp_signed("<", y, zero))
            leftwards = builder.or_(left_only, leftwards)
            amount = builder.and_(builder.select(leftwards, builder.neg(y), y), amounts)
            shifted = builder.select(leftwards, builder.shl(x, amount), builder.ashr(x, amount))
            less = builder.icmp_signed("<", x, y)
            result = builder.mul(x, y)
            for opcode, other in enumerate(
                (builder.select(less, x, y), builder.select(less, y, x), builder.add(x, y), shifted)
            ):
                chosen = builder.icmp_signed("==", code, _I64(opcode))
                result = builder.select(chosen, other, result)
            _store(builder, result, data, builder.add(d_at, move), 4)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def weight_tile(typingctx: Any, memory: Any, at: Any, pitch: Any, wgt: Any, wgt_at: Any) -> Any:
    """Convert 16 rows of 16 signed bytes to a tile of int16 weights.

    The tile is ordered as [input pair][output][2].

    Args:
        typingctx: numba's typing context.
        memory: memory image, uint8, flat.
        at: position of the first row in `memory`.
        pitch: distance of two rows in bytes.
        wgt: weights, int16, flat; changed in place.
        wgt_at: position of the tile in `wgt`.
    """
    signature = types.void(memory, _WHOLE, _WHOLE, wgt, _WHOLE)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, first, row_pitch, target, place = args
        data = _data(context, builder, memory, array)
        row = ir.VectorType(_I16, LANES // 2)
        vectors = [
            _load(builder, data, builder.add(first, builder.mul(_I64(r), row_pitch)), row, 1)
            for r in range(LANES)
        ]
        group = 1  # neighbouring items that already belong to one input pair
        while len(vectors) > 1:
            merge = _interleave(vectors[0].type.count, group)
            vectors = [
                builder.shuffle_vector(a, b, merge)
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            group *= 2
        values = builder.bitcast(vectors[0], ir.VectorType(_I8, TILE))
        wide = builder.sext(values, ir.VectorType(_I16, TILE))
        _store(builder, wide, _data(context, builder, wgt, target), place, 2)
        return context.get_dummy_value()

    return signature, codegen


def _data(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the data pointer of an array argument, as an LLVM value."""
    return context.make_array(kind)(context, builder, value=array).data


def _load(builder: Any, data: Any, at: Any, kind: Any, align: int) -> Any:
    """Load a value from an array, as an LLVM instruction.

    Args:
        builder: LLVM builder of the function.
        data: pointer to the array.
        at: index of the item.
        kind: LLVM type of the value.
        align: alignment of the load in bytes.
    """
    value = builder.load(builder.bitcast(builder.gep(data, [at]), kind.as_pointer()))
    value.align = align
    return value


def _store(builder: Any, value: Any, data: Any, at: Any, align: int) -> None:
    pointer = builder.bitcast(builder.gep(data, [at]), value.type.as_pointer())
    builder.store(value, pointer).align = align


def _splat(builder: Any, value: Any) -> Any:
    """Return an LLVM vector with 16 copies of a scalar."""
    blank = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(blank, value, _I32(0))
    return builder.shuffle_vector(first, blank, ir.Constant(_LANES, [0] * LANES))


def _interleave(size: int, group: int) -> Any:
    """Return the LLVM shuffle mask that alternates groups of items of two vectors.

    Args:
        size: number of items per vector.
        group: number of items per group.
    """
    order = []
    for first in range(0, size, group):
        order += [*range(first, first + group), *range(size + first, size + first + group)]
    return ir.Constant(ir.VectorType(_I32, 2 * size), order)


def _add_products(builder: Any, sums: Any, input_pair: Any, weight: Any) -> Any:
    """Return sums[l] + x₀·w[l][0] + x₁·w[l][1], where one 32-bit value holds the input pair x."""
    spread = builder.bitcast(_splat(builder, input_pair), _PAIRS)
    products = builder.mul(builder.sext(spread, _PRODUCTS), builder.sext(weight, _PRODUCTS))
    unused = ir.Constant(_PRODUCTS, ir.Undefined)
    halves = [
        builder.shuffle_vector(
            products, unused, ir.Constant(_LANES, [2 * k + odd for k in range(LANES)])
        )
        for odd in (0, 1)
    ]
    return builder.add(sums, builder.add(*halves))
