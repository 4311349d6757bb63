"""Faults of command streams: fault codes for compiled code, exceptions and messages for users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilewright.core.errors import TilewrightError
from tilewright.targets.gemmini.isa import COMMAND_NAMES

UNKNOWN_FUNCT, UNSUPPORTED_CONFIG, UNSUPPORTED_LOAD_STATE = 1, 2, 3
ZERO_SIZE, TOO_MANY_ROWS, TOO_MANY_COLUMNS = 4, 5, 6
OUT_OF_MEMORY, COMPUTE_WITHOUT_PRELOAD = 7, 8
GARBAGE_DESTINATION, GARBAGE_SOURCE, LOOP_INCOMPLETE, UNSUPPORTED_LOOP = 9, 10, 11, 12
TRANSPOSED_TWICE, BLOCK_STRIDE_TOO_SMALL, NOT_CONFIGURED = 13, 14, 15
LOOP_TOO_LONG, HANG, ZERO_SHRINK = 16, 17, 18


class StreamError(TilewrightError):
    """Base class of errors in a command stream: it does not finish, or its result is undefined.

    Args:
        fault: the faulty command and the cause.
    """

    def __init__(self, fault: StreamFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class UndecodableCommand(StreamError):
    """Raised if a function code or a field has a value that the machine does not implement."""


class ImpossibleSize(StreamError):
    """Raised if a number of rows or columns would make the hardware fail an assertion or hang."""


class MemoryOutOfRange(StreamError):
    """Raised if a transfer accesses an address outside the memory image."""


class ProtocolError(StreamError):
    """Raised if the hardware does not define the result of a sequence of commands."""


class AcceleratorHang(StreamError):
    """Raised if a command would never complete on the accelerator."""


class _FaultWording(NamedTuple):
    name: str
    error: type[StreamError]
    sentence: str  # may contain {value} and {limit}
    advice: str


_FAULT_WORDINGS = {
    UNKNOWN_FUNCT: _FaultWording(
        "unknown_funct", UndecodableCommand,
        "has function code {value}, which the simulator does not support",
        "use functs 0 to 14 or 127 (fence)",
    ),
    UNSUPPORTED_CONFIG: _FaultWording(
        "unsupported_config", UndecodableCommand,
        "configures unit {value}, which this machine does not have",
        "use CONFIG_EX, CONFIG_LD or CONFIG_ST (0 to 2)",
    ),
    UNSUPPORTED_LOAD_STATE: _FaultWording(
        "unsupported_load_state", UndecodableCommand, "sets load state {value} of {limit}",
        "use states 0 to 2",
    ),
    ZERO_SIZE: _FaultWording(
        "zero_size", ImpossibleSize, "moves 0 rows or 0 columns", "remove the command",
    ),
    TOO_MANY_ROWS: _FaultWording(
        "too_many_rows", ImpossibleSize,
        "moves {value} rows, but at most {limit} are possible at once",
        "split it into several commands",
    ),
    TOO_MANY_COLUMNS: _FaultWording(
        "too_many_columns", ImpossibleSize,
        "moves {value} columns, but at most {limit} of this type are possible",
        "split it into several commands",
    ),
    OUT_OF_MEMORY: _FaultWording(
        "out_of_memory", MemoryOutOfRange,
        "accesses address {value:#x} outside the image ending at {limit:#x}",
        "correct the address or the stride, or pass a larger image",
    ),
    COMPUTE_WITHOUT_PRELOAD: _FaultWording(
        "compute_without_preload", ProtocolError, "has no PRELOAD before it",
        "put a PRELOAD right before each COMPUTE",
    ),
    GARBAGE_DESTINATION: _FaultWording(
        "garbage_destination", UndecodableCommand, "moves data to the garbage address",
        "use the address of a scratchpad or accumulator row",
    ),
    GARBAGE_SOURCE: _FaultWording(
        "garbage_source", UndecodableCommand, "moves data out of the garbage address",
        "use the address of a scratchpad or accumulator row",
    ),
    LOOP_INCOMPLETE: _FaultWording(
        "loop_incomplete", ProtocolError, "runs a loop of 0 blocks",
        "set its bounds with LOOP_WS_CONFIG_BOUNDS first",
    ),
    UNSUPPORTED_LOOP: _FaultWording(
        "unsupported_loop", UndecodableCommand, "uses activation {value} in a loop",
        "use 0 (none) or 1 (ReLU), because this machine has no normalisation",
    ),
    LOOP_TOO_LONG: _FaultWording(
        "loop_too_long", ImpossibleSize,
        "is unrolled to {value} commands, but at most {limit} are supported",
        "use smaller loops",
    ),
    ZERO_SHRINK: _FaultWording(
        "zero_shrink", ProtocolError,
        "writes zeros to the accumulator with a load state that shrinks, which makes the "
        "hardware hang",
        "use a load state without shrink for zeros",
    ),
    HANG: _FaultWording(
        "hang", AcceleratorHang, "never completes, because the accelerator waits forever",
        "look for commands that wait for each other, such as an MVIN between a PRELOAD and "
        "the COMPUTE that needs it",
    ),
    TRANSPOSED_TWICE: _FaultWording(
        "transposed_twice", ProtocolError, "needs two transposers, but the array has one",
        "transpose one operand in memory",
    ),
    BLOCK_STRIDE_TOO_SMALL: _FaultWording(
        "block_stride_too_small", ProtocolError,
        "places blocks {value} rows apart, but each block has {limit} rows",
        "use CONFIG_LD to set a block stride of at least the rows of a block",
    ),
    NOT_CONFIGURED: _FaultWording(
        "not_configured", ProtocolError, "uses a unit that no CONFIG has configured",
        "insert the CONFIG of its unit before it",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class StreamFault:
    """A fault in a stream.

    Attributes:
        command: index of the faulty command.
        funct: function code of that command.
        code: the fault code.
        value: the offending value, if any.
        limit: the limit that the value violates, if any.
    """

    command: int
    funct: int
    code: int
    value: int
    limit: int

    @property
    def name(self) -> str:
        """Name of the fault, such as `zero_size`."""
        return _FAULT_WORDINGS[self.code].name

    @property
    def text(self) -> str:
        """Error message with the command, the cause and the next step."""
        wording = _FAULT_WORDINGS[self.code]
        what = wording.sentence.format(value=self.value, limit=self.limit)
        name = COMMAND_NAMES.get(self.funct, "command")
        return f"command {self.command} ({name}) {what}; {wording.advice}"


def stream_error(fault: StreamFault) -> StreamError:
    """Return the exception for a fault.

    Args:
        fault: the fault.
    """
    return _FAULT_WORDINGS[fault.code].error(fault)
