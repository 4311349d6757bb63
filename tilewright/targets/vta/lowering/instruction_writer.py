"""Writes an instruction stream: dependency tokens, DMA transfers, GEMM and ALU instructions.

A program is written to two outputs. `state` is the record with the program's counts. `out`, shape
(instructions, 2), receives the instruction words; instructions beyond its end are only counted. The
rules that turn calls of `pop` and `push` into dependency flags or no-ops are those of the VTA
runtime (InsnQueue::DepPop and DepPush). A lowering that makes the same calls as the stock compiler
therefore gets the stock compiler's stream, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    ACC,
    ALU,
    FINISH,
    GEMM,
    INP,
    LOAD,
    OUT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    STORE,
    UOP,
    WGT,
    Layout,
    pack_alu,
    pack_gemm,
    pack_memory,
)
from tilewright.targets.vta.lowering.invalid_configs import FIELD, OK, OUT_OF_SPACE
from tilewright.targets.vta.numba_decorators import helper, set_zero


class ProgramState:
    """Fields of a record of int64 numbers with the counts of a program.

    Compiled code reads and writes the record in place.
    """

    # Dependencies of the next instruction.
    # pending pop flags of load, compute and store, two bits each; pop_prev is the lower bit
    pops: int
    carrier: int  # module whose last instruction may take a push flag, -1: none
    pushed: int  # push flags that the last instruction has
    problem: int  # failure code if something could not be encoded, else 0

    # Counts of what has been written.
    instructions: int
    uops: int
    inp_loads: int  # numbers of instructions, by kind
    wgt_loads: int
    acc_loads: int
    uop_loads: int
    stores: int
    gemms: int
    alus: int
    nops: int
    tokens: int  # number of push flags
    inp_bytes: int  # bytes transferred, without padding
    wgt_bytes: int
    acc_bytes: int
    uop_bytes: int
    out_bytes: int
    inp_rows: int  # rows transferred
    out_rows: int
    padded: int  # zero elements that input LOADs write as padding
    gemm_iterations: int  # iterations without those of resets
    alu_iterations: int
    reset_iterations: int

    # Numbers of tiles and steps, and scratchpad use, which the lowering fills in.
    tiles: int  # number of output tiles
    steps: int  # number of reduction steps of all tiles
    inp_used: int  # scratchpad elements that the program occupies
    wgt_used: int
    acc_used: int

    # Exposed transfers and work, see `hidden_features`.
    first_loaded: int  # bytes loaded before the first GEMM
    exposed_loads: int
    exposed_stores: int
    last_stored: int
    last_iterations: int


FIELDS = tuple(ProgramState.__annotations__)
_RECORD = np.dtype((np.record, [(name, np.int64) for name in FIELDS]))


def new_states(programs: int) -> NDArray[np.void]:
    """Create records for the counts of programs, all of them zero, shape (programs,).

    The records have the fields of `ProgramState`.

    Args:
        programs: number of programs.
    """
    return np.zeros(programs, _RECORD)


def columns(states: NDArray[np.void], names: Sequence[str]) -> NDArray[np.int64]:
    """Return some fields of program records as an array of shape (programs, fields).

    Args:
        states: records with the fields of `ProgramState`, shape (programs,).
        names: names of the fields.
    """
    numbers = states.view(np.int64).reshape(len(states), len(FIELDS))
    return numbers[:, [FIELDS.index(name) for name in names]]


# The helpers are compiled without reference counts. They allocate nothing, and counting the
# references to their arrays would take most of their time.

_L, _C, _S = 0, 1, 2
_SIZE_LIMIT = 1 << 16


@helper
def start(state: ProgramState) -> None:
    """Reset the state for a new program.

    Args:
        state: counts of the program; changed in place.
    """
    set_zero(state)
    state.carrier = -1


@helper
def append(state: ProgramState, out: NDArray[np.uint64], lo: int, hi: int, carrier: int) -> None:
    """Append one instruction to the program.

    Args:
        state: counts of the program.
        out: the instructions.
        lo: low word of the instruction.
        hi: high word of the instruction.
        carrier: module whose next token can be sent by setting a push flag of this instruction; -1
            for none.
    """
    n = state.instructions
    if n < out.shape[0]:
        out[n, 0] = lo
        out[n, 1] = hi
    state.instructions = n + 1
    state.carrier = carrier
    state.pushed = nb.int64(nb.uint64(lo) & nb.uint64(PUSH_PREV | PUSH_NEXT))


@helper
def take_pops(state: ProgramState, module: int) -> int:
    """Return and clear the pop flags that are pending for a module's next instruction.

    A pop flag makes an instruction wait for a token of a neighbouring module.

    Args:
        state: counts of the program; changed in place.
        module: number of the module.
    """
    at = 2 * module
    waiting = state.pops >> at & 3
    state.pops ^= waiting << at
    return waiting * POP_PREV  # POP_NEXT is the bit above POP_PREV


@helper
def noop(state: ProgramState, out: NDArray[np.uint64], module: int, flags: int) -> None:
    """Write a no-op of a module: a transfer of zero elements, which only passes tokens.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        module: module that executes the no-op.
        flags: dependency flags of the no-op.
    """
    state.nops += 1
    if module == _L:
        lo, hi = pack_memory(LOAD, flags, INP, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        append(state, out, lo, hi, -1)
    elif module == _C:
        lo, hi = pack_memory(LOAD, flags, UOP, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        append(state, out, lo, hi, -1)
    else:
        lo, hi = pack_memory(STORE, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        append(state, out, lo, hi, _S)


@helper
def commit_pops(state: ProgramState, out: NDArray[np.uint64], module: int) -> None:
    """Write a no-op that waits for the pending tokens of a module, if there are any.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        module: number of the module.
    """
    flags = take_pops(state, module)
    if flags:
        noop(state, out, module, flags)


@helper
def pop(state: ProgramState, out: NDArray[np.uint64], source: int, module: int) -> None:
    """Make the next instruction of `module` wait for a token from the module `source`.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        source: module that sends the token.
        module: number of the module.
    """
    waiting = 1 << (2 * module + (0 if source < module else 1))
    if state.pops & waiting:
        commit_pops(state, out, module)
    state.pops |= waiting


@helper
def push(state: ProgramState, out: NDArray[np.uint64], module: int, target: int) -> None:
    """Make `module` send a token to the module `target` after its last instruction so far.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        module: number of the module.
        target: module that receives the token.
    """
    state.tokens += 1
    flag = PUSH_NEXT if module < target else PUSH_PREV
    n = state.instructions
    if state.carrier == module and not state.pushed & flag:
        state.pushed |= flag
        if n <= out.shape[0]:  # beyond the end of the array, instructions are only counted
            out[n - 1, 0] |= nb.uint64(flag)
        return
    commit_pops(state, out, module)
    noop(state, out, module, flag)


@helper
def flag(state: ProgramState, out: NDArray[np.uint64], at: int, bit: int) -> None:
    """Set a push flag of an instruction that is already written.

    Args:
        state: counts of the program.
        out: the instructions.
        at: index of the instruction.
        bit: the push flag.
    """
    state.tokens += 1
    if at == state.instructions - 1:
        state.pushed |= bit
    if at < out.shape[0]:
        out[at, 0] |= nb.uint64(bit)


@helper
def memory(
    state: ProgramState, out: NDArray[np.uint64], opcode: int, kind: int, sram: int, dram: int,
    y: int, x: int, stride: int, y0: int, y1: int, x0: int, x1: int, element_bytes: int,
) -> None:  # fmt: skip
    """Write a LOAD or STORE that also performs all pending pops of its module.

    Args:
        state: counts of the program.
        out: the instructions.
        opcode: LOAD or STORE.
        kind: memory type.
        sram: first scratchpad element.
        dram: first element in DRAM.
        y: number of rows.
        x: number of elements per row.
        stride: distance between two rows in DRAM, in elements.
        y0: number of zero rows before the data.
        y1: number of zero rows after the data.
        x0: number of zero elements before each row.
        x1: number of zero elements after each row.
        element_bytes: size of an element in bytes.
    """
    if (
        x >= _SIZE_LIMIT or y >= _SIZE_LIMIT or stride >= _SIZE_LIMIT or sram >= _SIZE_LIMIT
        or max(max(y0, y1), max(x0, x1)) > 15 or min(min(y0, y1), min(x0, x1)) < 0
    ):  # fmt: skip
        state.problem = FIELD
    size = x * y * element_bytes
    module = _C
    if opcode == STORE:
        module = _S
        state.out_bytes += size
        state.stores += 1
        state.out_rows += y
    elif kind == INP:
        module = _L
        state.inp_bytes += size
        state.inp_loads += 1
        state.inp_rows += y
        # If a padding that exceeds its field is allowed, the hardware uses its low four bits.
        state.padded += (x + (x0 & 15) + (x1 & 15)) * (y + (y0 & 15) + (y1 & 15)) - x * y
    elif kind == WGT:
        module = _L
        state.wgt_bytes += size
        state.wgt_loads += 1
    elif kind == ACC:
        state.acc_bytes += size
        state.acc_loads += 1
    else:
        state.uop_bytes += size
        state.uop_loads += 1
    flags = take_pops(state, module)
    lo, hi = pack_memory(opcode, flags, kind, sram, dram, y, x, stride, y0, y1, x0, x1)
    append(state, out, lo, hi, module)


@helper
def region(
    state: ProgramState, out: NDArray[np.uint64], opcode: int, kind: int, sram: int, dram: int,
    n0: int, s0: int, n1: int, s1: int, n2: int, element_bytes: int,
) -> int:  # fmt: skip
    """Transfer a dense scratchpad tile from or to a DRAM region of up to three dimensions.

    The innermost dimension, number 2, is contiguous. As in the stock compiler, dimensions of extent
    1 are dropped, and a dimension is merged with its inner neighbour if the two are contiguous in
    DRAM. A region that is still three-dimensional becomes one instruction per outermost index.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        opcode: LOAD or STORE.
        kind: memory type.
        sram: first scratchpad element.
        dram: first element in DRAM.
        n0: extent of the outermost dimension.
        s0: stride of the outermost dimension in DRAM, in elements.
        n1: extent of the middle dimension.
        s1: stride of the middle dimension in DRAM, in elements.
        n2: extent of the innermost dimension.
        element_bytes: size of an element in bytes.

    Returns:
        The number of instructions.
    """
    if n1 > 1 and s1 == n2:
        n2 *= n1
        n1 = 1
    if n1 > 1:
        if n0 > 1 and s0 == n1 * s1:
            n1 *= n0
            n0 = 1
    elif n0 > 1:
        if s0 == n2:
            n2 *= n0
        else:
            n1, s1 = n0, s0
        n0 = 1
    if n1 == 1:
        s1 = n2
    for i in range(n0):
        memory(
            state, out, opcode, kind, sram + i * n1 * n2, dram + i * s0, n1, n2, s1,
            0, 0, 0, 0, element_bytes,
        )  # fmt: skip
    return n0


@helper
def gemm(
    state: ProgramState, out: NDArray[np.uint64], lay: Layout, reset: int, bgn: int, end: int,
    n0: int, n1: int, d0: int, d1: int, s0: int, s1: int, w0: int, w1: int,
) -> None:  # fmt: skip
    """Write a GEMM or an accumulator reset that also performs all pending pops of compute.

    Args:
        state: counts of the program.
        out: the instructions.
        lay: bit positions of the instruction fields.
        reset: 1 to set the accumulators to zero, 0 to multiply.
        bgn: first micro-op.
        end: end of the micro-ops, exclusive.
        n0: iterations of the outer loop.
        n1: iterations of the inner loop.
        d0: accumulator index step per outer iteration.
        d1: accumulator index step per inner iteration.
        s0: input index step per outer iteration.
        s1: input index step per inner iteration.
        w0: weight index step per outer iteration.
        w1: weight index step per inner iteration.
    """
    limit = 1 << 14
    if (
        n0 >= limit or n1 >= limit or max(d0, d1) >= 1 << lay.acc_bits
        or max(s0, s1) >= 1 << lay.inp_bits or max(w0, w1) >= 1 << lay.wgt_bits
        or end > 1 << lay.uop_index_bits
    ):  # fmt: skip
        state.problem = FIELD
    state.gemms += 1
    if reset:
        state.reset_iterations += n0 * n1 * (end - bgn)
    else:
        state.gemm_iterations += n0 * n1 * (end - bgn)
    flags = take_pops(state, _C)
    lo, hi = pack_gemm(lay, flags, reset, bgn, end, n0, n1, d0, d1, s0, s1, w0, w1)
    append(state, out, lo, hi, _C)


@helper
def alu(
    state: ProgramState, out: NDArray[np.uint64], lay: Layout, bgn: int, end: int,
    n0: int, n1: int, d0: int, d1: int, s0: int, s1: int, opcode: int, use_imm: int, imm: int,
) -> None:  # fmt: skip
    """Write an ALU instruction that also performs all pending pops of compute.

    Args:
        state: counts of the program.
        out: the instructions.
        lay: bit positions of the instruction fields.
        bgn: first micro-op.
        end: end of the micro-ops, exclusive.
        n0: iterations of the outer loop.
        n1: iterations of the inner loop.
        d0: destination index step per outer iteration.
        d1: destination index step per inner iteration.
        s0: source index step per outer iteration.
        s1: source index step per inner iteration.
        opcode: ALU operation.
        use_imm: 1 if the second operand is the immediate, else 0.
        imm: the immediate.
    """
    limit = 1 << 14
    if (
        n0 >= limit or n1 >= limit or max(max(d0, d1), max(s0, s1)) >= 1 << lay.acc_bits
        or end > 1 << lay.uop_index_bits
    ):  # fmt: skip
        state.problem = FIELD
    state.alus += 1
    state.alu_iterations += n0 * n1 * (end - bgn)
    flags = take_pops(state, _C)
    lo, hi = pack_alu(lay, flags, bgn, end, n0, n1, d0, d1, s0, s1, opcode, use_imm, imm)
    append(state, out, lo, hi, _C)


@helper
def finish(state: ProgramState, out: NDArray[np.uint64]) -> None:
    """Write a FINISH instruction that also performs all pending pops of compute.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
    """
    append(state, out, nb.uint64(FINISH) | nb.uint64(take_pops(state, _C)), nb.uint64(0), -1)


@helper
def outcome(state: ProgramState, out: NDArray[np.uint64]) -> int:
    """Return the failure code of a finished program; OK if it was written completely.

    The code is OUT_OF_SPACE if `out` was too short. The counts are correct even then.

    Args:
        state: counts of the program.
        out: the instructions, shape (instructions, 2).
    """
    if state.problem:
        return state.problem
    return OUT_OF_SPACE if state.instructions > out.shape[0] else OK


__all__ = [
    "ACC", "ALU", "GEMM", "INP", "LOAD", "OUT", "STORE", "UOP", "WGT",
    "alu", "append", "commit_pops", "finish", "gemm", "memory", "noop", "pop", "push", "region",
    "start", "take_pops",
]  # fmt: skip
