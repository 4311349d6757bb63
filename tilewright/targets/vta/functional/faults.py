"""Faults of programs: codes for compiled code, and exceptions and messages for users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilewright.core.errors import TilewrightError
from tilewright.targets.vta.instruction_format import MEMORY_NAMES, OPCODE_NAMES

# Errors: no implementation runs such a program, or its result is undefined
SCRATCHPAD_OVERFLOW, STORE_SCRATCHPAD_OVERFLOW = 1, 2
ACC_INDEX_OVERFLOW, INP_INDEX_OVERFLOW, WGT_INDEX_OVERFLOW, UOP_INDEX_OVERFLOW = 3, 4, 5, 6
UNDEFINED_OPCODE, UNDEFINED_LOAD_MEMORY_TYPE, UNDEFINED_ALU_OPCODE = 7, 8, 9
ILLEGAL_DEPENDENCY_FLAG = 10
DRAM_NULL_PAGE, DRAM_OUT_OF_RANGE = 11, 12
DEADLOCK, MISSING_FINISH, INSTRUCTION_AFTER_FINISH = 13, 14, 15
WORK_LIMIT_EXCEEDED, TRUNCATED_INSTRUCTION = 16, 17
# Portability flags: at least one implementation accepts the program, and another one rejects it or
# executes it differently
UNDEFINED_STORE_MEMORY_TYPE, STORE_PADDING, DRAM_PARTLY_OUT_OF_RANGE = 18, 19, 20
Y_SIZE_ZERO, ALU_RAW_HAZARD, ALU_MUL, ACC_8BIT_LOAD = 21, 22, 23, 24


class FunctionalError(TilewrightError):
    """Raised if a program cannot run to its end.

    Attributes:
        fault: the instruction that stopped the program, and the reason.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class ScratchpadOverflow(FunctionalError):
    """Raised if a transfer or an index exceeds a scratchpad."""


class UndecodableInstruction(FunctionalError):
    """Raised if an opcode, memory type, ALU operation or field value is undefined."""


class DramOutOfRange(FunctionalError):
    """Raised if a transfer accesses an address outside the memory image."""


class TokenDeadlock(FunctionalError):
    """Raised if modules wait for dependency tokens that no module sends."""


class FinishError(FunctionalError):
    """Raised if a program has no FINISH instruction, or if FINISH is not the last instruction."""


class HardwareHang(FunctionalError):
    """Raised if the hardware description (RTL) never completes an instruction, or stops at it."""


class WorkLimitExceeded(FunctionalError):
    """Raised if a program needs more work than the caller allows."""


class _Wording(NamedTuple):
    name: str
    error: type[FunctionalError]
    sentence: str  # may contain {value}, {limit}, {extra} and {memory}
    advice: str


_SMALLER = "use a smaller tile or a larger scratchpad"
_SKIP = "drop the instruction or the field"
_WORDINGS = {
    SCRATCHPAD_OVERFLOW: _Wording(
        "scratchpad_overflow", ScratchpadOverflow,
        "fills {memory} elements up to {value} of {limit} (sram_base plus padded rows)", _SMALLER,
    ),
    STORE_SCRATCHPAD_OVERFLOW: _Wording(
        "store_scratchpad_overflow", ScratchpadOverflow,
        "reads accumulator elements up to {value} of {limit} (sram_base + y_size·x_size)", _SMALLER,
    ),
    ACC_INDEX_OVERFLOW: _Wording(
        "acc_index_overflow", ScratchpadOverflow,
        "reaches accumulator {value} of {limit} (micro-op {extra})", _SMALLER,
    ),
    INP_INDEX_OVERFLOW: _Wording(
        "inp_index_overflow", ScratchpadOverflow,
        "reaches input {value} of {limit} (micro-op {extra})", _SMALLER,
    ),
    WGT_INDEX_OVERFLOW: _Wording(
        "wgt_index_overflow", ScratchpadOverflow,
        "reaches weight {value} of {limit} (micro-op {extra})", _SMALLER,
    ),
    UOP_INDEX_OVERFLOW: _Wording(
        "uop_index_overflow", ScratchpadOverflow,
        "uses micro-ops up to uop_end = {value} of {limit}", "use fewer micro-ops",
    ),
    UNDEFINED_OPCODE: _Wording(
        "undefined_opcode", UndecodableInstruction,
        "has the undefined opcode {value}", "use an opcode from 0 to 4",
    ),
    UNDEFINED_LOAD_MEMORY_TYPE: _Wording(
        "undefined_load_memory_type", UndecodableInstruction,
        "loads memory type {value}, which does not exist here", "use UOP, WGT, INP or ACC",
    ),
    UNDEFINED_ALU_OPCODE: _Wording(
        "undefined_alu_opcode", UndecodableInstruction,
        "has the undefined ALU operation {value}", "use MIN, MAX, ADD or SHR",
    ),
    ILLEGAL_DEPENDENCY_FLAG: _Wording(
        "illegal_dependency_flag", UndecodableInstruction,
        "has a dependency flag (bits {value:#x}) for a neighbour that its module does not have",
        "LOAD has no previous and STORE no next module: clear the flag",
    ),
    DRAM_NULL_PAGE: _Wording(
        "dram_null_page", DramOutOfRange,
        "accesses address {value:#x} in the first 4096 bytes, which are not mapped",
        "set dram_base to an address of the image",
    ),
    DRAM_OUT_OF_RANGE: _Wording(
        "dram_out_of_range", DramOutOfRange,
        "accesses address {value:#x} outside the image ending at {limit:#x}",
        "correct dram_base or pass a larger image",
    ),
    DRAM_PARTLY_OUT_OF_RANGE: _Wording(
        "dram_partly_out_of_range", DramOutOfRange,
        "transfers up to address {value:#x}, beyond the image ending at {limit:#x}",
        "correct the sizes or pass a larger image",
    ),
    DEADLOCK: _Wording(
        "deadlock", TokenDeadlock, "{detail}", "add the missing push or remove the pop",
    ),
    MISSING_FINISH: _Wording(
        "missing_finish", FinishError, "the program has no FINISH", "end it with FINISH",
    ),
    INSTRUCTION_AFTER_FINISH: _Wording(
        "instruction_after_finish", FinishError,
        "is not ordered before FINISH (instruction {value})",
        "let FINISH be the last compute instruction and wait for the last LOAD and STORE",
    ),
    WORK_LIMIT_EXCEEDED: _Wording(
        "work_limit", WorkLimitExceeded,
        "brings the program to {value} multiply-accumulates, more than the limit of {limit}",
        "correct its loop counts or raise Semantics.work_limit",
    ),
    TRUNCATED_INSTRUCTION: _Wording(
        "truncated_instruction", UndecodableInstruction,
        "has only {value} of 16 bytes", "pass whole instructions",
    ),
    UNDEFINED_STORE_MEMORY_TYPE: _Wording(
        "undefined_store_memory_type", UndecodableInstruction,
        "stores memory type {value}; only OUT (4) can be stored", "set memory_type to 4",
    ),
    STORE_PADDING: _Wording(
        "store_padding", UndecodableInstruction,
        "is a STORE with padding, which only LOAD supports", "clear the padding fields",
    ),
    Y_SIZE_ZERO: _Wording(
        "y_size_zero", HardwareHang,
        "has y_size = 0 with x_size > 0, which hardware never completes", _SKIP,
    ),
    ALU_RAW_HAZARD: _Wording(
        "alu_raw_hazard", HardwareHang,
        "needs accumulator {value} one iteration after it is written, which the RTL cannot bypass",
        "put another iteration between the two",
    ),
    ALU_MUL: _Wording(
        "alu_mul", HardwareHang,
        "is an ALU MUL, which only the functional simulator supports", "multiply with GEMM",
    ),
    ACC_8BIT_LOAD: _Wording(
        "acc_8bit_load", HardwareHang,
        "loads ACC_8BIT, which only the functional simulator supports", "load 32-bit accumulators",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """Description of the fault of one instruction.

    Attributes:
        name: name of the kind of fault.
        instruction: index of the instruction; -1 if the fault concerns the whole program.
        text: one sentence with the cause and a remedy.
        value: the offending value.
        limit: the limit that the value violates.
    """

    name: str
    instruction: int  # index in the stream, -1 for the whole stream
    text: str  # one sentence with the cause and the next step
    value: int = 0
    limit: int = 0


FAULT_NAMES = {code: wording.name for code, wording in _WORDINGS.items()}


def fault_of(
    code: int, instruction: int, opcode: int, value: int, limit: int, extra: int, detail: str = ""
) -> Fault:
    """Convert a fault record of the kernels to a description.

    Args:
        code: the fault code.
        instruction: index of the instruction; -1 if the fault concerns the whole program.
        opcode: opcode of the instruction.
        value: the offending value.
        limit: the limit that the value violates.
        extra: additional number, for example a memory type.
        detail: text for faults that concern the whole program.
    """
    wording = _WORDINGS[code]
    memory = MEMORY_NAMES[extra] if 0 <= extra < len(MEMORY_NAMES) else str(extra)
    sentence = wording.sentence.format(
        value=value, limit=limit, extra=extra, memory=memory, detail=detail
    )
    if instruction >= 0:
        name = OPCODE_NAMES[opcode] if opcode < len(OPCODE_NAMES) else f"opcode {opcode}"
        sentence = f"instruction {instruction} ({name}) {sentence}"
    return Fault(wording.name, instruction, f"{sentence}; {wording.advice}", value, limit)


def error_of(code: int, fault: Fault) -> FunctionalError:
    """Create the exception for a fault.

    Args:
        code: the fault code, which determines the class of the exception.
        fault: the fault that the exception describes.
    """
    return _WORDINGS[code].error(fault)
