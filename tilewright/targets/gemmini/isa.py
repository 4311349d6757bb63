"""Instruction set of Gemmini: function codes, operand fields, local addresses and streams.

A command consists of a function code (`funct`) and two 64-bit operands (`rs1`, `rs2`). Names and
bit positions are those of GemminiISA.scala and LocalAddr.scala of ucb-bar/gemmini at commit
b6e24f0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import GemminiMachine

CONFIG, MVIN2, MVIN, MVOUT = 0, 1, 2, 3
COMPUTE_PRELOADED, COMPUTE_ACCUMULATED, PRELOAD, FLUSH = 4, 5, 6, 7
LOOP_WS, LOOP_BOUNDS, LOOP_ADDRESSES_AB, LOOP_ADDRESSES_DC = 8, 9, 10, 11
LOOP_STRIDES_AB, LOOP_STRIDES_DC = 12, 13
MVIN3 = 14
# No command of the accelerator has this function code.
FENCE = 127
"""Code of a pseudo-command with which the processor waits until the accelerator is idle."""
CONFIG_EX, CONFIG_LD, CONFIG_ST, CONFIG_NORM = 0, 1, 2, 3
OUTPUT_STATIONARY, WEIGHT_STATIONARY = 0, 1
RELU = 1
SCALE_ONE = 0x3F800000
"""Bits of the float32 number 1.0. An MVIN with this scale bypasses the multipliers."""
# A CONFIG_ST with this scale keeps the current scale.
KEEP_SCALE = 0xFFFFFFFF
ADDRESS_BITS = 40
"""Width of a main-memory address in bits."""
GARBAGE = 0xFFFFFFFF
"""Local address that stands for an absent operand."""

COMMAND_NAMES = {
    CONFIG: "CONFIG", MVIN: "MVIN", MVIN2: "MVIN2", MVIN3: "MVIN3", MVOUT: "MVOUT",
    COMPUTE_PRELOADED: "COMPUTE_PRELOADED", COMPUTE_ACCUMULATED: "COMPUTE_ACCUMULATED",
    PRELOAD: "PRELOAD", FLUSH: "FLUSH", LOOP_WS: "LOOP_WS", LOOP_BOUNDS: "LOOP_WS_CONFIG_BOUNDS",
    LOOP_ADDRESSES_AB: "LOOP_WS_CONFIG_ADDRS_AB", LOOP_ADDRESSES_DC: "LOOP_WS_CONFIG_ADDRS_DC",
    LOOP_STRIDES_AB: "LOOP_WS_CONFIG_STRIDES_AB", LOOP_STRIDES_DC: "LOOP_WS_CONFIG_STRIDES_DC",
    FENCE: "FENCE",
}  # fmt: skip


@stage
def bits(word: int, low: int, width: int) -> int:
    """Return a bit field of a 64-bit operand, as int64.

    Args:
        word: the operand.
        low: index of the field's lowest bit.
        width: width of the field in bits.
    """
    return nb.int64((nb.uint64(word) >> nb.uint64(low)) & nb.uint64((1 << width) - 1))


@stage
def local_address(word: int) -> int:
    """Return the local address (a row of the scratchpad or accumulator) that an operand contains.

    Args:
        word: a 64-bit operand, whose low 32 bits are the address.
    """
    return bits(word, 0, 32)


@stage
def move_columns(word: int) -> int:
    """Return the number of columns to move from the second operand of an MVIN or MVOUT.

    Args:
        word: the 64-bit operand.
    """
    return bits(word, 32, 7)


@stage
def columns(word: int) -> int:
    """Return the number of columns of a matrix from an operand of a PRELOAD or COMPUTE.

    Args:
        word: the 64-bit operand, which describes the location and the size of a matrix.
    """
    return bits(word, 32, 5)


@stage
def rows(word: int) -> int:
    """Return the number of rows of a matrix from an operand.

    Args:
        word: the 64-bit operand, which describes the location and the size of a matrix.
    """
    return bits(word, 48, 5)


@stage
def is_garbage(m: GemminiMachine, address: int) -> bool:
    """Return whether a local address is the garbage address, which stands for an absent operand."""
    return (address & m.garbage_mask) == m.garbage_mask


@stage
def in_accumulator(address: int) -> bool:
    """Return whether a local address lies in the accumulator."""
    return (address >> 31) & 1 == 1


@stage
def accumulates(address: int) -> bool:
    """Return whether a write to a local address adds to the row instead of replacing it."""
    return (address >> 30) & 1 == 1


@stage
def is_full_width(address: int) -> bool:
    """Return whether an MVOUT from a local address stores int32 values."""
    return (address >> 29) & 1 == 1


@stage
def scratchpad_row(m: GemminiMachine, address: int, offset: int) -> int:
    """Return the scratchpad row at a distance from a local address, with wrap-around.

    Args:
        m: the machine.
        address: local address of a scratchpad row.
        offset: number of rows after this address.
    """
    return (address + offset) & m.address_mask & (m.scratchpad_rows - 1)


@stage
def accumulator_row(m: GemminiMachine, address: int, offset: int) -> int:
    """Return the accumulator row at a distance from a local address, with wrap-around.

    Args:
        m: the machine.
        address: local address of an accumulator row.
        offset: number of rows after this address.
    """
    return (address + offset) & m.address_mask & (m.accumulator_rows - 1)


@stage
def load_state(funct: int) -> int:
    """Return the index of the load configuration that an MVIN command uses.

    Args:
        funct: function code of MVIN, MVIN2 or MVIN3.

    Returns:
        0, 1 or 2.
    """
    if funct == MVIN2:
        return 1
    if funct == MVIN3:
        return 2
    return 0


@stage
def is_mvin(funct: int) -> bool:
    """Return whether a function code is MVIN, MVIN2 or MVIN3."""
    return funct == MVIN or funct == MVIN2 or funct == MVIN3


@stage
def is_compute(funct: int) -> bool:
    """Return whether a function code is one of the two COMPUTE commands."""
    return funct == COMPUTE_PRELOADED or funct == COMPUTE_ACCUMULATED


class CommandStream(NamedTuple):
    """Commands of the accelerator in program order: function code and two operands each."""

    funct: NDArray[np.uint8]  # shape (n,)
    rs1: NDArray[np.uint64]  # shape (n,)
    rs2: NDArray[np.uint64]  # shape (n,)

    @property
    def has_loops(self) -> bool:
        """True if the stream contains commands of the hardware loop LOOP_WS."""
        return bool(((self.funct >= LOOP_WS) & (self.funct <= LOOP_STRIDES_DC)).any())

    def slice_commands(self, first: int, end: int) -> CommandStream:
        """Return the commands from index `first` up to, but not including, index `end`."""
        return CommandStream(self.funct[first:end], self.rs1[first:end], self.rs2[first:end])


def stream_of(funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike) -> CommandStream:
    """Build a command stream from three sequences of equal length.

    Args:
        funct: function codes, integers of 8 bits, shape (n,).
        rs1: first operands, integers of 64 bits, shape (n,).
        rs2: second operands, integers of 64 bits, shape (n,).

    Raises:
        TilewrightError: the lengths differ, or a value is not an integer in the valid range.
    """
    try:
        columns = [
            _unsigned(part, kind)
            for part, kind in ((funct, np.uint8), (rs1, np.uint64), (rs2, np.uint64))
        ]
    except (TypeError, ValueError, OverflowError):
        raise TilewrightError(
            "a command stream needs function codes of 8 bits and operands of 64 bits; "
            "pass three arrays of unsigned integers"
        ) from None
    if len({len(part) for part in columns}) != 1:
        raise TilewrightError(
            f"a command stream has {len(columns[0])} function codes, but {len(columns[1])} "
            f"and {len(columns[2])} operands; pass arrays of equal length"
        )
    return CommandStream(*columns)


def _unsigned(values: ArrayLike, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Convert integers to an unsigned type. Raise `ValueError` if a value does not fit."""
    numbers = np.asarray(values)
    if numbers.size == 0:
        return np.zeros(0, kind)
    limits = np.iinfo(kind)
    whole = numbers.ndim == 1 and numbers.dtype.kind in "iu"
    if not whole or int(numbers.min()) < limits.min or int(numbers.max()) > limits.max:
        raise ValueError(values)
    return np.ascontiguousarray(numbers.astype(kind))
