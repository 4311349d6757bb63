"""Functional simulator of Gemmini: the exact results of a command stream, without timing.

Commands run in program order, in one compiled call that releases the GIL.

Some arguments are the same in all kernels. `memory` is the main memory, shape (bytes,). `block`,
`a`, `b` and `sums` are blocks of shape (16, 16). `weights`, shape (2, 16, 16), holds the active
weights of the array and the weights that the last PRELOAD loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.targets.gemmini import registers as reg
from tilewright.targets.gemmini.isa import (
    ADDRESS_BITS,
    COMPUTE_PRELOADED,
    MVOUT,
    PRELOAD,
    RELU,
    SCALE_ONE,
    WEIGHT_STATIONARY,
    CommandStream,
    accumulates,
    accumulator_row,
    bits,
    columns,
    in_accumulator,
    is_compute,
    is_full_width,
    is_garbage,
    is_mvin,
    load_state,
    local_address,
    move_columns,
    rows,
    scratchpad_row,
    stream_of,
)
from tilewright.targets.gemmini.loop_unrolling import unroll_stream
from tilewright.targets.gemmini.numba_decorators import compiled, stage
from tilewright.targets.gemmini.registers import Registers, blank_registers
from tilewright.targets.gemmini.spec import ARRAY_OUTPUT_BITS, DIM, GemminiMachine, GemminiSpec
from tilewright.targets.gemmini.stream_checks import check_command, raise_fault

A, B, D = 0, 1, 2


class Memories(NamedTuple):
    """Content of the accelerator's local memories and of its array. Kernels change it in place."""

    scratchpad: NDArray[np.int8]  # shape (rows, 16)
    accumulator: NDArray[np.int32]  # shape (rows, 16)
    weights: NDArray[np.int32]  # active weights, and those of the last PRELOAD, shape (2, 16, 16)
    sums: NDArray[np.int32]  # sums of output-stationary products, shape (16, 16)
    operand: NDArray[np.int32]  # A, B and D of the current product, shape (3, 16, 16)


def blank_memories(machine: GemminiMachine) -> Memories:
    """Return memories filled with zeros, as after reset."""
    return Memories(
        np.zeros((machine.scratchpad_rows, DIM), np.int8),
        np.zeros((machine.accumulator_rows, DIM), np.int32),
        np.zeros((2, DIM, DIM), np.int32),
        np.zeros((DIM, DIM), np.int32),
        np.zeros((3, DIM, DIM), np.int32),
    )


@stage
def scaled_int8(value: int, scale: float) -> int:
    """Multiply an integer by a float32 scale and convert the product to int8.

    There are three roundings, each to nearest with ties to even: of the value to float32, of the
    product to float32, and of the product to an integer (Configs.scala, `mvin_scale_args` and
    `acc_scale_args`). Values out of range saturate; NaN becomes 127.
    """
    product = np.float32(value) * np.float32(scale)
    if product != product:
        return 127
    rounded = np.rint(product)
    if rounded >= np.float32(127.0):
        return 127
    if rounded <= np.float32(-128.0):
        return -128
    return int(rounded)


@stage
def shifted(value: int, shift: int) -> int:
    """Divide an int32 value by 2^shift and round to nearest, ties to even.

    This is the operator `>>` of SInt in Arithmetic.scala.
    """
    if shift == 0:
        return value
    half = (value >> (shift - 1)) & 1
    below = value & ((1 << (shift - 1)) - 1)
    quotient = value >> shift
    if half == 1 and (below != 0 or quotient & 1 == 1):
        return quotient + 1
    return quotient


@stage
def saturated(value: int, width: int) -> int:
    """Clip a value to the range of a signed integer of `width` bits.

    Args:
        value: the value.
        width: number of bits, for example 8 for the range −128 to 127.
    """
    top = (1 << (width - 1)) - 1
    if value > top:
        return top
    if value < -top - 1:
        return -top - 1
    return value


@stage
def activated(value: int, activation: int) -> int:
    """Return the ReLU of a value if the activation code selects it, else the value unchanged.

    Args:
        value: the value.
        activation: activation code of the configuration registers.
    """
    if activation == RELU and value < 0:
        return 0
    return value


@stage
def mvin(
    m: GemminiMachine, regs: Registers, mems: Memories, funct: int, rs1: int, rs2: int,
    memory: NDArray[np.uint8], base: int,
) -> None:  # fmt: skip
    """Execute an MVIN: copy rows from main memory to a local memory, in blocks of 16 columns.

    An MVIN from address 0 writes zeros. A memory stride of 0 repeats the first row. Only the given
    columns of a row are written; the other columns keep their values.

    Args:
        m: the machine.
        regs: configuration registers.
        mems: local memories; changed in place.
        funct: function code, which selects one of the three load configurations.
        rs1: first operand: address in main memory.
        rs2: second operand: local address, numbers of rows and columns.
        memory: main memory, shape (bytes,).
        base: address of the first byte of `memory`.
    """
    number = load_state(funct)
    state = number * reg.LOAD_FIELDS
    config, scale = regs.config, regs.scales[number]
    address, n_columns = local_address(rs2), move_columns(rs2)
    to_accumulator = in_accumulator(address)
    wide = to_accumulator and config[state + reg.LOAD_SHRINK] == 0
    adds = to_accumulator and accumulates(address)
    multiplies = not wide and config[state + reg.LOAD_SCALE_BITS] != SCALE_ONE
    first, stride = bits(rs1, 0, ADDRESS_BITS), config[state + reg.LOAD_STRIDE]
    repeats = 1 if wide else config[state + reg.LOAD_PIXEL_REPEATS]
    n_rows = rows(rs2)
    for line in range(n_rows):
        # A repeated row is written from the last row backwards. The order matters if pixels are
        # repeated, too.
        r = n_rows - 1 - line if first != 0 and stride == 0 else line
        at = first + r * stride - base
        for c in range(n_columns):
            offset = r + (c // DIM) * config[state + reg.LOAD_BLOCK_STRIDE]
            value = 0
            if first != 0:
                if wide:
                    value = read_int32(memory, at + 4 * c)
                else:
                    value = nb.int64(np.int8(memory[at + c]))
                    if multiplies:
                        value = scaled_int8(value, scale)
            for repeat in range(repeats):
                # The shift has four bits and the number of columns five (PixelRepeater.scala).
                column = c % DIM + ((repeat * (n_columns & 31)) & 15)
                row = (address + offset) & m.address_mask
                middle = m.scratchpad_rows // 2
                if column >= DIM or row < (0 if row < middle else middle) + repeat:
                    continue
                if to_accumulator:
                    row = accumulator_row(m, row - repeat, 0)
                    before = nb.int64(mems.accumulator[row, column]) if adds else 0
                    mems.accumulator[row, column] = np.int32(before + value)
                else:
                    row = scratchpad_row(m, row - repeat, 0)
                    mems.scratchpad[row, column] = np.int8(value)


@stage
def read_int32(memory: NDArray[np.uint8], at: int) -> int:
    """Read a little-endian int32 from memory."""
    word = (
        nb.int64(memory[at])
        | (nb.int64(memory[at + 1]) << 8)
        | (nb.int64(memory[at + 2]) << 16)
        | (nb.int64(memory[at + 3]) << 24)
    )
    return nb.int64(np.int32(word))


@stage
def mvout(
    m: GemminiMachine,
    regs: Registers,
    mems: Memories,
    rs1: int,
    rs2: int,
    memory: NDArray[np.uint8],
    base: int,
) -> None:
    """Execute an MVOUT: copy rows from a local memory to main memory.

    Rows of the scratchpad are copied unchanged. Rows of the accumulator are activated and scaled to
    int8, or copied as int32.

    Args:
        m: the machine.
        regs: configuration registers.
        mems: local memories.
        rs1: first operand: address in main memory.
        rs2: second operand: local address, numbers of rows and columns.
        memory: main memory, shape (bytes,); changed in place.
        base: address of the first byte of `memory`.
    """
    config = regs.config
    first, stride = bits(rs1, 0, ADDRESS_BITS) - base, config[reg.STORE_STRIDE]
    address, n_columns = local_address(rs2), move_columns(rs2)
    if config[reg.POOL_STRIDE] != 0:
        mvout_pooled(m, regs, mems, first, stride, address, n_columns, memory)
        return
    if config[reg.POOL_SIZE] != 0:
        across = config[reg.POOL_COLUMNS]
        for r in range(config[reg.POOL_ROWS] * across):
            line = (r // across) * config[reg.POOL_OUT_COLUMNS] + r % across
            store_row(m, regs, mems, address, r, n_columns, first + line * stride, memory)
        return
    for r in range(rows(rs2)):
        store_row(m, regs, mems, address, r, n_columns, first + r * stride, memory)


@stage
def store_row(
    m: GemminiMachine, regs: Registers, mems: Memories, address: int, r: int, n_columns: int,
    at: int, memory: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Store one row of an MVOUT to main memory, with its blocks of 16 columns side by side.

    Args:
        m: the machine.
        regs: configuration registers.
        mems: local memories.
        address: local address of the MVOUT.
        r: number of the row.
        n_columns: number of columns.
        at: position of the row in `memory`.
        memory: main memory, shape (bytes,); changed in place.
    """
    for c in range(n_columns):
        offset = r + (c // DIM) * DIM
        if in_accumulator(address) and is_full_width(address):
            word = nb.int64(mems.accumulator[accumulator_row(m, address, offset), c % DIM])
            for byte in range(4):
                memory[at + 4 * c + byte] = np.uint8((word >> (8 * byte)) & 255)
        else:
            memory[at + c] = np.uint8(local_int8(m, regs, mems, address, offset, c % DIM) & 255)


@stage
def local_int8(
    m: GemminiMachine, regs: Registers, mems: Memories, address: int, offset: int, column: int
) -> int:
    """Return a value of a local memory as int8, as an MVOUT would store it.

    Values of the accumulator are activated and scaled; values of the scratchpad are unchanged.

    Args:
        m: the machine.
        regs: configuration registers.
        mems: local memories.
        address: local address.
        offset: number of rows after the local address.
        column: column of the value, 0 to 15.
    """
    if in_accumulator(address):
        value = nb.int64(mems.accumulator[accumulator_row(m, address, offset), column])
        value = activated(value, regs.config[reg.STORE_ACTIVATION])
        return scaled_int8(value, regs.scales[reg.STORE_SCALE])
    return nb.int64(mems.scratchpad[scratchpad_row(m, address, offset), column])


@stage
def mvout_pooled(
    m: GemminiMachine, regs: Registers, mems: Memories, first: int, stride: int, address: int,
    n_columns: int, memory: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Execute an MVOUT that stores the maximum of each pooling window.

    Pixels outside the image count as zeros.

    Args:
        m: the machine.
        regs: configuration registers, which contain the geometry of the pool.
        mems: local memories.
        first: position of the first result in `memory`.
        stride: distance of two results in bytes.
        address: local address of the first row.
        n_columns: number of columns, at most 16.
        memory: main memory, shape (bytes,); changed in place.
    """
    config, step, size = regs.config, regs.config[reg.POOL_STRIDE], regs.config[reg.POOL_SIZE]
    for out_row in range(config[reg.POOLED_ROWS]):
        for out_column in range(config[reg.POOLED_COLUMNS]):
            line = out_row * config[reg.POOL_OUT_COLUMNS] + out_column
            for c in range(n_columns):
                best = -128
                for window in range(size * size):
                    y = out_row * step + window // size - config[reg.POOL_UPPER_PAD]
                    x = out_column * step + window % size - config[reg.POOL_LEFT_PAD]
                    value = 0
                    if 0 <= y < config[reg.POOL_ROWS] and 0 <= x < config[reg.POOL_COLUMNS]:
                        offset = y * config[reg.POOL_COLUMNS] + x
                        value = local_int8(m, regs, mems, address, offset, c)
                    best = max(best, value)
                memory[first + line * stride + c] = np.uint8(best & 255)


@stage
def preload(m: GemminiMachine, regs: Registers, mems: Memories, rs1: int, rs2: int) -> None:
    """Execute a PRELOAD, which prepares the next COMPUTE.

    The command records where the COMPUTE will write its result. In the weight-stationary dataflow,
    it also loads weights into the array. In the output-stationary dataflow, it records the address
    of the initial sums, which the COMPUTE reads.

    Args:
        m: the machine.
        regs: configuration registers; changed in place.
        mems: local memories; changed in place.
        rs1: first operand: local address and size of the weights or initial sums.
        rs2: second operand: local address and size of the destination.
    """
    config = regs.config
    config[reg.PRELOAD_RS1] = rs1
    config[reg.PRELOAD_RS2] = rs2
    if config[reg.DATAFLOW] == WEIGHT_STATIONARY:
        read_operand(m, regs, mems, rs1, 1, config[reg.B_TRANSPOSED] == 1, mems.weights[1])


@stage
def compute(
    m: GemminiMachine, regs: Registers, mems: Memories, funct: int, rs1: int, rs2: int
) -> None:
    """Execute a COMPUTE: multiply two 16 × 16 blocks, add a third block, and write the result.

    In the weight-stationary dataflow, the result is A · weights + D. In the output-stationary
    dataflow, it is A · B + the sums in the array.

    Args:
        m: the machine.
        regs: configuration registers, with the pending PRELOAD.
        mems: local memories; changed in place.
        funct: function code, which selects whether the block of the last PRELOAD is used.
        rs1: first operand: local address and size of A.
        rs2: second operand: local address and size of D (weight-stationary) or B
            (output-stationary).
    """
    config = regs.config
    weight_stationary = config[reg.DATAFLOW] == WEIGHT_STATIONARY
    transposed_a, transposed_b = config[reg.A_TRANSPOSED] == 1, config[reg.B_TRANSPOSED] == 1
    read_operand(m, regs, mems, rs1, config[reg.A_STRIDE], transposed_a, mems.operand[A])
    if weight_stationary:
        if funct == COMPUTE_PRELOADED:
            exchange(mems.weights)
        read_operand(m, regs, mems, rs2, 1, False, mems.operand[D])
        result = mems.operand[D]
        multiply(mems.operand[A], mems.weights[0], result)
    else:
        read_operand(m, regs, mems, rs2, 1, transposed_b, mems.operand[B])
        if funct == COMPUTE_PRELOADED:
            read_operand(m, regs, mems, config[reg.PRELOAD_RS1], 1, False, mems.sums)
        result = mems.sums
        multiply(mems.operand[A], mems.operand[B], result)
    write_result(m, regs, mems, config[reg.PRELOAD_RS2], result, not weight_stationary)


@stage
def read_operand(
    m: GemminiMachine, regs: Registers, mems: Memories, operand: int, stride: int, transposed: bool,
    block: NDArray[np.int32],
) -> None:  # fmt: skip
    """Read a 16 × 16 block from a local memory. Elements beyond the block's size are zero.

    The garbage address stands for an absent operand and reads as zeros. Values of the accumulator
    are activated and scaled to int8.

    Args:
        m: the machine.
        regs: configuration registers.
        mems: local memories.
        operand: local address and size. The size is that of the block in the multiplication: a
            transposed block is stored with its columns as rows.
        stride: distance of two rows of the block, in rows of the local memory.
        transposed: whether the block is transposed.
        block: the block, shape (16, 16); filled.
    """
    address, n_rows, n_columns = local_address(operand), rows(operand), columns(operand)
    block[:] = 0
    if is_garbage(m, address):
        return
    stored_rows, stored_columns = (n_columns, n_rows) if transposed else (n_rows, n_columns)
    for r in range(min(stored_rows, DIM)):
        for c in range(min(stored_columns, DIM)):
            if in_accumulator(address):
                value = nb.int64(mems.accumulator[accumulator_row(m, address, r * stride), c])
                value = activated(value, regs.config[reg.EX_ACTIVATION])
                value = scaled_int8(value, regs.scales[reg.EX_SCALE])
            else:
                value = nb.int64(mems.scratchpad[scratchpad_row(m, address, r * stride), c])
            if transposed:
                block[c, r] = value
            else:
                block[r, c] = value


@stage
def exchange(weights: NDArray[np.int32]) -> None:
    """Swap the active weights of the array with the weights that the last PRELOAD loaded.

    Args:
        weights: active weights and preloaded weights, shape (2, 16, 16); changed in place.
    """
    for r in range(DIM):
        for c in range(DIM):
            kept = weights[0, r, c]
            weights[0, r, c] = weights[1, r, c]
            weights[1, r, c] = kept


@stage
def multiply(a: NDArray[np.int32], b: NDArray[np.int32], sums: NDArray[np.int32]) -> None:
    """Add the product a · b of two 16 × 16 blocks to `sums`, which wraps around as int32.

    Args:
        a: first block, shape (16, 16).
        b: second block, shape (16, 16).
        sums: accumulators, shape (16, 16); changed in place.
    """
    for r in range(DIM):
        for k in range(DIM):
            factor = a[r, k]
            if factor != 0:
                for c in range(DIM):
                    sums[r, c] += factor * b[k, c]


@stage
def write_result(
    m: GemminiMachine,
    regs: Registers,
    mems: Memories,
    operand: int,
    sums: NDArray[np.int32],
    shifts: bool,
) -> None:
    """Write the result of a product to the scratchpad or the accumulator.

    The register `C_STRIDE` gives the distance between two rows of the result. Nothing is written if
    the destination is the garbage address.

    Args:
        m: the machine.
        regs: configuration registers.
        mems: local memories; changed in place.
        operand: local address and size of the result.
        sums: the result, shape (16, 16).
        shifts: whether the values are first divided by a power of two and saturated to 20 bits, as
            in the output-stationary dataflow.
    """
    address, config = local_address(operand), regs.config
    if is_garbage(m, address):
        return
    for r in range(min(rows(operand), DIM)):
        offset = r * config[reg.C_STRIDE]
        for c in range(min(columns(operand), DIM)):
            value = nb.int64(sums[r, c])
            if shifts:
                value = saturated(shifted(value, config[reg.SHIFT]), ARRAY_OUTPUT_BITS)
            if in_accumulator(address):
                row = accumulator_row(m, address, offset)
                if accumulates(address):
                    value += nb.int64(mems.accumulator[row, c])
                mems.accumulator[row, c] = np.int32(value)
            else:
                value = activated(saturated(value, 8), config[reg.EX_ACTIVATION])
                mems.scratchpad[scratchpad_row(m, address, offset), c] = np.int8(value)


@compiled
def run_stream(
    m: GemminiMachine,
    funct: NDArray[np.uint8],
    rs1: NDArray[np.uint64],
    rs2: NDArray[np.uint64],
    memory: NDArray[np.uint8],
    base: int,
    regs: Registers,
    mems: Memories,
    fault: NDArray[np.int64],
) -> int:
    """Execute commands in program order, until the end or until the first fault.

    Args:
        m: the machine.
        funct: function codes, shape (n,).
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        memory: memory image, changed in place; `memory[0]` has address `base`.
        base: address of the memory image.
        regs: configuration registers, changed in place.
        mems: local memories, changed in place.
        fault: shape (3,), filled with the value, the limit and the command index of a fault.

    Returns:
        The fault code, 0 if there was no fault.
    """
    for n in range(len(funct)):
        code = check_command(m, regs, int(funct[n]), rs1[n], rs2[n], base, memory.size, fault)
        if code != 0:
            fault[2] = n
            return code
        execute_command(m, int(funct[n]), rs1[n], rs2[n], memory, base, regs, mems)
    return 0


@stage
def execute_command(
    m: GemminiMachine,
    funct: int,
    a: int,
    b: int,
    memory: NDArray[np.uint8],
    base: int,
    regs: Registers,
    mems: Memories,
) -> None:
    """Execute one command that has passed the checks of `stream_checks`.

    CONFIG commands do nothing here, because the checks have already applied them to the registers.

    Args:
        m: the machine.
        funct: function code.
        a: first operand.
        b: second operand.
        memory: main memory, shape (bytes,); changed in place.
        base: address of the first byte of `memory`.
        regs: configuration registers.
        mems: local memories; changed in place.
    """
    if is_mvin(funct):
        mvin(m, regs, mems, funct, a, b, memory, base)
    elif funct == MVOUT:
        mvout(m, regs, mems, a, b, memory, base)
    elif funct == PRELOAD:
        preload(m, regs, mems, a, b)
    elif is_compute(funct):
        compute(m, regs, mems, funct, a, b)


def execute_stream(
    stream: CommandStream, memory: NDArray[np.uint8], base: int, spec: GemminiSpec
) -> NDArray[np.uint8]:
    """Execute a stream in program order, starting with zeroed local memories.

    Args:
        stream: the commands.
        memory: memory image before the stream, shape (bytes,); it is not changed.
        base: address of the memory image.
        spec: the machine.

    Returns:
        The memory image after the stream.

    Raises:
        StreamError: a command is invalid. The subclass tells the type of fault. The message names
            the command and the cause, and says how to correct it.
    """
    plain, origin = unroll_stream(stream, spec.machine)
    after = np.array(memory, np.uint8)
    fault = np.zeros(3, np.int64)
    code = run_stream(
        spec.machine, plain.funct, plain.rs1, plain.rs2, after, base, blank_registers(),
        blank_memories(spec.machine), fault,
    )  # fmt: skip
    raise_fault(stream, origin, code, fault)
    return after


def execute(
    funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike, memory: bytes, base: int,
    machine: GemminiSpec | Mapping[str, object] | None = None,
) -> bytes:  # fmt: skip
    """Execute a stream and return the memory image after it; see `gemmini.execute`.

    Args:
        funct: function codes, shape (n,).
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        memory: memory image before the stream; `memory[0]` is at address `base`.
        base: address of the memory image.
        machine: specification, or a mapping with the keys of a preset; None for the default
            machine.

    Raises:
        TilewrightError: the stream or the machine's specification is invalid.
    """
    spec = machine if isinstance(machine, GemminiSpec) else GemminiSpec.from_mapping(machine or {})
    image = np.frombuffer(memory, np.uint8)
    return execute_stream(stream_of(funct, rs1, rs2), image, base, spec).tobytes()
