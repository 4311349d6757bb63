"""Layout of the simulator's state: registers and queues of all units, and the table of commands.

All registers and queues are stored in one integer array, `s` of shape (STATE_WORDS,). The constants
of this module are positions in that array. A register is one word. A queue is a range of words: the
index of the oldest entry, the number of entries, the cycle of the last removal, and then the
entries, each of which has one or more fields.

The table of commands is `c`, shape (COMMAND_ROWS, n).

Within a cycle, units are simulated from the memory port backwards. A unit that takes from a queue
is therefore simulated before the unit that fills the queue, and sees the entries of the previous
cycle, as in the hardware. A unit that fills a plain queue asks `has_room`, which ignores removals
in this cycle. A unit that fills a "pipe" queue asks `has_room_pipe`, which counts them: such a
queue accepts an entry in the cycle in which another one leaves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.loop_unrolling import LOOP_SETTINGS, LOOPS
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import MOST_ENTRIES

UnitState = NDArray[np.int64]  # shape (STATE_WORDS,)
HEAD, COUNT, REMOVED_AT, ENTRIES = 0, 1, 2, 3
QUEUE_HEADER = 3
Commands = NDArray[np.int64]
"""Table of commands, int64 of shape (7, n + made). The n commands of the program come first,
followed by space for the commands that hardware loops generate. Rows 0 to 2 are the command itself;
rows 3 to 6 are the cycles of its events, or -1 for an event that does not occur."""
FUNCT, RS1, RS2 = 0, 1, 2
ACCEPT, ALLOC, ISSUE, COMPLETE = 3, 4, 5, 6
COMMAND_ROWS = 7
EVENT_NAMES = ("accept", "alloc", "issue", "complete")


class _Places:
    """Allocator of positions in the state array."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, words: int = 1) -> int:
        first = self.used
        self.used += words
        return first

    def queue(self, entries: int, fields: int) -> int:
        return self.take(QUEUE_HEADER + entries * fields)


_p = _Places()
NOW = _p.take()
PROGRESS_AT = _p.take()  # last cycle in which a command made progress

# Front end: four queues of command numbers, one after the other
PORT_Q, CONV_Q, LOOP_Q, LAST_Q = (_p.queue(2, 1) for _ in range(4))
FRONT_ENTRIES = 2
NEXT_COMMAND, WAIT_UNTIL = _p.take(), _p.take()

# LOOP_WS unit: two loops with their flags, and five generators with their loop and their counters.
# The first four are indexed by loop; STARTED and COMPLETED are bit sets of generators.
LW_CONFIGURED, LW_RUNNING, LW_STARTED, LW_COMPLETED = (_p.take(2) for _ in range(4))
LW_HEAD, LW_BASE, LW_MADE = _p.take(), _p.take(), _p.take()
GEN_A, GEN_B, GEN_D, GEN_EX, GEN_C = 0, 1, 2, 3, 4
GENERATORS = 5
LG_STATE, LG_LOOP = _p.take(GENERATORS), _p.take(GENERATORS)
LG_I, LG_J, LG_K = _p.take(GENERATORS), _p.take(GENERATORS), _p.take(GENERATORS)
LW_IN_STATION = _p.take(3)  # number of generated commands in the reservation station, by part
LW_LOOPS = _p.take(LOOPS * LOOP_SETTINGS)
LW_SETTLED = _p.take()  # 1 if the state of the generators can only change when they emit a command

# Reservation station, with one part per controller: load, execute, store
LOAD_PART, EXECUTE_PART, STORE_PART = 0, 1, 2
RS_COMMAND, RS_CONFIG, RS_WRITES_FIRST, RS_A_VALID, RS_B_VALID = 0, 1, 2, 3, 4
# ranges of local rows: memory, first row, end, and whether the range wraps around
RS_A, RS_B = 5, 9
# bit sets of the entries of the other parts that this entry waits for; the order within a part is
# kept by `UNISSUED`
RS_WAITS = 13
RS_FIELDS = 16
STATION = _p.take(3 * MOST_ENTRIES * RS_FIELDS)
STATION_VALID = _p.take(3)  # bit sets of valid entries
STATION_COUNT = _p.take(3)  # number of valid entries
UNISSUED_WORDS = QUEUE_HEADER + MOST_ENTRIES
UNISSUED = _p.take(3 * UNISSUED_WORDS)  # a queue of entries per part
SOLITARY_PRELOAD = _p.take()
STATION_A_STRIDE, STATION_C_STRIDE, STATION_A_TRANSPOSED = _p.take(), _p.take(), _p.take()
STATION_BLOCK_STRIDE, STATION_PIXEL_REPEATS = _p.take(3), _p.take(3)
STATION_POOLS = _p.take()
ISSUES = _p.take(3)  # entry that is issued in this cycle, by part, or -1
COMPLETED = _p.take()  # entry that completes in this cycle (part * MOST_ENTRIES + entry), or -1

# Load controller
LD_Q = _p.queue(MOST_ENTRIES, 2)  # fields: command, entry of the reservation station
# States of the load controller and the store controller
WAITS_FOR_COMMAND, WAITS_FOR_ROOM, SENDS_ROWS, POOLS = 0, 1, 2, 3
LD_STATE, LD_ROW, LD_SLOT = _p.take(), _p.take(), _p.take()
LD_STRIDE, LD_IDENTITY, LD_SHRINK = _p.take(3), _p.take(3), _p.take(3)
LD_BLOCK_STRIDE, LD_PIXEL_REPEATS = _p.take(3), _p.take(3)
LD_SLOTS = 2
SLOT_VALID, SLOT_ENTRY, SLOT_LEFT = 0, 1, 2
SLOT_IN_ACC, SLOT_ACCUMULATES, SLOT_WIDE, SLOT_COLUMNS, SLOT_REPEATS = 3, 4, 5, 6, 7
SLOT_BLOCK_STRIDE, SLOT_IDENTITY, SLOT_PIXELS = 8, 9, 10  # PIXELS: writes per pixel, minus 1
SLOT_FIELDS = 11
LD_SLOT_TABLE = _p.take(LD_SLOTS * SLOT_FIELDS)
# slot whose data was written in this cycle, plus 1, or 0; and the number of bytes
LD_RETURNED, LD_RETURNED_BYTES = _p.take(), _p.take()

# Zero writer and its pixel repeater
ZERO_VALID, ZERO_SLOT, ZERO_ADDRESS, ZERO_COLUMN = _p.take(), _p.take(), _p.take(), _p.take()
ZR_READY = _p.take()
ZR_VALID, ZR_SLOT, ZR_ADDRESS, ZR_LAST, ZR_PIXELS = (_p.take() for _ in range(5))

# Reader
READ_Q = _p.queue(5, 3)  # fields: slot, memory address, local row
READ_ENTRIES = 5
RD_BUSY, RD_SLOT, RD_ADDRESS, RD_ROW, RD_REQUESTED = (_p.take() for _ in range(5))
XACT_VALID, XACT_SLOT, XACT_ROW, XACT_SHIFT, XACT_BYTES, XACT_OFFSET, XACT_SIZE = range(7)
XACT_FIELDS = 7
XACTS = 16
XACT_TABLE = _p.take(XACTS * XACT_FIELDS)
# number in use; number of the transaction freed in this cycle, plus 1, or 0
XACT_COUNT, XACT_FREED = _p.take(), _p.take()
RD_TLB_VALID, RD_TLB_XACT, RD_TLB_PAGE = _p.take(), _p.take(), _p.take()
RD_OUT_VALID, RD_OUT_XACT, RD_OUT_PAGE = _p.take(), _p.take(), _p.take()

# Address translation, by client (writer, reader)
TLB_WRITER, TLB_READER = 0, 1
TLB_KNOWN, TLB_PAGE = _p.take(2), _p.take(2)  # last page of each client
TLB_ASKS, TLB_ASKED_PAGE, TLB_HIT = _p.take(2), _p.take(2), _p.take(2)
TLB_MISS = _p.take(2)  # misses of this cycle
TLB_LAST_GRANT, TLB_GRANTED = _p.take(), _p.take()

# Beat merger
MG_VALID, MG_SLOT, MG_ROW, MG_SHIFT, MG_BYTES, MG_OFFSET, MG_SIZE = (_p.take() for _ in range(7))
MG_SENT, MG_READ = _p.take(), _p.take()

# Scaler of int8 rows: input register (SI), three entries (SE), pixel repeater (PR). Register of
# int32 rows (WI)
SI_VALID, SI_SLOT, SI_ROW, SI_LAST, SI_BYTES, SI_REPEATS = (_p.take() for _ in range(6))
SE_VALID, SE_SLOT, SE_ROW, SE_LAST, SE_BYTES, SE_TAKEN, SE_DONE = range(7)
SE_FIELDS = 7
SCALER_ENTRIES = 3
SE_TABLE = _p.take(SCALER_ENTRIES * SE_FIELDS)
SE_HEAD, SE_TAIL, SE_LAST_GRANT = _p.take(), _p.take(), _p.take()
SE_UNTAKEN = _p.take()  # number of elements that no multiplier has taken yet
# number of the element that leaves the multiplier, plus 1, or 0; by cycle modulo 8
SE_PIPE = _p.take(8)
PR_READY, SI_READY, WI_READY = _p.take(), _p.take(), _p.take()
PR_VALID, PR_SLOT, PR_ROW, PR_LAST, PR_BYTES, PR_PIXELS = (_p.take() for _ in range(6))
WI_VALID, WI_SLOT, WI_ROW, WI_LAST, WI_BYTES, WI_REPEATS = (_p.take() for _ in range(6))

# Local memories
MOST_BANKS = 4
MOST_ACC_BANKS = 2
WRITES = _p.take(MOST_BANKS)  # 1 if the bank is written in this cycle
READ_READY = _p.take(MOST_BANKS)
# Reader of a bank: 0 nobody, 1 the store unit, 2 + bank the array
BANK_HOLDS, BANK_READ, BANK_NEXT = (_p.take(MOST_BANKS) for _ in range(3))
EX_PIPE, DMA_PIPE = _p.take(MOST_BANKS), _p.take(MOST_BANKS)  # bit sets of the four full stages
# 1 if the last stage is taken
EX_PIPE_READY, DMA_PIPE_READY = _p.take(MOST_BANKS), _p.take(MOST_BANKS)
EX_READS = _p.take(MOST_BANKS)  # 1 if the array requests a row in this cycle
ARRAY_WRITES, ARRAY_WRITE_BANK, ARRAY_WRITE_ROW, ARRAY_WRITE_ADDS = (_p.take() for _ in range(4))
ACC_ADDS = _p.take(MOST_ACC_BANKS)  # 1 if an accumulating write is offered in this cycle
ACC_PIPE_0, ACC_PIPE_1 = _p.take(MOST_ACC_BANKS), _p.take(MOST_ACC_BANKS)  # row plus 1, or 0
ACC_WRITTEN = _p.take(MOST_ACC_BANKS)  # row written in this cycle plus 1, or 0
ACC_HOLDS, ACC_READ, ACC_NEXT = (_p.take(MOST_ACC_BANKS) for _ in range(3))
ACC_READ_READY = _p.take(MOST_ACC_BANKS)
ACC_OUT_READY = _p.take(MOST_ACC_BANKS)
ACC_EX_READS = _p.take(MOST_ACC_BANKS)
ACC_RESPONSE_READY = _p.take(MOST_ACC_BANKS)  # 1 if the array takes a scaled row

# Store controller
ST_Q = _p.queue(MOST_ENTRIES, 2)
ST_STATE, ST_ROW, ST_BLOCK, ST_SLOT = (_p.take() for _ in range(4))
ST_STRIDE = _p.take()
ST_POOL_STRIDE, ST_POOL_SIZE, ST_POOL_OUT, ST_POOL_ROWS, ST_POOL_COLUMNS = (
    _p.take() for _ in range(5)
)
ST_IN_ROWS, ST_IN_COLUMNS, ST_UPPER_PAD, ST_LEFT_PAD = (_p.take() for _ in range(4))
ST_POOL_ROW, ST_POOL_COLUMN, ST_WINDOW_ROW, ST_WINDOW_COLUMN = (_p.take() for _ in range(4))
ST_SLOT_VALID, ST_SLOT_ENTRY, ST_SLOT_LEFT = _p.take(2), _p.take(2), _p.take(2)
ST_RETURNED = _p.take()  # slot of which a row was read in this cycle, plus 1, or 0

# Fields of the store queues
SQ_ADDRESS, SQ_ROW, SQ_BANK, SQ_KIND, SQ_BYTES, SQ_BLOCK, SQ_ENDS, SQ_SLOT = range(8)
SQ_FIELDS = 8
KIND_SCRATCHPAD, KIND_ACCUMULATOR, KIND_GARBAGE = 0, 1, 2
DISPATCH_Q = _p.queue(2, SQ_FIELDS)
NORM_Q, SCALE_Q = _p.queue(6, SQ_FIELDS), _p.queue(6, SQ_FIELDS)
ISSUE_Q = _p.queue(5, SQ_FIELDS)
DISPATCH_ENTRIES, NORM_ENTRIES, SCALE_ENTRIES, ISSUE_ENTRIES = 2, 6, 6, 5
NORM_DATA_Q = _p.queue(2, 1)  # who requested: 1 the store unit, 2 + bank the array
ACC_SCALER = _p.take(8)  # content of each stage, 0 if empty
ACC_SCALER_STAGES = 8
ACC_SCALER_ROWS = _p.take()  # number of full stages

# Writer
WR_STATE, WR_ADDRESS, WR_LENGTH, WR_SENT, WR_BEATS, WR_BEATS_LEFT = (_p.take() for _ in range(6))
WR_SHIFT, WR_TOTAL, WR_XACT = _p.take(), _p.take(), _p.take()
WR_XACTS_BUSY = _p.take()  # bit set of transactions in use
# Beats in flight; fields: page, transaction, size of the request in bytes; the last field is unused
BEAT_FIELDS = 4
WR_TLB_VALID, WR_TLB_BEAT = _p.take(), _p.take(BEAT_FIELDS)
WR_OUT_VALID, WR_OUT_BEAT = _p.take(), _p.take(BEAT_FIELDS)
WR_SHADOW_VALID, WR_SHADOW_BEAT = _p.take(), _p.take(BEAT_FIELDS)
WR_FREED = _p.take()  # bit set of the transactions that are acknowledged in this cycle

# Crossbar and port. Fields of the queues: transaction (writes 0-15, reads 16-31), size in bytes
RD_BUFFER, WR_BUFFER, PORT_BUFFER = _p.queue(2, 2), _p.queue(2, 2), _p.queue(2, 2)
BUFFER_ENTRIES = 2
XB_BEATS_LEFT, XB_MASK, XB_OWNER = _p.take(), _p.take(), _p.take()
PORT_BEATS = _p.take()
MEMORY_Q = _p.queue(64, 3)  # fields: transaction, remaining beats, earliest cycle
MEMORY_ENTRIES = 64
# fields: transaction, whether it is the last beat
D_BUFFER, RD_D_BUFFER, WR_D_BUFFER = _p.queue(2, 2), _p.queue(2, 2), _p.queue(2, 2)

# Execute controller
UN_Q = _p.queue(2, 4)  # fields: function code, rs1, rs2, station entry or -1
UN_ENTRIES = 2
UN_STATE, UN_TRANSPOSES = _p.take(), _p.take()
EX_Q = _p.queue(MOST_ENTRIES, 4)
EX_STATE, EX_PERFORMS = _p.take(), _p.take()
EX_DATAFLOW, EX_A_TRANSPOSED, EX_B_TRANSPOSED = _p.take(), _p.take(), _p.take()
EX_A_STRIDE, EX_C_STRIDE = _p.take(), _p.take()
EX_COUNTER, EX_STARTED = _p.take(3), _p.take(3)
EX_A_OFFSET = _p.take()
EX_PENDING = _p.take(2)  # station entry plus 1, or 0
EX_COMPLETES = _p.take()  # station entry that completes in this cycle, or -1
MESH_COMPLETES = _p.take()
OUTPUT_COUNTER = _p.take()
# Control queue: one entry per feeding cycle, with three fields per operand
CN_FIRST, CN_ROWS, CN_ADDRESS, CN_C_ROWS, CN_ENTRY, CN_DATAFLOW, CN_OPERANDS = range(7)
# fields of an operand; the source is a bank, or 4 + accumulator bank
CN_FIRES, CN_SOURCE, CN_NEEDS = 0, 1, 2
OPERAND_FIELDS = 3
CN_FIELDS = 7 + 3 * OPERAND_FIELDS - 1
CONTROL_Q = _p.queue(5, CN_FIELDS)
CONTROL_ENTRIES = 5

# Array
MESH_VALID, MESH_FLUSHES, MESH_ROWS, MESH_FED = (_p.take() for _ in range(4))
MESH_WRITTEN = _p.take()  # bit set of the operands that are written
MESH_ID = _p.take()
MESH_REQ_READY, MESH_REQ_FIRES = _p.take(), _p.take()
# row that leaves the array, by cycle modulo 64: 1 + 2 · product number + last, or 0
MESH_LINE = _p.take(64)
TAG_FIELDS = 4
TAG_Q = _p.queue(6, TAG_FIELDS)  # fields: address or -1, station entry or -1, rows, product number
TAGS = 6
TOTAL_Q = _p.queue(6, 2)  # fields: total rows, product number
TAG_REMOVED, TOTAL_REMOVED = _p.take(), _p.take()

STATE_WORDS = _p.used


@stage
def entry_at(s: UnitState, queue: int, entries: int, fields: int, n: int) -> int:
    """Return the position in the state of an entry of a queue.

    A position at or beyond the number of entries is valid, too. It holds what an earlier entry left
    there.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        queue: position of the queue.
        entries: capacity of the queue.
        fields: number of fields per entry.
        n: index of the entry; the oldest entry is number 0.
    """
    at = s[queue + HEAD] + n
    if at >= entries:
        at -= entries
    return queue + ENTRIES + at * fields


@stage
def remove(s: UnitState, queue: int, entries: int) -> None:
    """Remove the oldest entry of a queue.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        queue: position of the queue, which must not be empty.
        entries: capacity of the queue.
    """
    at = s[queue + HEAD] + 1
    s[queue + HEAD] = 0 if at == entries else at
    s[queue + COUNT] -= 1
    s[queue + REMOVED_AT] = s[NOW]


@stage
def new_entry(s: UnitState, queue: int, entries: int, fields: int) -> int:
    """Append an entry to a queue. The caller fills in the fields.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        queue: position of the queue, which must have room.
        entries: capacity of the queue.
        fields: number of fields per entry.

    Returns:
        Position of the entry in the state.
    """
    at = entry_at(s, queue, entries, fields, s[queue + COUNT])
    s[queue + COUNT] += 1
    return at


@stage
def has_room(s: UnitState, queue: int, entries: int) -> bool:
    """Return whether a queue had room at the beginning of the cycle.

    An entry that was removed in this cycle still counts as occupied. The test assumes that at most
    one entry is removed per cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        queue: position of the queue.
        entries: capacity of the queue.
    """
    return s[queue + COUNT] + (1 if s[queue + REMOVED_AT] == s[NOW] else 0) < entries


@stage
def has_room_pipe(s: UnitState, queue: int, entries: int) -> bool:
    """Return whether a queue has room now, counting removals in this cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        queue: position of the queue.
        entries: capacity of the queue.
    """
    return s[queue + COUNT] < entries


def blank_state() -> UnitState:
    """Return the state after reset, shape (STATE_WORDS,)."""
    s = np.zeros(STATE_WORDS, np.int64)
    for queue in (
        PORT_Q, CONV_Q, LOOP_Q, LAST_Q, LD_Q, READ_Q, ST_Q, DISPATCH_Q, NORM_Q, SCALE_Q, ISSUE_Q,
        NORM_DATA_Q, RD_BUFFER, WR_BUFFER, PORT_BUFFER, MEMORY_Q, D_BUFFER, RD_D_BUFFER,
        WR_D_BUFFER, UN_Q, EX_Q, CONTROL_Q, TAG_Q, TOTAL_Q,
    ):  # fmt: skip
        s[queue + REMOVED_AT] = -1
    s[XB_MASK] = 3
    for n in range(TAGS):
        first = TAG_Q + ENTRIES + TAG_FIELDS * n
        s[first : first + 2] = -1
    return s
