"""Classes of findings, their severity and meaning, and the log to which compiled checks write.

A finding has one of three severities:

- `error`: no implementation runs the program, or not with a defined result.
- `flag`: at least one implementation accepts the program, and another one rejects it or executes it
  differently.
- `note`: the program is correct on the functional simulator and on the Chisel RTL, but wrong on the
  HLS design or on hardware with different timing.

The classes include the faults that the functional simulator reports.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional import faults as f
from tilewright.targets.vta.numba_decorators import helper

Severity = Literal["error", "flag", "note"]

MISSING_FINISH, INSTRUCTION_AFTER_FINISH = f.MISSING_FINISH, f.INSTRUCTION_AFTER_FINISH
TOKEN_OVERFLOW, LEFTOVER_TOKENS, INSTRUCTION_QUEUE_DEADLOCK = 25, 26, 27
ZERO_TRIP_COUNT, EMPTY_UOP_RANGE, UOP_INDEX_NOT_BUILT = 28, 29, 30
STALE_STORE, READS_UNINITIALISED, DATA_RACE, DRAM_ADDRESS_WRAP = 31, 32, 33, 34
ALU_TENSOR_SHIFT, ALU_TENSOR_SHIFT_NEGATIVE, SHIFT_UNDEFINED = 35, 36, 37
ALU_IMM_SRC_NE_DST = 38
HLS_SHIFT_GT15, HLS_WGT_PADDING, HLS_UOP_2D, HLS_GEMM_ACC_RAW = 39, 40, 41, 42
TOKEN_OVERFLOW_POSSIBLE, MEMORY_RACE = 43, 44


class FlagClass(NamedTuple):
    """Class of findings of the linter that the functional simulator does not report as faults."""

    name: str
    severity: Severity
    sentence: str  # may contain {value}, {limit}, {memory} and {queue}


FLAG_CLASSES = {
    TOKEN_OVERFLOW: FlagClass(
        "token_overflow", "flag",
        "leaves up to {value} tokens in {queue}; the RTL's counters lose those beyond {limit}",
    ),
    TOKEN_OVERFLOW_POSSIBLE: FlagClass(
        "token_overflow_possible", "note",
        "can leave {value} tokens in {queue}, more than the {limit} of the RTL's counters, if "
        "another instruction takes long enough; with the specified memory it does not",
    ),
    LEFTOVER_TOKENS: FlagClass(
        "leftover_tokens", "flag",
        "leaves {value} tokens in {queue} after FINISH, which the next program finds there",
    ),
    INSTRUCTION_QUEUE_DEADLOCK: FlagClass(
        "instruction_queue_deadlock", "flag",
        "cannot be dispatched: its module's queue of {limit} waits for a later instruction",
    ),
    ZERO_TRIP_COUNT: FlagClass(
        "zero_trip_count", "flag",
        "has iter_out or iter_in = 0: nothing in simulation, 16384 iterations in hardware",
    ),
    EMPTY_UOP_RANGE: FlagClass(
        "empty_uop_range", "flag",
        "has uop_end <= uop_bgn: nothing in simulation, up to 16384 micro-ops in hardware",
    ),
    UOP_INDEX_NOT_BUILT: FlagClass(
        "uop_index_ge_2048", "flag",
        "uses micro-ops up to {value}, but the hardware is built with {limit} and aliases",
    ),
    STALE_STORE: FlagClass(
        "stale_store", "flag",
        "stores accumulator {value}, last written by no GEMM or ALU: hardware stores stale data",
    ),
    READS_UNINITIALISED: FlagClass(
        "reads_uninitialised_scratchpad", "flag",
        "stores values at address {value:#x} that depend on the initial scratchpad contents",
    ),
    DATA_RACE: FlagClass(
        "data_race", "flag",
        "accesses {memory} element {value} without ordering to another module's access",
    ),
    MEMORY_RACE: FlagClass(
        "memory_race", "flag",
        "accesses the same address {value:#x} as instruction {limit}, without ordering",
    ),
    DRAM_ADDRESS_WRAP: FlagClass(
        "dram_address_wrap", "flag",
        "has dram_base · element bytes beyond 32 bits, which wraps around to address {value:#x}",
    ),
    ALU_TENSOR_SHIFT: FlagClass(
        "alu_tensor_shift", "note",
        "shifts by a tensor: only amounts from 0 to 31 mean the same everywhere (0 to 15 in HLS)",
    ),
    ALU_TENSOR_SHIFT_NEGATIVE: FlagClass(
        "alu_tensor_shift_negative", "flag",
        "shifts accumulator {value} by a negative tensor amount: to the left in "
        "simulation, to the right in RTL",
    ),
    SHIFT_UNDEFINED: FlagClass(
        "shift_undefined", "flag", "shifts by {value}, beyond the defined -31 to 31"
    ),
    ALU_IMM_SRC_NE_DST: FlagClass(
        "alu_imm_src_ne_dst", "flag",
        "has an immediate and source {value} other than its destination {limit}: RTL reads the "
        "source, others the destination",
    ),
    HLS_SHIFT_GT15: FlagClass(
        "hls_shift_gt15", "note", "shifts by {value}; the HLS design reads 5 signed bits"
    ),
    HLS_WGT_PADDING: FlagClass(
        "hls_wgt_padding", "note", "pads weights, which the HLS design ignores"
    ),
    HLS_UOP_2D: FlagClass(
        "hls_uop_2d", "note", "loads micro-ops in rows or with padding; HLS loads one row"
    ),
    HLS_GEMM_ACC_RAW: FlagClass(
        "hls_gemm_acc_raw", "note",
        "returns to accumulator {value} after {limit} iterations, within the HLS pipeline",
    ),
}  # fmt: skip

_FLAGGED_FAULTS = (
    f.UNDEFINED_STORE_MEMORY_TYPE, f.STORE_PADDING, f.DRAM_PARTLY_OUT_OF_RANGE,
    f.Y_SIZE_ZERO, f.ALU_RAW_HAZARD, f.ALU_MUL, f.ACC_8BIT_LOAD,
)  # fmt: skip


def severity_of(code: int) -> Severity:
    """Return the severity of a class of findings.

    Args:
        code: number of the class.
    """
    if code in FLAG_CLASSES:
        return FLAG_CLASSES[code].severity
    return "flag" if code in _FLAGGED_FAULTS else "error"


def name_of(code: int) -> str:
    """Return the name of a class of findings.

    Args:
        code: number of the class.
    """
    return FLAG_CLASSES[code].name if code in FLAG_CLASSES else f.FAULT_NAMES[code]


CAPACITY = 1 << 16
"""Maximum number of findings that are stored in full. Only the class of each further finding is
stored."""


class Log(NamedTuple):
    """Log of findings, as arrays that compiled code fills.

    Attributes:
        rows: findings as (class, instruction, value, limit, extra), int64, shape (CAPACITY, 5).
        filled: number of findings in `rows`, shape (1,).
        met: whether a class was found, by class number, shape (64,).
    """

    rows: NDArray[np.int64]
    filled: NDArray[np.int64]  # number of stored findings, shape (1,)
    met: NDArray[np.uint8]  # whether a class was found, shape (64,)


def empty_log() -> Log:
    """Return an empty log."""
    return Log(np.empty((CAPACITY, 5), np.int64), np.zeros(1, np.int64), np.zeros(64, np.uint8))


@helper
def note(log: Log, kind: int, instruction: int, value: int, limit: int, extra: int) -> None:
    """Append a finding to the log. If the log is full, only its class is recorded.

    Args:
        log: log of findings; changed in place.
        kind: class of the finding.
        instruction: index of the instruction; -1 for the whole program.
        value: the offending value.
        limit: the limit that the value violates.
        extra: additional number, for example a memory type.
    """
    log.met[kind] = 1
    if log.filled[0] < len(log.rows):
        row = log.rows[log.filled[0]]
        row[0], row[1], row[2], row[3], row[4] = kind, instruction, value, limit, extra
        log.filled[0] += 1


def rename(log: Log, kind: int, to: int) -> None:
    """Change the class of all findings of one class.

    Args:
        log: log of findings; changed in place.
        kind: the present class.
        to: the new class.
    """
    kinds = log.rows[: int(log.filled[0]), 0]
    kinds[kinds == kind] = to
    log.met[kind], log.met[to] = 0, 1
