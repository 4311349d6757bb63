"""Unrolls the hardware loop LOOP_WS into the commands that it generates.

LOOP_WS computes C = A · B + D on matrices of 16 × 16 blocks. Rows of blocks of A and C are numbered
by i, columns of blocks of B and C by j, and the common dimension of A and B by k. With the setting
`IS_RESADD`, the loop computes C = A + B instead.

LoopMatmul.scala of ucb-bar/gemmini at commit b6e24f0 has five generators of commands; each of them
is a function here. The hardware has two sets of loop settings, which successive loops use in turn.
A loop therefore inherits all settings that it does not change from the loop before the previous
one. Each set has its own half of the scratchpad. The half of the accumulator changes after every
loop that stores C.

The settings of a loop are an array `loop` of shape (LOOP_SETTINGS,). Generated commands are written
to `out_funct`, `out_rs1` and `out_rs2`, each of shape (n,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini import faults as f
from tilewright.targets.gemmini.faults import StreamFault, stream_error
from tilewright.targets.gemmini.isa import (
    COMPUTE_ACCUMULATED,
    COMPUTE_PRELOADED,
    GARBAGE,
    LOOP_ADDRESSES_AB,
    LOOP_ADDRESSES_DC,
    LOOP_BOUNDS,
    LOOP_STRIDES_AB,
    LOOP_STRIDES_DC,
    LOOP_WS,
    MVIN,
    MVIN2,
    MVIN3,
    MVOUT,
    PRELOAD,
    CommandStream,
    bits,
)
from tilewright.targets.gemmini.numba_decorators import compiled, stage
from tilewright.targets.gemmini.spec import DIM, MAX_REQUEST_BYTES, GemminiMachine

# Indices into the settings of a loop. The bounds I, J and K count blocks of 16; the padding counts
# the unused rows or columns of the last block.
MAX_I, MAX_J, MAX_K, PAD_I, PAD_J, PAD_K = 0, 1, 2, 3, 4, 5
A_ADDRESS, B_ADDRESS, D_ADDRESS, C_ADDRESS = 6, 7, 8, 9
A_ROW_STRIDE, B_ROW_STRIDE, D_ROW_STRIDE, C_ROW_STRIDE = 10, 11, 12, 13
A_IS_TRANSPOSED, B_IS_TRANSPOSED, LOOP_ACTIVATION = 14, 15, 16
LOW_D, FULL_C, EX_ACCUMULATE, A_SPAD_ID, B_SPAD_ID = 17, 18, 19, 20, 21
IS_RESADD, LOOP_ID, C_BASE = 22, 23, 24
LOOP_SETTINGS = 25

BLOCKS_PER_REQUEST = MAX_REQUEST_BYTES // DIM
LOOPS = 2
MOST_LOOP_COMMANDS = 1 << 22
"""Maximum number of commands that one loop may be unrolled to. Longer loops are rejected."""


@compiled
def set_loop(loop: NDArray[np.int64], funct: int, a: int, b: int) -> None:
    """Store the settings of a loop that a command contains.

    The command is LOOP_WS itself or one of the LOOP_WS_CONFIG commands before it.

    Args:
        loop: settings of the loop, shape (LOOP_SETTINGS,); changed in place.
        funct: function code of the command.
        a: first operand of the command.
        b: second operand of the command.
    """
    if funct == LOOP_BOUNDS:
        for n in range(3):
            loop[MAX_I + n] = bits(b, 16 * n, 16)
            loop[PAD_I + n] = bits(a, 16 * n, 16)
    elif funct == LOOP_ADDRESSES_AB:
        loop[A_ADDRESS], loop[B_ADDRESS] = bits(a, 0, 40), bits(b, 0, 40)
    elif funct == LOOP_ADDRESSES_DC:
        loop[D_ADDRESS], loop[C_ADDRESS] = bits(a, 0, 40), bits(b, 0, 40)
    elif funct == LOOP_STRIDES_AB:
        loop[A_ROW_STRIDE], loop[B_ROW_STRIDE] = bits(a, 0, 40), bits(b, 0, 40)
    elif funct == LOOP_STRIDES_DC:
        loop[D_ROW_STRIDE], loop[C_ROW_STRIDE] = bits(a, 0, 40), bits(b, 0, 40)
    elif funct == LOOP_WS:
        loop[EX_ACCUMULATE], loop[FULL_C], loop[LOW_D] = bits(a, 0, 1), bits(a, 1, 1), bits(a, 2, 1)
        loop[LOOP_ACTIVATION] = bits(a, 8, 3)
        loop[A_SPAD_ID], loop[B_SPAD_ID] = bits(a, 18, 2), bits(a, 16, 2)
        loop[A_IS_TRANSPOSED], loop[B_IS_TRANSPOSED] = bits(b, 0, 1), bits(b, 1, 1)
        loop[IS_RESADD] = bits(b, 2, 1)


@stage
def operand(address: int, n_columns: int, n_rows: int) -> int:
    """Encode the operand of a command: a local address and the size of a block."""
    return address | (n_columns << 32) | (n_rows << 48)


@stage
def accumulator_address(m: GemminiMachine, row: int, adds: int, full: int) -> int:
    """Encode the local address of an accumulator row.

    Args:
        m: the machine.
        row: the row.
        adds: 1 if a write adds to the row, 0 if it replaces the row.
        full: 1 to store int32 values, 0 to store values scaled to int8.
    """
    return (row & m.address_mask) | (1 << 31) | (adds << 30) | (full << 29)


@stage
def blocks_at(position: int, end: int, most: int) -> int:
    """Return how many adjacent blocks one command transfers.

    Args:
        position: index of the first block in a row of blocks.
        end: number of blocks in the row.
        most: maximum number of blocks per command.
    """
    return min(most, end, end - position)


@stage
def row_offset(line: int, stride: int, block: int, element_bytes: int) -> int:
    """Return the offset in bytes of a 16 × 16 block from the first element of a matrix.

    Args:
        line: index of the block's row of blocks.
        stride: distance of two rows of the matrix, in elements.
        block: index of the block's column of blocks.
        element_bytes: size of an element in bytes.
    """
    return ((line * stride + block) * DIM * element_bytes) & 0xFFFFFFFF


@stage
def load_a(m: GemminiMachine, loop: NDArray[np.int64], i: int, k: int) -> tuple[int, int, int]:
    """Return the MVIN command that loads adjacent blocks of the matrix A.

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
        i: row of blocks.
        k: first column of blocks.

    Returns:
        Function code and the two operands.
    """
    lines, across = loop[MAX_I], loop[MAX_J] if loop[IS_RESADD] else loop[MAX_K]
    line_pad, across_pad = loop[PAD_I], loop[PAD_J] if loop[IS_RESADD] else loop[PAD_K]
    line, at = i, k
    if loop[A_IS_TRANSPOSED]:
        lines, across, line_pad, across_pad, line, at = across, lines, across_pad, line_pad, k, i
    blocks = blocks_at(at, across, BLOCKS_PER_REQUEST)
    n_columns = blocks * DIM - (across_pad if at + blocks >= across else 0)
    n_rows = DIM - (line_pad if line == lines - 1 else 0)
    row = a_start(m, loop) + (line * across + at) * DIM
    address = row & m.address_mask
    if loop[IS_RESADD]:
        address = accumulator_address(m, row, 0, 0)
    dram = loop[A_ADDRESS] + row_offset(line, loop[A_ROW_STRIDE], at, 1)
    return MVIN, dram, operand(address, n_columns, n_rows)


@stage
def load_b(m: GemminiMachine, loop: NDArray[np.int64], k: int, j: int) -> tuple[int, int, int]:
    """Return the MVIN2 command that loads adjacent blocks of the matrix B.

    The command always loads 16 rows, regardless of padding. In an addition (`IS_RESADD`), B is
    added to the rows of the accumulator that already hold A.

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
        k: row of blocks.
        j: first column of blocks.

    Returns:
        Function code and the two operands.
    """
    lines, across = loop[MAX_I] if loop[IS_RESADD] else loop[MAX_K], loop[MAX_J]
    across_pad = loop[PAD_J]
    line, at = k, j
    if loop[B_IS_TRANSPOSED]:
        across_pad = loop[PAD_I] if loop[IS_RESADD] else loop[PAD_K]
        lines, across, line, at = across, lines, j, k
    blocks = blocks_at(at, across, BLOCKS_PER_REQUEST)
    n_columns = blocks * DIM - (across_pad if at + blocks >= across else 0)
    row = b_start(m, loop) + (line * across + at) * DIM
    address = row & m.address_mask
    if loop[IS_RESADD]:
        address = accumulator_address(m, row, 1, 0)
    dram = loop[B_ADDRESS] + row_offset(line, loop[B_ROW_STRIDE], at, 1)
    return MVIN2, dram, operand(address, n_columns, DIM)


@stage
def load_d(m: GemminiMachine, loop: NDArray[np.int64], i: int, j: int) -> tuple[int, int, int]:
    """Return the MVIN3 command that loads the bias D for adjacent blocks of the result.

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
        i: row of blocks.
        j: first column of blocks.

    Returns:
        Function code and the two operands.
    """
    blocks = blocks_at(j, loop[MAX_J], d_blocks(loop))
    n_columns = blocks * DIM - (loop[PAD_J] if j + blocks >= loop[MAX_J] else 0)
    n_rows = DIM - (loop[PAD_I] if i == loop[MAX_I] - 1 else 0)
    address = accumulator_address(m, loop[C_BASE] + (i * loop[MAX_J] + j) * DIM, 0, 0)
    dram = loop[D_ADDRESS] + row_offset(i, loop[D_ROW_STRIDE], j, 1 if loop[LOW_D] else 4)
    return MVIN3, dram, operand(address, n_columns, n_rows)


@stage
def loop_preload(
    m: GemminiMachine, loop: NDArray[np.int64], i: int, j: int, k: int
) -> tuple[int, int, int]:
    """Return the PRELOAD command for the product of blocks A(i, k) and B(k, j).

    The weights B(k, j) stay in the array while i advances. The command therefore loads them only
    for the first row of blocks, i = 0.

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
        i: row of blocks of A and of the result.
        j: column of blocks of B and of the result.
        k: column of blocks of A, and row of blocks of B.

    Returns:
        Function code and the two operands.
    """
    line, at, across = k, j, loop[MAX_J]
    if loop[B_IS_TRANSPOSED]:
        line, at, across = j, k, loop[MAX_K]
    b_address = (b_start(m, loop) + (line * across + at) * DIM) & m.address_mask
    n_rows, n_columns = block_size(loop, k, MAX_K, PAD_K), block_size(loop, j, MAX_J, PAD_J)
    adds = 1 if loop[EX_ACCUMULATE] or k != 0 else 0
    c_address = accumulator_address(m, loop[C_BASE] + (i * loop[MAX_J] + j) * DIM, adds, 0)
    rs1 = operand(b_address if i == 0 else GARBAGE, n_columns, n_rows)
    rs2 = operand(c_address, n_columns, block_size(loop, i, MAX_I, PAD_I))
    return PRELOAD, rs1, rs2


@stage
def loop_compute(
    m: GemminiMachine, loop: NDArray[np.int64], i: int, j: int, k: int
) -> tuple[int, int, int]:
    """Return the COMPUTE command for the product of blocks A(i, k) and B(k, j).

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
        i: row of blocks of A and of the result.
        j: column of blocks of B and of the result.
        k: column of blocks of A, and row of blocks of B.

    Returns:
        Function code and the two operands.
    """
    line, at, across = i, k, loop[MAX_K]
    if loop[A_IS_TRANSPOSED]:
        line, at, across = k, i, loop[MAX_I]
    address = (a_start(m, loop) + (line * across + at) * DIM) & m.address_mask
    n_rows, n_columns = block_size(loop, i, MAX_I, PAD_I), block_size(loop, k, MAX_K, PAD_K)
    funct = COMPUTE_PRELOADED if i == 0 else COMPUTE_ACCUMULATED
    return funct, operand(address, n_columns, n_rows), operand(GARBAGE, DIM, DIM)


@stage
def store_c(m: GemminiMachine, loop: NDArray[np.int64], i: int, j: int) -> tuple[int, int, int]:
    """Return the MVOUT command that stores adjacent blocks of the result C.

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
        i: row of blocks.
        j: first column of blocks.

    Returns:
        Function code and the two operands.
    """
    blocks = blocks_at(j, loop[MAX_J], c_blocks(loop))
    n_columns = blocks * DIM - (loop[PAD_J] if j + blocks >= loop[MAX_J] else 0)
    n_rows = DIM - (loop[PAD_I] if i == loop[MAX_I] - 1 else 0)
    start = half(m.accumulator_rows, loop[LOOP_ID]) if loop[IS_RESADD] else loop[C_BASE]
    row = start + (i * loop[MAX_J] + j) * DIM
    address = accumulator_address(m, row, 0, loop[FULL_C])
    dram = loop[C_ADDRESS] + row_offset(i, loop[C_ROW_STRIDE], j, 4 if loop[FULL_C] else 1)
    return MVOUT, dram, operand(address, n_columns, n_rows)


@stage
def d_blocks(loop: NDArray[np.int64]) -> int:
    """Return how many blocks of the bias D one command loads at most: 1 for int32, 4 for int8.

    Args:
        loop: settings of the hardware loop, shape (LOOP_SETTINGS,).
    """
    return BLOCKS_PER_REQUEST if loop[LOW_D] else 1


@stage
def c_blocks(loop: NDArray[np.int64]) -> int:
    """Return how many blocks of the result C one command stores at most: 1 for int32, 4 for int8.

    Args:
        loop: settings of the hardware loop, shape (LOOP_SETTINGS,).
    """
    return 1 if loop[FULL_C] else BLOCKS_PER_REQUEST


@stage
def block_size(loop: NDArray[np.int64], at: int, end: int, pad: int) -> int:
    """Return the number of rows or columns of a block: 16, without the padding of the last block.

    Args:
        loop: settings of the hardware loop, shape (LOOP_SETTINGS,).
        at: index of the block along its dimension.
        end: index into `loop` of the number of blocks along this dimension: `MAX_I`, `MAX_J` or
            `MAX_K`.
        pad: index into `loop` of the padding along this dimension: `PAD_I`, `PAD_J` or `PAD_K`.
    """
    return DIM - (loop[pad] if at == loop[end] - 1 else 0)


@stage
def half(total_rows: int, loop_id: int) -> int:
    """Return the first row of the half of a local memory that a loop uses.

    Args:
        total_rows: number of rows of the memory.
        loop_id: which of the two halves, 0 or 1. Successive loops use them in turn.
    """
    return loop_id * (total_rows // LOOPS)


@stage
def a_start(m: GemminiMachine, loop: NDArray[np.int64]) -> int:
    """Return the local row at which a hardware loop stores the first block of matrix A.

    The row is the start of a half of the scratchpad, or of the accumulator in an addition
    (`IS_RESADD`). The setting `A_SPAD_ID` can select the half of the scratchpad. If the setting is
    0, the half is that of the loop (`LOOP_ID`).

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
    """
    if loop[IS_RESADD]:
        return half(m.accumulator_rows, loop[LOOP_ID])
    chosen = loop[A_SPAD_ID]
    return half(m.scratchpad_rows, chosen - 1 if chosen else loop[LOOP_ID])


@stage
def b_start(m: GemminiMachine, loop: NDArray[np.int64]) -> int:
    """Return the local row at which a hardware loop stores the first block of matrix B.

    B fills the end of a half of the scratchpad. In an addition (`IS_RESADD`), it is stored at the
    start of a half of the accumulator. The setting `B_SPAD_ID` can select the half of the
    scratchpad. If the setting is 0, the half is that of the loop (`LOOP_ID`).

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
    """
    if loop[IS_RESADD]:
        return half(m.accumulator_rows, loop[LOOP_ID])
    chosen = loop[B_SPAD_ID]
    end = half(m.scratchpad_rows, chosen if chosen else loop[LOOP_ID] + 1)
    return end - loop[MAX_K] * loop[MAX_J] * DIM


@stage
def put(
    out_funct: NDArray[np.uint8], out_rs1: NDArray[np.uint64], out_rs2: NDArray[np.uint64],
    count: int, command: tuple[int, int, int],
) -> int:  # fmt: skip
    """Append a command to the output arrays.

    Args:
        out_funct: output array for function codes.
        out_rs1: output array for first operands.
        out_rs2: output array for second operands.
        count: number of commands in the output arrays before the call.
        command: function code and the two operands.

    Returns:
        The new number of commands.
    """
    out_funct[count], out_rs1[count], out_rs2[count] = command[0], command[1], command[2]
    return count + 1


@compiled
def unroll_loop(
    m: GemminiMachine, loop: NDArray[np.int64], out_funct: NDArray[np.uint8],
    out_rs1: NDArray[np.uint64], out_rs2: NDArray[np.uint64], count: int,
) -> int:  # fmt: skip
    """Append all commands of a loop to the output arrays.

    The commands are in a simple order: all loads, then all products, then all stores. The hardware
    interleaves them, but the results are the same. A matrix whose address is 0 is not transferred.

    Args:
        m: the machine.
        loop: settings of the loop, shape (LOOP_SETTINGS,).
        out_funct: output array for function codes.
        out_rs1: output array for first operands.
        out_rs2: output array for second operands.
        count: number of commands in the output arrays before the call.

    Returns:
        The new number of commands.
    """
    max_i, max_j = loop[MAX_I], loop[MAX_J]
    a_k = max_j if loop[IS_RESADD] else loop[MAX_K]
    b_k = max_i if loop[IS_RESADD] else loop[MAX_K]
    if loop[D_ADDRESS] != 0:
        for j in range(0, max_j, d_blocks(loop)):
            for i in range(max_i):
                count = put(out_funct, out_rs1, out_rs2, count, load_d(m, loop, i, j))
    if loop[A_ADDRESS] != 0:
        for k in range(0, a_k, 1 if loop[A_IS_TRANSPOSED] else BLOCKS_PER_REQUEST):
            for i in range(0, max_i, BLOCKS_PER_REQUEST if loop[A_IS_TRANSPOSED] else 1):
                count = put(out_funct, out_rs1, out_rs2, count, load_a(m, loop, i, k))
    if loop[B_ADDRESS] != 0:
        for k in range(0, b_k, BLOCKS_PER_REQUEST if loop[B_IS_TRANSPOSED] else 1):
            for j in range(0, max_j, 1 if loop[B_IS_TRANSPOSED] else BLOCKS_PER_REQUEST):
                count = put(out_funct, out_rs1, out_rs2, count, load_b(m, loop, k, j))
    if not loop[IS_RESADD]:
        for k in range(loop[MAX_K]):
            for j in range(max_j):
                for i in range(max_i):
                    count = put(out_funct, out_rs1, out_rs2, count, loop_preload(m, loop, i, j, k))
                    count = put(out_funct, out_rs1, out_rs2, count, loop_compute(m, loop, i, j, k))
    if loop[C_ADDRESS] != 0:
        for j in range(0, max_j, c_blocks(loop)):
            for i in range(max_i):
                count = put(out_funct, out_rs1, out_rs2, count, store_c(m, loop, i, j))
    return count


def commands_of(loop: NDArray[np.int64]) -> int:
    """Return an upper bound for the number of commands that a loop generates.

    Args:
        loop: settings of the loop, shape (LOOP_SETTINGS,).
    """
    i, j, k = (int(loop[at]) for at in (MAX_I, MAX_J, MAX_K))
    return 2 * i * j * k + i * max(k, j) + max(k, i) * j + 2 * i * j


def unroll_stream(
    stream: CommandStream, machine: GemminiMachine
) -> tuple[CommandStream, NDArray[np.int64]]:
    """Replace the loops of a stream by the commands that they generate.

    Args:
        stream: n commands.
        machine: the machine.

    Returns:
        The unrolled stream of m commands; and the index of the original command for each of its
        commands, shape (m,).

    Raises:
        StreamError: a loop is too long, has no blocks, or uses an activation that the machine
            lacks.
    """
    if not stream.has_loops:
        return stream, np.arange(len(stream.funct))
    loops = np.zeros((LOOPS, LOOP_SETTINGS), np.int64)
    pieces: list[CommandStream] = []
    origins: list[NDArray[np.int64]] = []
    started, base, plain_from = 0, 0, 0
    for n, funct in enumerate(stream.funct.tolist()):
        if not LOOP_WS <= funct <= LOOP_STRIDES_DC:
            continue
        pieces.append(stream.slice_commands(plain_from, n))
        origins.append(np.arange(plain_from, n))
        plain_from = n + 1
        loop = loops[started % LOOPS]
        set_loop(loop, funct, stream.rs1[n], stream.rs2[n])
        if funct == LOOP_WS:
            loop[LOOP_ID], loop[C_BASE] = started % LOOPS, base
            pieces.append(_commands(loop, machine, n))
            origins.append(np.full(len(pieces[-1].funct), n))
            started += 1
            if loop[C_ADDRESS] != 0:
                base = (base + machine.accumulator_rows // LOOPS) % machine.accumulator_rows
    pieces.append(stream.slice_commands(plain_from, len(stream.funct)))
    origins.append(np.arange(plain_from, len(stream.funct)))
    plain = CommandStream(
        np.concatenate([piece.funct for piece in pieces]),
        np.concatenate([piece.rs1 for piece in pieces]),
        np.concatenate([piece.rs2 for piece in pieces]),
    )
    return plain, np.concatenate(origins)


def _commands(loop: NDArray[np.int64], machine: GemminiMachine, n: int) -> CommandStream:
    if min(loop[MAX_I], loop[MAX_J], loop[MAX_K]) == 0:
        raise stream_error(StreamFault(n, LOOP_WS, f.LOOP_INCOMPLETE, 0, 0))
    if loop[LOOP_ACTIVATION] > 1:
        raise stream_error(
            StreamFault(n, LOOP_WS, f.UNSUPPORTED_LOOP, int(loop[LOOP_ACTIVATION]), 0)
        )
    most = commands_of(loop)
    if most > MOST_LOOP_COMMANDS:
        raise stream_error(StreamFault(n, LOOP_WS, f.LOOP_TOO_LONG, most, MOST_LOOP_COMMANDS))
    out = CommandStream(
        np.zeros(most, np.uint8), np.zeros(most, np.uint64), np.zeros(most, np.uint64)
    )
    count = unroll_loop(machine, loop, out.funct, out.rs1, out.rs2, 0)
    return out.slice_commands(0, count)
