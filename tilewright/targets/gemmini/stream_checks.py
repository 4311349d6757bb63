"""Checks commands before they run: function codes, sizes, addresses and order.

A fault is reported as an integer code of the module `faults`. The offending value, the limit that
it violates and the index of the command are written to the array `fault`, shape (3,). The array
`origin`, shape (n,), maps commands of the unrolled stream to commands of the original stream.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini import faults as f
from tilewright.targets.gemmini import registers as reg
from tilewright.targets.gemmini.faults import StreamFault, stream_error
from tilewright.targets.gemmini.isa import (
    ADDRESS_BITS,
    CONFIG,
    FENCE,
    FLUSH,
    MVOUT,
    PRELOAD,
    WEIGHT_STATIONARY,
    CommandStream,
    bits,
    in_accumulator,
    is_compute,
    is_full_width,
    is_garbage,
    is_mvin,
    load_state,
    local_address,
    move_columns,
    rows,
)
from tilewright.targets.gemmini.numba_decorators import compiled, stage
from tilewright.targets.gemmini.registers import Registers, blank_registers, configure
from tilewright.targets.gemmini.spec import DIM, GemminiMachine

# Four blocks of 16 columns are the most that one command moves. Wider moves fire an assertion of
# the RTL.
MOST_COLUMNS = 64


@stage
def check_mvin(
    m: GemminiMachine, regs: Registers, funct: int, rs1: int, rs2: int, base: int, size: int,
    fault: NDArray[np.int64],
) -> int:  # fmt: skip
    """Return the fault code of an MVIN, or 0 if it is valid.

    Args:
        m: the machine.
        regs: configuration registers.
        funct: function code, which selects one of the three load configurations.
        rs1: first operand: address in main memory.
        rs2: second operand: local address, numbers of rows and columns.
        base: address of the first byte of the memory image.
        size: size of the memory image in bytes.
        fault: value, limit and index of the fault, shape (3,); written.
    """
    state = load_state(funct) * reg.LOAD_FIELDS
    n_rows, n_columns, address = rows(rs2), move_columns(rs2), local_address(rs2)
    if n_rows == 0 or n_columns == 0:
        return f.ZERO_SIZE
    if regs.config[state + reg.LOAD_SET] == 0:
        return f.NOT_CONFIGURED
    if is_garbage(m, address):
        return f.GARBAGE_DESTINATION
    wide = in_accumulator(address) and regs.config[state + reg.LOAD_SHRINK] == 0
    if n_rows > DIM:
        fault[0], fault[1] = n_rows, DIM
        return f.TOO_MANY_ROWS
    most = DIM if wide else MOST_COLUMNS
    if n_columns > most:
        fault[0], fault[1] = n_columns, most
        return f.TOO_MANY_COLUMNS
    if n_columns > DIM and regs.config[state + reg.LOAD_BLOCK_STRIDE] < n_rows:
        fault[0], fault[1] = regs.config[state + reg.LOAD_BLOCK_STRIDE], n_rows
        return f.BLOCK_STRIDE_TOO_SMALL
    first = bits(rs1, 0, ADDRESS_BITS)
    if first == 0:
        # The byte counter of the hardware underflows: it subtracts four bytes for elements that
        # were announced with one byte. The RTL then fires an assertion and hangs.
        shrinks = in_accumulator(address) and not wide
        return f.ZERO_SHRINK if shrinks else 0
    stride = regs.config[state + reg.LOAD_STRIDE]
    return check_range(first, stride, n_rows, n_columns * (4 if wide else 1), base, size, fault)


@stage
def check_mvout(
    m: GemminiMachine, regs: Registers, rs1: int, rs2: int, base: int, size: int,
    fault: NDArray[np.int64],
) -> int:  # fmt: skip
    """Return the fault code of an MVOUT, or 0 if it is valid.

    Args:
        m: the machine.
        regs: configuration registers.
        rs1: first operand: address in main memory.
        rs2: second operand: local address, numbers of rows and columns.
        base: address of the first byte of the memory image.
        size: size of the memory image in bytes.
        fault: value, limit and index of the fault, shape (3,); written.
    """
    n_rows, n_columns, address = rows(rs2), move_columns(rs2), local_address(rs2)
    if n_rows == 0 or n_columns == 0:
        return f.ZERO_SIZE
    if regs.config[reg.STORE_SET] == 0:
        return f.NOT_CONFIGURED
    if is_garbage(m, address):
        return f.GARBAGE_SOURCE
    full = in_accumulator(address) and is_full_width(address)
    one_block = full or regs.config[reg.POOL_STRIDE] != 0 or regs.config[reg.POOL_SIZE] != 0
    most = DIM if one_block else MOST_COLUMNS
    if n_columns > most:
        fault[0], fault[1] = n_columns, most
        return f.TOO_MANY_COLUMNS
    first, stride = bits(rs1, 0, ADDRESS_BITS), regs.config[reg.STORE_STRIDE]
    n_bytes = n_columns * (4 if full else 1)
    if regs.config[reg.POOL_STRIDE] != 0:
        out = regs.config[reg.POOL_OUT_COLUMNS]
        last = (regs.config[reg.POOLED_ROWS] - 1) * out + regs.config[reg.POOLED_COLUMNS] - 1
        return check_range(first, stride, last + 1, n_bytes, base, size, fault)
    if regs.config[reg.POOL_SIZE] != 0:
        out = regs.config[reg.POOL_OUT_COLUMNS]
        last = (regs.config[reg.POOL_ROWS] - 1) * out + regs.config[reg.POOL_COLUMNS] - 1
        return check_range(first, stride, last + 1, n_bytes, base, size, fault)
    if n_rows > DIM:
        fault[0], fault[1] = n_rows, DIM
        return f.TOO_MANY_ROWS
    return check_range(first, stride, n_rows, n_bytes, base, size, fault)


@stage
def check_range(
    first: int, stride: int, n_rows: int, n_bytes: int, base: int, size: int,
    fault: NDArray[np.int64],
) -> int:  # fmt: skip
    """Check that all rows of a transfer lie within the memory image.

    Args:
        first: address of the first row.
        stride: distance of two rows in bytes.
        n_rows: number of rows.
        n_bytes: size of a row in bytes.
        base: address of the first byte of the image.
        size: size of the image in bytes.
        fault: value, limit and index of the fault, shape (3,); written.

    Returns:
        The fault code; 0 if all rows lie within the image.
    """
    last = first + max(n_rows - 1, 0) * stride + n_bytes
    if first < base or last > base + size:
        fault[0], fault[1] = (first if first < base else last - 1), base + size
        return f.OUT_OF_MEMORY
    return 0


@stage
def check_command(
    m: GemminiMachine,
    regs: Registers,
    funct: int,
    a: int,
    b: int,
    base: int,
    size: int,
    fault: NDArray[np.int64],
) -> int:
    """Check a command. A CONFIG command is also applied, because later checks depend on it.

    Args:
        m: the machine.
        regs: configuration registers; changed in place by CONFIG, PRELOAD and COMPUTE.
        funct: function code.
        a: first operand.
        b: second operand.
        base: address of the memory image.
        size: size of the memory image in bytes.
        fault: value, limit and index of the fault, shape (3,); value and limit are written.

    Returns:
        The fault code; 0 if the command is valid.
    """
    if funct == CONFIG:
        return configure(regs, a, b, fault)
    if is_mvin(funct):
        return check_mvin(m, regs, funct, a, b, base, size, fault)
    if funct == MVOUT:
        return check_mvout(m, regs, a, b, base, size, fault)
    if funct == PRELOAD or is_compute(funct):
        return check_product(regs, funct)
    if funct == FLUSH or funct == FENCE:
        return 0
    fault[0] = funct
    return f.UNKNOWN_FUNCT


@stage
def check_product(regs: Registers, funct: int) -> int:
    """Check a PRELOAD or COMPUTE command.

    The registers record whether a PRELOAD waits for its COMPUTE, because every COMPUTE needs a
    PRELOAD before it.

    Args:
        regs: configuration registers; changed in place.
        funct: function code of the command.

    Returns:
        The fault code; 0 if the command is valid.
    """
    config = regs.config
    if config[reg.EX_SET] == 0:
        return f.NOT_CONFIGURED
    if funct == PRELOAD:
        config[reg.PENDING] = 1
        return 0
    if config[reg.PENDING] == 0:
        return f.COMPUTE_WITHOUT_PRELOAD
    config[reg.PENDING] = 0
    stationary = config[reg.DATAFLOW] == WEIGHT_STATIONARY
    if config[reg.B_TRANSPOSED] and (config[reg.A_TRANSPOSED] == 1) == stationary:
        return f.TRANSPOSED_TWICE
    return 0


@compiled
def check_commands(
    m: GemminiMachine,
    funct: NDArray[np.uint8],
    rs1: NDArray[np.uint64],
    rs2: NDArray[np.uint64],
    regs: Registers,
    fault: NDArray[np.int64],
) -> int:
    """Check all commands of an unrolled stream, but not whether they access a given memory image.

    Args:
        m: the machine.
        funct: function codes, shape (n,).
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        regs: configuration registers; changed in place.
        fault: value, limit and command index of a fault, shape (3,); written.

    Returns:
        The code of the first fault; 0 if there is none.
    """
    for n in range(len(funct)):
        code = check_command(m, regs, int(funct[n]), rs1[n], rs2[n], 0, 1 << 48, fault)
        if code != 0:
            fault[2] = n
            return code
    return 0


def check_stream(
    stream: CommandStream, plain: CommandStream, origin: NDArray[np.int64], m: GemminiMachine
) -> None:
    """Raise an error for the first command of a stream that the machine cannot run.

    Args:
        stream: the original stream.
        plain: the stream with unrolled loops.
        origin: for each command of `plain`, the index of its command in `stream`, shape (n,).
        m: the machine.

    Raises:
        StreamError: a command is invalid.
    """
    fault = np.zeros(3, np.int64)
    code = check_commands(m, plain.funct, plain.rs1, plain.rs2, blank_registers(), fault)
    raise_fault(stream, origin, code, fault)


def raise_fault(
    stream: CommandStream, origin: NDArray[np.int64], code: int, fault: NDArray[np.int64]
) -> None:
    """Raise the exception for a fault code; return normally if the code is 0.

    Args:
        stream: the original stream.
        origin: for each unrolled command, the index of its command in `stream`, shape (n,).
        code: the fault code; 0 if there is no fault.
        fault: value, limit and command index of the fault, shape (3,).

    Raises:
        StreamError: `code` is not 0.
    """
    if code:
        n = int(origin[fault[2]])
        raise stream_error(StreamFault(n, int(stream.funct[n]), code, int(fault[0]), int(fault[1])))
