"""Binary format of instructions and micro-ops: field positions, packing and unpacking.

The module has functions for compiled code, which handle one instruction, and functions for arrays
of instructions. An instruction consists of two little-endian 64-bit words, `lo` and `hi`. The
format of LOAD and STORE is the same for every configuration. The field widths of GEMM and ALU
depend on the scratchpad depths. Fields are placed from low to high bits, and none crosses bit 64.
All other modules pack and unpack instructions through this module.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.numba_decorators import helper
from tilewright.targets.vta.spec import INSTRUCTION_HEAD_BITS, LOOP_FIELD_BITS, Machine, VtaSpec

# Opcodes
LOAD, STORE, GEMM, FINISH, ALU = 0, 1, 2, 3, 4
# Memory types
UOP, WGT, INP, ACC, OUT, ACC_8BIT = 0, 1, 2, 3, 4, 5
# ALU operations
ALU_MIN, ALU_MAX, ALU_ADD, ALU_SHR, ALU_MUL = 0, 1, 2, 3, 4
# Dependency flags, at their positions in bits 3 to 6 of an instruction
POP_PREV, POP_NEXT, PUSH_PREV, PUSH_NEXT = 8, 16, 32, 64
# Modules
MODULE_LOAD, MODULE_COMPUTE, MODULE_STORE = 0, 1, 2


class Layout(NamedTuple):
    """Bit offsets of the GEMM and ALU fields, and the field widths that a configuration sets."""

    uop_index_bits: int  # index of a micro-op; uop_end has one bit more
    acc_bits: int  # width of accumulator factors
    inp_bits: int  # width of input factors
    wgt_bits: int  # width of weight factors
    uop_bgn: int
    uop_end: int
    iter_out: int
    iter_in: int
    gemm_dst_out: int
    gemm_dst_in: int
    gemm_src_out: int
    gemm_src_in: int
    gemm_wgt_out: int
    gemm_wgt_in: int
    alu_dst_out: int
    alu_dst_in: int
    alu_src_out: int
    alu_src_in: int
    alu_opcode: int
    alu_use_imm: int
    alu_imm: int
    # Fields of a micro-op
    uop_dst_bits: int
    uop_src_bits: int
    uop_wgt_bits: int


def layout_of(spec: VtaSpec) -> Layout:
    """Compute the field positions of a machine's instructions."""
    m = spec.machine
    loops = [m.log_uop_depth, m.log_uop_depth + 1, LOOP_FIELD_BITS, LOOP_FIELD_BITS]
    acc, inp, wgt = m.acc_factor_bits, m.inp_factor_bits, m.wgt_factor_bits
    gemm = _place([*loops, acc, acc, inp, inp, wgt, wgt])
    alu = _place([*loops, acc, acc, acc, acc, 3, 1, 16])
    uop = [m.log_acc_depth, max(m.log_acc_depth, m.log_inp_depth), m.log_wgt_depth]
    return Layout._make([m.log_uop_depth, acc, inp, wgt, *gemm, *alu[4:], *uop])


def _place(widths: list[int]) -> list[int]:
    """Return the bit offset of each field of an instruction.

    The fields follow the common head of the instruction. A field that would cross bit 64 begins at
    bit 64.

    Args:
        widths: width of each field in bits.
    """
    offsets, position = [], INSTRUCTION_HEAD_BITS
    for width in widths:
        if position < 64 < position + width:
            position = 64
        offsets.append(position)
        position += width
    return offsets


@helper
def get(lo: int, hi: int, offset: int, width: int) -> int:
    """Read an unsigned bit field of an instruction.

    Args:
        lo: low word of the instruction.
        hi: high word of the instruction.
        offset: first bit of the field, 0 to 127.
        width: width of the field in bits.
    """
    word = lo if offset < 64 else hi
    return int(nb.int64((word >> nb.uint64(offset & 63)) & nb.uint64((1 << width) - 1)))


@helper
def put(value: int, offset: int, width: int) -> int:
    """Return a 64-bit word with one bit field of an instruction set, and zeros elsewhere.

    The value is truncated to `width` bits, as in hardware. The word is part of `hi` if `offset` is
    at least 64, else part of `lo`.

    Args:
        value: value of the field.
        offset: first bit of the field, 0 to 127.
        width: width of the field in bits.
    """
    word: int = (nb.uint64(value) & nb.uint64((1 << width) - 1)) << nb.uint64(offset & 63)
    return word


@helper
def pack_memory(
    opcode: int, flags: int, memory: int, sram_base: int, dram_base: int,
    y_size: int, x_size: int, x_stride: int,
    y_pad_0: int, y_pad_1: int, x_pad_0: int, x_pad_1: int,
) -> tuple[int, int]:  # fmt: skip
    """Encode a LOAD or STORE.

    Args:
        opcode: LOAD or STORE.
        flags: dependency flags.
        memory: memory type.
        sram_base: index of the first scratchpad element.
        dram_base: index of the first element in memory.
        y_size: number of rows.
        x_size: number of elements per row.
        x_stride: distance between two rows in memory, in elements.
        y_pad_0: number of zero rows before the data.
        y_pad_1: number of zero rows after the data.
        x_pad_0: number of zero elements before each row.
        x_pad_1: number of zero elements after each row.

    Returns:
        The low and the high word.
    """
    lo = (
        nb.uint64(opcode) | nb.uint64(flags) | put(memory, 7, 3)
        | put(sram_base, 10, 16) | put(dram_base, 26, 32)
    )  # fmt: skip
    hi = (
        put(y_size, 64, 16) | put(x_size, 80, 16) | put(x_stride, 96, 16)
        | put(y_pad_0, 112, 4) | put(y_pad_1, 116, 4) | put(x_pad_0, 120, 4) | put(x_pad_1, 124, 4)
    )  # fmt: skip
    return lo, hi


@helper
def _pack_loops(lay: Layout, bgn: int, end: int, iter_out: int, iter_in: int) -> tuple[int, int]:
    lo = nb.uint64(0)
    hi = nb.uint64(0)
    u = lay.uop_index_bits
    for value, offset, width in (
        (bgn, lay.uop_bgn, u),
        (end, lay.uop_end, u + 1),
        (iter_out, lay.iter_out, LOOP_FIELD_BITS),
        (iter_in, lay.iter_in, LOOP_FIELD_BITS),
    ):
        if offset < 64:
            lo |= put(value, offset, width)
        else:
            hi |= put(value, offset, width)
    return lo, hi


@helper
def pack_gemm(
    lay: Layout, flags: int, reset: int, uop_bgn: int, uop_end: int, iter_out: int, iter_in: int,
    dst_out: int, dst_in: int, src_out: int, src_in: int, wgt_out: int, wgt_in: int,
) -> tuple[int, int]:  # fmt: skip
    """Encode a GEMM, or a reset of accumulators.

    Args:
        lay: bit positions of the instruction fields.
        flags: dependency flags.
        reset: 1 to set the accumulators to zero, 0 to multiply.
        uop_bgn: first micro-op.
        uop_end: end of the micro-ops, exclusive.
        iter_out: iterations of the outer loop.
        iter_in: iterations of the inner loop.
        dst_out: accumulator index step per outer iteration.
        dst_in: accumulator index step per inner iteration.
        src_out: input index step per outer iteration.
        src_in: input index step per inner iteration.
        wgt_out: weight index step per outer iteration.
        wgt_in: weight index step per inner iteration.

    Returns:
        The low and the high word.
    """
    lo, hi = _pack_loops(lay, uop_bgn, uop_end, iter_out, iter_in)
    lo |= nb.uint64(GEMM) | nb.uint64(flags) | put(reset, 7, 1)
    for value, offset, width in (
        (dst_out, lay.gemm_dst_out, lay.acc_bits),
        (dst_in, lay.gemm_dst_in, lay.acc_bits),
        (src_out, lay.gemm_src_out, lay.inp_bits),
        (src_in, lay.gemm_src_in, lay.inp_bits),
        (wgt_out, lay.gemm_wgt_out, lay.wgt_bits),
        (wgt_in, lay.gemm_wgt_in, lay.wgt_bits),
    ):
        if offset < 64:
            lo |= put(value, offset, width)
        else:
            hi |= put(value, offset, width)
    return lo, hi


@helper
def pack_alu(
    lay: Layout, flags: int, uop_bgn: int, uop_end: int, iter_out: int, iter_in: int,
    dst_out: int, dst_in: int, src_out: int, src_in: int, opcode: int, use_imm: int, imm: int,
) -> tuple[int, int]:  # fmt: skip
    """Encode an ALU operation.

    Args:
        lay: bit positions of the instruction fields.
        flags: dependency flags.
        uop_bgn: first micro-op.
        uop_end: end of the micro-ops, exclusive.
        iter_out: iterations of the outer loop.
        iter_in: iterations of the inner loop.
        dst_out: destination index step per outer iteration.
        dst_in: destination index step per inner iteration.
        src_out: source index step per outer iteration.
        src_in: source index step per inner iteration.
        opcode: ALU operation.
        use_imm: 1 if the second operand is the immediate, else 0.
        imm: the immediate, a signed 16-bit number.

    Returns:
        The low and the high word.
    """
    lo, hi = _pack_loops(lay, uop_bgn, uop_end, iter_out, iter_in)
    lo |= nb.uint64(ALU) | nb.uint64(flags)
    for value, offset, width in (
        (dst_out, lay.alu_dst_out, lay.acc_bits),
        (dst_in, lay.alu_dst_in, lay.acc_bits),
        (src_out, lay.alu_src_out, lay.acc_bits),
        (src_in, lay.alu_src_in, lay.acc_bits),
        (opcode, lay.alu_opcode, 3),
        (use_imm, lay.alu_use_imm, 1),
        (imm, lay.alu_imm, 16),
    ):
        if offset < 64:
            lo |= put(value, offset, width)
        else:
            hi |= put(value, offset, width)
    return lo, hi


@helper
def pack_uop(lay: Layout, dst: int, src: int, wgt: int) -> int:
    """Encode a micro-op.

    Args:
        lay: bit positions of the instruction fields.
        dst: accumulator index.
        src: input index, or the index of the source accumulator for an ALU instruction.
        wgt: weight index; 0 for an ALU instruction.

    Returns:
        The micro-op, an unsigned integer of 32 or 64 bits.
    """
    word: int = (
        put(dst, 0, lay.uop_dst_bits)
        | put(src, lay.uop_dst_bits, lay.uop_src_bits)
        | put(wgt, lay.uop_dst_bits + lay.uop_src_bits, lay.uop_wgt_bits)
    )
    return word


@helper
def module_of(opcode: int, memory: int) -> int:
    """Return the module that executes an instruction.

    The load module executes LOADs of inputs and weights. The store module executes STOREs. The
    compute module executes everything else.

    Args:
        opcode: opcode of the instruction.
        memory: memory type of a LOAD or STORE; ignored for other instructions.
    """
    if opcode == STORE:
        return MODULE_STORE
    if opcode == LOAD and memory in (INP, WGT):
        return MODULE_LOAD
    return MODULE_COMPUTE


OPCODE_NAMES = ("LOAD", "STORE", "GEMM", "FINISH", "ALU")
MEMORY_NAMES = ("UOP", "WGT", "INP", "ACC", "OUT", "ACC_8BIT")
ALU_NAMES = ("MIN", "MAX", "ADD", "SHR", "MUL")
MODULE_NAMES = ("load", "compute", "store")
QUEUE_NAMES = ("l2g", "g2l", "g2s", "s2g")
FLAG_NAMES = ("pop_prev", "pop_next", "push_prev", "push_next")
# The token queue of each flag, by module; -1 if the module has no such neighbour.
FLAG_QUEUES = ((-1, 1, -1, 0), (0, 3, 1, 2), (2, -1, 3, -1))


class Field(NamedTuple):
    """Named bit field of the 128-bit instruction, with its bit offset and its width in bits."""

    name: str
    offset: int
    width: int
    signed: bool = False


_MEMORY_FIELDS = (
    Field("memory_type", 7, 3),
    Field("sram_base", 10, 16),
    Field("dram_base", 26, 32),
    Field("y_size", 64, 16),
    Field("x_size", 80, 16),
    Field("x_stride", 96, 16),
    Field("y_pad_0", 112, 4),
    Field("y_pad_1", 116, 4),
    Field("x_pad_0", 120, 4),
    Field("x_pad_1", 124, 4),
)


def fields_of(opcode: int, lay: Layout) -> tuple[Field, ...]:
    """Return the bit fields of an instruction that depend on its opcode, lowest bit first.

    The common head (opcode and four flags) is not included. FINISH and undefined opcodes have no
    such fields.

    Args:
        opcode: the opcode.
        lay: bit positions of the instruction fields.
    """
    if opcode in (LOAD, STORE):
        return _MEMORY_FIELDS
    if opcode not in (GEMM, ALU):
        return ()
    loops = (
        Field("reset_reg", 7, 1),
        Field("uop_bgn", lay.uop_bgn, lay.uop_index_bits),
        Field("uop_end", lay.uop_end, lay.uop_index_bits + 1),
        Field("iter_out", lay.iter_out, LOOP_FIELD_BITS),
        Field("iter_in", lay.iter_in, LOOP_FIELD_BITS),
    )
    if opcode == GEMM:
        return (
            *loops,
            Field("dst_factor_out", lay.gemm_dst_out, lay.acc_bits),
            Field("dst_factor_in", lay.gemm_dst_in, lay.acc_bits),
            Field("src_factor_out", lay.gemm_src_out, lay.inp_bits),
            Field("src_factor_in", lay.gemm_src_in, lay.inp_bits),
            Field("wgt_factor_out", lay.gemm_wgt_out, lay.wgt_bits),
            Field("wgt_factor_in", lay.gemm_wgt_in, lay.wgt_bits),
        )
    return (
        *loops,
        Field("dst_factor_out", lay.alu_dst_out, lay.acc_bits),
        Field("dst_factor_in", lay.alu_dst_in, lay.acc_bits),
        Field("src_factor_out", lay.alu_src_out, lay.acc_bits),
        Field("src_factor_in", lay.alu_src_in, lay.acc_bits),
        Field("alu_opcode", lay.alu_opcode, 3),
        Field("use_imm", lay.alu_use_imm, 1),
        Field("imm", lay.alu_imm, 16, signed=True),
    )


def decode(word: int, lay: Layout) -> dict[str, int]:
    """Decode an instruction to a mapping from field name to value.

    Args:
        word: the instruction as a 128-bit integer.
        lay: bit positions of the instruction fields.

    Returns:
        The values of `opcode`, of the four flags and of the opcode's fields. The entry `unused`
        holds the bits that no field covers, at their positions.
    """
    opcode = word & 7
    values = {"opcode": opcode}
    for bit, name in enumerate(FLAG_NAMES, start=3):
        values[name] = word >> bit & 1
    rest = word & ~0x7F
    for field in fields_of(opcode, lay):
        mask = (1 << field.width) - 1
        value = word >> field.offset & mask
        rest &= ~(mask << field.offset)
        values[field.name] = value - (1 << field.width) * (field.signed and value > mask >> 1)
    values["unused"] = rest
    return values


def encode(values: dict[str, int], lay: Layout) -> int:
    """Encode an instruction. This is the inverse of `decode`.

    Args:
        values: field values by name. Absent fields are zero, and values are truncated to the width
            of their field.
        lay: bit positions of the instruction fields.

    Returns:
        The instruction as a 128-bit integer.
    """
    word = values.get("unused", 0) | values["opcode"]
    for bit, name in enumerate(FLAG_NAMES, start=3):
        word |= (values.get(name, 0) & 1) << bit
    for field in fields_of(values["opcode"], lay):
        word |= (values.get(field.name, 0) & (1 << field.width) - 1) << field.offset
    return word


Words = NDArray[np.uint64]
Rows = NDArray[np.int64]

POPS, PUSHES = 8 | 16, 32 | 64
"""Bit masks of an instruction's dependency flags: flags that pop a token from a queue, and flags
that push a token to a queue."""
_DRAM_AT, _DRAM_BITS = 26, 32


def field(words: Words, offset: int, width: int) -> Rows:
    """Read the unsigned field of `width` bits at bit `offset` of each instruction.

    Args:
        words: instructions, uint64, shape (n, 2).
        offset: bit offset of the field.
        width: width of the field in bits.

    Returns:
        Values, int64, shape (n,).
    """
    word = words[:, offset >> 6] >> np.uint64(offset & 63)
    return (word & np.uint64((1 << width) - 1)).astype(np.int64)


def opcodes(words: Words) -> Rows:
    """Return the opcodes of instructions, from shape (n, 2) to (n,)."""
    return field(words, 0, 3)


def memories(words: Words) -> Rows:
    """Return the memory types of LOADs and STOREs, from shape (n, 2) to (n,).

    The memory type of a STORE is always OUT, whatever its field contains.
    """
    return np.where(opcodes(words) == STORE, OUT, field(words, 7, 3))


def modules(words: Words) -> Rows:
    """Return the module that executes each instruction, from shape (n, 2) to (n,).

    LOADs of inputs and weights belong to the load module, STOREs to the store module, and all other
    instructions to the compute module, including LOADs of micro-ops and accumulators.
    """
    memory, opcode = field(words, 7, 3), opcodes(words)
    loads = (opcode == LOAD) & ((memory == INP) | (memory == WGT))
    return np.where(opcode == STORE, MODULE_STORE, np.where(loads, MODULE_LOAD, MODULE_COMPUTE))


def moves(words: Words) -> NDArray[np.bool_]:
    """Return a mask of the instructions that transfer data between memory and a scratchpad.

    LOADs and STOREs without elements are not included.

    Args:
        words: instructions, uint64, shape (n, 2).

    Returns:
        Mask of shape (n,).
    """
    opcode = opcodes(words)
    return ((opcode == LOAD) | (opcode == STORE)) & (field(words, 80, 16) > 0)


def multiplies(words: Words) -> NDArray[np.bool_]:
    """Return a mask of the GEMM instructions that multiply, which are those without the reset flag.

    Args:
        words: instructions, uint64, shape (n, 2).

    Returns:
        Mask of shape (n,).
    """
    return (opcodes(words) == GEMM) & (field(words, 7, 1) == 0)


def dram_bases(words: Words) -> Rows:
    """Return the memory position at which each LOAD or STORE starts.

    Args:
        words: LOAD and STORE instructions, uint64, shape (n, 2).

    Returns:
        Positions in elements of the instruction's memory type, int64, shape (n,).
    """
    return field(words, _DRAM_AT, _DRAM_BITS)


def with_dram_bases(words: Words, bases: Rows) -> Words:
    """Return copies of LOAD and STORE instructions that start at other memory positions.

    Args:
        words: instructions, uint64, shape (n, 2).
        bases: new positions in elements of the instruction's memory type, int64, shape (n,), at
            least 0 and below 2^32.
    """
    mask = np.uint64(((1 << _DRAM_BITS) - 1) << _DRAM_AT)
    changed = words.copy()
    changed[:, 0] &= ~mask
    changed[:, 0] |= bases.astype(np.uint64) << np.uint64(_DRAM_AT)
    return changed


def extents(words: Words) -> Rows:
    """Return the length of the memory range that each LOAD or STORE covers.

    Gaps between the rows are included.

    Args:
        words: LOAD and STORE instructions, uint64, shape (n, 2).

    Returns:
        Lengths from the first element to the end of the last one, in elements, int64, shape (n,).
    """
    rows, columns, pitch = (field(words, at, 16) for at in (64, 80, 96))
    return np.where(rows > 0, (rows - 1) * pitch + columns, 0)


def element_bytes(m: Machine) -> Rows:
    """Return the size of an element in bytes for each memory type, shape (5,).

    The order is that of the type numbers: UOP, WGT, INP, ACC, OUT.
    """
    return np.array([m.uop_bytes, m.wgt_bytes, m.inp_bytes, m.acc_bytes, m.out_bytes], np.int64)


def no_op(module: int, flags: int) -> Words:
    """Create an instruction that does nothing except passing dependency tokens.

    Args:
        module: module that executes the instruction.
        flags: dependency flags, which select the queues to take tokens from and to send tokens to.

    Returns:
        The instruction, uint64, shape (1, 2).
    """
    opcode, memory = (STORE, UOP) if module == MODULE_STORE else (LOAD, UOP)
    if module == MODULE_LOAD:
        memory = INP
    return np.array([[opcode | flags | memory << 7, 0]], np.uint64)
