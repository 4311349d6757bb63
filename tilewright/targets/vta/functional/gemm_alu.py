"""Executes GEMM and ALU instructions in the functional simulator.

Both kinds of instructions run two hardware loops around a range of micro-ops. The iterations of a
GEMM may run in any order, because a GEMM only adds products to accumulators, modulo 2³², and does
not change its inputs and weights. The simulator groups these iterations so that one weight block is
used for many inputs. The iterations of an ALU instruction run in strict order, because later
iterations see the results of earlier iterations.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.decode import DecodedLoops, uop_of
from tilewright.targets.vta.functional.load_store import clear_items, keep_stale_output
from tilewright.targets.vta.functional.scratchpads import Scratchpads
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.functional.vector import LANES, TILE, alu_tile, gemm_tile
from tilewright.targets.vta.instruction_format import ALU_MUL, ALU_SHR, Layout
from tilewright.targets.vta.numba_decorators import helper
from tilewright.targets.vta.spec import LOOP_FIELD_BITS, Machine

LONG_RUN = 16
"""Number of inputs per weight block from which on the time to load the weight block is
negligible."""
MOST_APART = 64
"""Maximum distance between two micro-ops with the same weights at which a repeating pattern is
searched for."""
_LOOP_RANGE = 1 << LOOP_FIELD_BITS


@helper
def trips(rules: SemanticRules, g: DecodedLoops) -> tuple[int, int, int]:
    """Return the number of iterations of each loop of a GEMM or ALU instruction.

    Args:
        rules: the simulated behaviour where implementations of the VTA differ.
        g: fields of the instruction.

    Returns:
        The iterations of the outer loop, of the inner loop, and the number of micro-ops.
    """
    outer, inner, uops = g.iter_out, g.iter_in, g.uop_end - g.uop_bgn
    if not rules.zero_trips_wrap:
        return outer, inner, max(uops, 0)
    # the RTL's counters wrap around
    uops = uops % _LOOP_RANGE
    return (
        outer if outer else _LOOP_RANGE,
        inner if inner else _LOOP_RANGE,
        (uops if uops else _LOOP_RANGE),
    )


@helper
def largest(base: int, outer: int, by_out: int, inner: int, by_in: int) -> int:
    """Return the largest index that an operand reaches in two nested hardware loops.

    It is the index of the last iteration, because the index steps (factors) are unsigned.

    Args:
        base: index of the first iteration.
        outer: iterations of the outer loop.
        by_out: index step per outer iteration.
        inner: iterations of the inner loop.
        by_in: index step per inner iteration.
    """
    return base + (outer - 1) * by_out + (inner - 1) * by_in


@helper
def gemm(m: Machine, lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops) -> None:
    """Execute a GEMM instruction, or set accumulators to zero if its reset flag is set.

    Args:
        m: the machine.
        lay: bit positions of the instruction fields.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads; changed in place.
        g: fields of the instruction.
    """
    outer, inner, uops = trips(rules, g)
    if outer == 0 or inner == 0:
        return
    if g.reset:
        for k in range(uops):
            d, _, _ = uop_of(lay, pads.uop[(g.uop_bgn + k) % rules.uop_depth])
            _reset_accumulators(
                pads.acc, pads.out, pads.fresh, m.batch * pads.acc_row, rules.acc_depth,
                d, outer, g.dst_out, inner, g.dst_in,
            )  # fmt: skip
        return
    # Loops that do not change the weights should be innermost, first of all the longest one.
    along_inner = g.wgt_in == 0 and inner > 1 and (g.wgt_out != 0 or inner >= outer)
    along_outer = not along_inner and g.wgt_out == 0 and outer > 1
    one, none = nb.int64(1), nb.int64(0)
    known = inner if along_inner else outer if along_outer else one
    regular = known < LONG_RUN
    k = none
    while k < uops:
        period, length, d_step, s_step = one, one, none, none
        if regular and uops - k > 1:
            period, length, d_step, s_step = _uop_nest(
                lay, pads.uop, rules, g, k, uops, outer, inner
            )
            if length <= known:
                regular, period, length = False, one, one
        for r in range(k, k + period):
            d, s, t = uop_of(lay, pads.uop[(g.uop_bgn + r) % rules.uop_depth])
            fits = (
                largest(d, outer, g.dst_out, inner, g.dst_in) < rules.acc_depth
                and largest(s, outer, g.src_out, inner, g.src_in) < rules.inp_depth
                and largest(t, outer, g.wgt_out, inner, g.wgt_in) < rules.wgt_depth
            )
            if not fits:
                _gemm_wrapped(m, rules, pads, g, d, s, t, outer, inner)
                continue
            rows, columns, run, d_run, s_run = outer, inner, length, d_step, s_step
            if length == 1 and along_inner:
                columns, run, d_run, s_run = one, inner, g.dst_in, g.src_in
            elif length == 1 and along_outer:
                rows, run, d_run, s_run = one, outer, g.dst_out, g.src_out
            _gemm_nest(
                pads.acc, pads.inp, pads.wgt, pads.fresh, m.batch, pads.acc_row, pads.inp_row,
                d, s, t, rows, g.dst_out, g.src_out, g.wgt_out, columns, g.dst_in, g.src_in,
                g.wgt_in, run, d_run, s_run, m.acc_bits,
            )  # fmt: skip
        k += period * length


@helper
def _uop_nest(
    lay: Layout, uop: NDArray[np.uint64], rules: SemanticRules, g: DecodedLoops, k: int, uops: int,
    outer: int, inner: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Find a repeating pattern in the micro-ops of a GEMM, from a given micro-op on.

    The pattern consists of `period` micro-ops. It is repeated `length` times with the same weights,
    and each time the accumulator and input indices increase by fixed steps. All indices are inside
    the scratchpads.

    Args:
        lay: bit positions of the instruction fields.
        uop: micro-op scratchpad, shape (micro-ops,).
        rules: the simulated behaviour where implementations of the VTA differ.
        g: fields of the instruction.
        k: number of the first micro-op of the pattern.
        uops: number of micro-ops of the GEMM.
        outer: iterations of the outer loop.
        inner: iterations of the inner loop.

    Returns:
        The period, the length, the accumulator step and the input step; (1, 1, 0, 0) if there is no
        pattern.
    """
    one, none = nb.int64(1), nb.int64(0)
    d, s, t = uop_of(lay, uop[(g.uop_bgn + k) % rules.uop_depth])
    period, d_step, s_step = none, none, none
    for r in range(1, min(uops - k, MOST_APART + 1)):
        d1, s1, t1 = uop_of(lay, uop[(g.uop_bgn + k + r) % rules.uop_depth])
        if t1 == t:
            period, d_step, s_step = nb.int64(r), d1 - d, s1 - s
            break
    if period == 0:
        return one, one, none, none
    length = none
    while k + (length + 1) * period <= uops:
        for r in range(k, k + period):
            d, s, t = uop_of(lay, uop[(g.uop_bgn + r) % rules.uop_depth])
            d, s = d + length * d_step, s + length * s_step
            d1, s1, t1 = uop_of(lay, uop[(g.uop_bgn + length * period + r) % rules.uop_depth])
            if (
                d1 != d or s1 != s or t1 != t
                or largest(d, outer, g.dst_out, inner, g.dst_in) >= rules.acc_depth
                or largest(s, outer, g.src_out, inner, g.src_in) >= rules.inp_depth
                or largest(t, outer, g.wgt_out, inner, g.wgt_in) >= rules.wgt_depth
            ):  # fmt: skip
                return (period, length, d_step, s_step) if length > 0 else (one, one, none, none)
        length += 1
    return period, length, d_step, s_step


@helper
def _gemm_nest(
    acc: NDArray[np.int32], inp: NDArray[np.int16], wgt: NDArray[np.int16],
    fresh: NDArray[np.uint8], batch: int, acc_row: int, inp_row: int, d: int, s: int, t: int,
    rows: int, d_row: int, s_row: int, t_row: int,
    columns: int, d_column: int, s_column: int, t_column: int,
    run: int, d_run: int, s_run: int, acc_bits: int,
) -> None:  # fmt: skip
    """Execute a GEMM of three loops, the innermost of which uses a single weight block.

    All indices are inside the scratchpads. `d`, `s` and `t` are the first accumulator, input and
    weight. The steps of the outer loop have the suffix `row`, those of the middle loop `column`,
    and those of the innermost loop `run`. The arguments are plain arrays and numbers, because the
    function is called often and tuples with many fields are expensive to pass.
    """
    acc_size, inp_size = batch * acc_row, batch * inp_row
    in_tiles, tiles = inp_row // LANES, acc_row // LANES * (inp_row // LANES)
    for i in range(rows):
        for j in range(columns):
            d0, s0 = d + i * d_row + j * d_column, s + i * s_row + j * s_column
            weights = (t + i * t_row + j * t_column) * tiles * TILE
            for tile in range(tiles):
                out_lane, in_lane = tile // in_tiles * LANES, tile % in_tiles * LANES
                for b in range(batch):
                    gemm_tile(
                        acc, d0 * acc_size + b * acc_row + out_lane, d_run * acc_size,
                        inp, s0 * inp_size + b * inp_row + in_lane, s_run * inp_size,
                        wgt, weights + tile * TILE, run,
                    )  # fmt: skip
            for n in range(run):
                fresh[d0 + n * d_run] = 1
            if acc_bits < 32:
                for n in range(run):
                    truncate(acc, (d0 + n * d_run) * acc_size, acc_size, acc_bits)


@helper
def _gemm_wrapped(
    m: Machine, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops,
    d: int, s: int, t: int, outer: int, inner: int,
) -> None:  # fmt: skip
    """Execute one micro-op of a GEMM whose indices exceed a scratchpad and wrap around.

    Args:
        m: the machine.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads; changed in place.
        g: fields of the instruction.
        d: accumulator index of the micro-op.
        s: input index of the micro-op.
        t: weight index of the micro-op.
        outer: iterations of the outer loop.
        inner: iterations of the inner loop.
    """
    one, none = nb.int64(1), nb.int64(0)
    for i in range(outer):
        for j in range(inner):
            _gemm_nest(
                pads.acc, pads.inp, pads.wgt, pads.fresh, m.batch, pads.acc_row, pads.inp_row,
                (d + i * g.dst_out + j * g.dst_in) % rules.acc_depth,
                (s + i * g.src_out + j * g.src_in) % rules.inp_depth,
                (t + i * g.wgt_out + j * g.wgt_in) % rules.wgt_depth,
                one, none, none, none, one, none, none, none, one, none, none, m.acc_bits,
            )  # fmt: skip


@helper
def _reset_accumulators(
    acc: NDArray[np.int32], out: NDArray[np.int32], fresh: NDArray[np.uint8], size: int, depth: int,
    d: int, outer: int, by_out: int, inner: int, by_in: int,
) -> None:  # fmt: skip
    """Set accumulators to zero, over two loops. Adjacent accumulators are cleared together.

    Args:
        acc: accumulators, shape (depth · size,).
        out: OUT scratchpad, shape (depth · size,), or empty.
        fresh: whether OUT equals the accumulator, shape (depth,).
        size: number of lanes per accumulator element.
        depth: number of accumulator elements.
        d: index of the first accumulator element.
        outer: iterations of the outer loop.
        by_out: index step per outer iteration.
        inner: iterations of the inner loop.
        by_in: index step per inner iteration.
    """
    run = 1
    if by_in == 1 and largest(d, outer, by_out, inner, 1) < depth:
        inner, run = 1, inner
        if by_out == run:
            outer, run = 1, outer * run
    for i in range(outer):
        for j in range(inner):
            index = (d + i * by_out + j * by_in) % depth
            if out.size:
                keep_stale_output(acc, out, fresh, index, run, size)
            clear_items(fresh, index, run)
            clear_items(acc, index * size, run * size)


@helper
def truncate(acc: NDArray[np.int32], first: int, lanes: int, bits: int) -> None:
    """Sign-extend accumulators from their low bits, so that they behave like narrow integers.

    Args:
        acc: accumulators, flat; changed in place.
        first: index of the first accumulator.
        lanes: number of accumulators.
        bits: width of an accumulator in bits, below 32.
    """
    unused = 32 - bits
    for lane in range(first, first + lanes):
        acc[lane] = np.int32(acc[lane] << unused) >> unused


_BY_SIGN, _LEFT, _RIGHT = 0, 1, 2


@helper
def alu(m: Machine, lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops) -> None:
    """Execute an ALU instruction.

    Args:
        m: the machine.
        lay: bit positions of the instruction fields.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads; changed in place.
        g: fields of the instruction.
    """
    outer, inner, uops = trips(rules, g)
    if outer == 0 or inner == 0 or uops == 0:
        return
    operation, imm, shift, mask = _operation(m, rules, g)
    from_source = not g.use_imm or rules.immediate_reads_source
    size, first = m.batch * pads.acc_row, g.uop_bgn % rules.uop_depth
    if uops == 1 and inner > 1 and g.dst_in == g.src_in == 1 and m.acc_bits == 32:
        d, s, _ = uop_of(lay, pads.uop[first])
        if (
            largest(d, outer, g.dst_out, inner, 1) < rules.acc_depth
            and largest(s, outer, g.src_out, inner, 1) < rules.acc_depth
        ):
            _rows(
                pads.acc, pads.fresh, d, s, outer, g.dst_out, g.src_out, inner, size,
                g.use_imm, from_source, imm, operation, shift, mask,
            )  # fmt: skip
            return
    _scattered(
        pads.acc, pads.fresh, pads.uop, lay, first, uops, rules.acc_depth,
        outer, g.dst_out, g.src_out, inner, g.dst_in, g.src_in, size,
        g.use_imm, from_source, imm, operation, shift, mask, m.acc_bits,
    )  # fmt: skip


@helper
def _operation(m: Machine, rules: SemanticRules, g: DecodedLoops) -> tuple[int, int, int, int]:
    """Decode the operation of an ALU instruction to the arguments of `alu_tile`.

    Returns:
        The operation, the immediate, the direction of shifts and the mask of shift amounts.
    """
    if g.alu_opcode != ALU_SHR:
        return g.alu_opcode, g.imm, _BY_SIGN, 31
    if rules.hardware_shift:
        # The RTL takes the shift direction from bit 15 of the immediate field, even if the operand
        # is not an immediate.
        return ALU_SHR, g.imm, _LEFT if g.imm < 0 else _RIGHT, m.acc_bits - 1
    if g.use_imm and g.imm < -31:
        return ALU_MUL, 0, _BY_SIGN, 31
    return ALU_SHR, min(g.imm, 31) if g.use_imm else 0, _BY_SIGN, 31


@helper
def _rows(
    acc: NDArray[np.int32], fresh: NDArray[np.uint8], d: int, s: int,
    outer: int, by_d: int, by_s: int, inner: int, size: int,
    use_imm: int, from_source: bool, imm: int, operation: int, shift: int, mask: int,
) -> None:  # fmt: skip
    """Execute an ALU operation on runs of adjacent elements.

    Args:
        acc: accumulators, shape (depth · size,); changed in place.
        fresh: whether OUT equals the accumulator, shape (depth,); changed in place.
        d: destination element of the first run.
        s: source element of the first run.
        outer: number of runs.
        by_d: distance between the destinations of two runs, in elements.
        by_s: distance between the sources of two runs, in elements.
        inner: number of elements per run.
        size: number of lanes per element.
        use_imm: 1 if the second operand is the immediate.
        from_source: whether the first operand is the source instead of the destination.
        imm: the immediate.
        operation: the ALU operation.
        shift: direction of shifts, as `alu_tile` takes it.
        mask: mask of shift amounts.
    """
    for i in range(outer):
        target, source = d + i * by_d, s + i * by_s
        left = source if use_imm and from_source else target
        for n in range(target, target + inner):
            fresh[n] = 1
        alu_tile(
            acc, target * size, left * size, source * size, use_imm, imm, operation, shift, mask,
            LANES, inner * size // LANES,
        )  # fmt: skip


@helper
def _scattered(
    acc: NDArray[np.int32], fresh: NDArray[np.uint8], uop: NDArray[np.uint64], lay: Layout,
    first: int, uops: int, depth: int, outer: int, d_out: int, s_out: int,
    inner: int, d_in: int, s_in: int, size: int, use_imm: int, from_source: bool, imm: int,
    operation: int, shift: int, mask: int, acc_bits: int,
) -> None:  # fmt: skip
    """Execute an ALU operation element by element, with indices modulo the scratchpad depth.

    Args:
        acc: accumulators, shape (depth · size,); changed in place.
        fresh: whether OUT equals the accumulator, shape (depth,); changed in place.
        uop: micro-op scratchpad, shape (micro-ops,).
        lay: bit positions of the instruction fields.
        first: first micro-op.
        uops: number of micro-ops.
        depth: number of accumulator elements.
        outer: iterations of the outer loop.
        d_out: destination step per outer iteration.
        s_out: source step per outer iteration.
        inner: iterations of the inner loop.
        d_in: destination step per inner iteration.
        s_in: source step per inner iteration.
        size: number of lanes per element.
        use_imm: 1 if the second operand is the immediate.
        from_source: whether the first operand is the source instead of the destination.
        imm: the immediate.
        operation: the ALU operation.
        shift: direction of shifts, as `alu_tile` takes it.
        mask: mask of shift amounts.
        acc_bits: width of an accumulator in bits.
    """
    for i in range(outer):
        for j in range(inner):
            for k in range(first, first + uops):
                d, s, _ = uop_of(lay, uop[k % uop.size])
                d = (d + i * d_out + j * d_in) % depth
                s = (s + i * s_out + j * s_in) % depth
                left = s if use_imm and from_source else d
                alu_tile(
                    acc, d * size, left * size, s * size, use_imm, imm, operation, shift, mask,
                    LANES, size // LANES,
                )  # fmt: skip
                fresh[d] = 1
                if acc_bits < 32:
                    truncate(acc, d * size, size, acc_bits)


@helper
def shift_element(acc: NDArray[np.int32], d: int, s: int, size: int, acc_bits: int) -> None:
    """Shift one element right by the amounts in another element, as SHR with a tensor operand does.

    The semantics are those of the functional simulator of the original stack. A negative amount
    shifts left.

    Args:
        acc: accumulators, shape (depth · size,).
        d: index of the destination element.
        s: index of the element with the shift amounts.
        size: number of lanes per element.
        acc_bits: width of an accumulator in bits.
    """
    alu_tile(acc, d * size, d * size, s * size, 0, 0, ALU_SHR, _BY_SIGN, 31, LANES, size // LANES)
    if acc_bits < 32:
        truncate(acc, d * size, size, acc_bits)
