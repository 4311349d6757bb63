"""Notes the state of all units as differences, so that equal notes mean equal behaviour.

Times are noted relative to the present, commands and labels of products relative to the next one.
Queues are noted from their oldest entry. Addresses are noted apart: `repeats` compares bank,
alignment, page and overlap, which are all that the timing depends on. What is empty, or made anew
in each cycle, is left out.

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.isa import PRELOAD, is_compute, is_garbage, local_address
from tilewright.targets.gemmini.spec import MOST_ENTRIES, GemminiMachine
from tilewright.targets.gemmini.timing import state as st
from tilewright.targets.gemmini.timing.array import PRODUCTS
from tilewright.targets.gemmini.timing.execute_controller import source_of
from tilewright.targets.gemmini.timing.state import COUNT, UnitState, entry_at

SNAPSHOTS = 128
"""The last ones, among which an equal one is looked for."""
MOST_VALUES, MOST_ADDRESSES, MOST_COMMANDS = 4096, 1024, 256
MOST_RANGES = 2048
HASH, VALUES, ADDRESSES, COMMANDS, AT, NEXT, MADE, OLDEST, COUNTERS = range(9)
HEADER_WORDS = COUNTERS + 3 * st.GENERATORS
NONE_IN_FLIGHT = 1 << 60
ROW_BYTES = 64
_PRIME = 1099511628211


class Snapshots(NamedTuple):
    """Argument of compiled code: the last snapshots, in a ring, and room to compare them."""

    header: NDArray[np.int64]  # (SNAPSHOTS, HEADER_WORDS)
    values: NDArray[np.int64]  # (SNAPSHOTS, MOST_VALUES): what has to be equal
    addresses: NDArray[np.int64]  # (SNAPSHOTS, MOST_ADDRESSES)
    positions: NDArray[np.int64]  # (2, MOST_ADDRESSES), of the last one: addresses, commands
    ranges: NDArray[np.int64]  # (MOST_RANGES, 4): memory, first, last, rows a period moves it


def blank_snapshots() -> Snapshots:
    """Room for snapshots, without any."""
    return Snapshots(
        np.zeros((SNAPSHOTS, HEADER_WORDS), np.int64),
        np.empty((SNAPSHOTS, MOST_VALUES), np.int64),
        np.empty((SNAPSHOTS, MOST_ADDRESSES), np.int64),
        np.empty((2, MOST_ADDRESSES), np.int64),
        np.empty((MOST_RANGES, 4), np.int64),
    )


def _words(*spans: tuple[int, int]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(first, first + words) for first, words in spans])


_BANKS, _ACC_BANKS = st.MOST_BANKS, st.MOST_ACC_BANKS
REGISTERS = _words(
    (st.LW_CONFIGURED, 8), (st.LW_HEAD, 2), (st.LG_STATE, 2 * st.GENERATORS),
    (st.LW_IN_STATION, 3), (st.LW_SETTLED, 1),
    (st.STATION_VALID, 3), (st.SOLITARY_PRELOAD, 1),
    (st.STATION_A_STRIDE, 3), (st.STATION_BLOCK_STRIDE, 6), (st.LD_STATE, 3), (st.LD_STRIDE, 15),
    (st.XACT_COUNT, 2), (st.TLB_KNOWN, 2), (st.TLB_ASKS, 2), (st.TLB_LAST_GRANT, 1),
    (st.BANK_HOLDS, _BANKS), (st.BANK_NEXT, _BANKS), (st.EX_PIPE, 2 * _BANKS),
    (st.ACC_HOLDS, _ACC_BANKS), (st.ACC_NEXT, _ACC_BANKS), (st.ST_STATE, 5),
    (st.ACC_SCALER, st.ACC_SCALER_STAGES), (st.WR_STATE, 1), (st.WR_XACTS_BUSY, 1),
    (st.XB_BEATS_LEFT, 4), (st.UN_STATE, 2), (st.EX_STATE, 14), (st.EX_PENDING, 2),
    (st.OUTPUT_COUNTER, 1), (st.MESH_VALID, 5),
)  # fmt: skip
"""Registers that have to be equal."""


@stage
def note(p: Snapshots, at: int, value: int) -> None:
    """Note a value that has to be equal."""
    n = p.header[at, VALUES]
    p.values[at, n] = value
    p.header[at, VALUES] = n + 1
    p.header[at, HASH] = (p.header[at, HASH] ^ value) * _PRIME


@stage
def note_words(s: UnitState, p: Snapshots, at: int, first: int, end: int) -> None:
    """Note registers that follow each other."""
    for word in range(first, end):
        note(p, at, s[word])


@stage
def note_address(s: UnitState, p: Snapshots, at: int, word: int) -> None:
    """Note a register that holds an address, a row or a page."""
    n = p.header[at, ADDRESSES]
    p.addresses[at, n] = s[word]
    p.positions[0, n] = word
    p.header[at, ADDRESSES] = n + 1


@stage
def note_bytes(s: UnitState, p: Snapshots, at: int, word: int) -> None:
    """Note a register that holds an address of memory: where it lies in a request."""
    note(p, at, s[word] % ROW_BYTES)
    note_address(s, p, at, word)


@stage
def note_operand(s: UnitState, m: GemminiMachine, p: Snapshots, at: int, word: int) -> None:
    """Note a register that holds a local address, perhaps with a size above it."""
    if is_garbage(m, local_address(s[word])):
        note(p, at, s[word])
        return
    note(p, at, s[word] & ~m.address_mask)
    note(p, at, source_of(m, local_address(s[word]), 0))
    note_address(s, p, at, word)


@stage
def note_command(s: UnitState, p: Snapshots, at: int, word: int, end: int) -> None:
    """Note a register that holds the number of a command."""
    made = s[word] >= end
    base = s[st.LW_MADE] + (1 << 40) if made else s[st.NEXT_COMMAND]
    note(p, at, s[word] - base)
    if not made:
        n = p.header[at, COMMANDS]
        p.positions[1, n] = word
        p.header[at, COMMANDS] = n + 1


@stage
def take_snapshot(s: UnitState, m: GemminiMachine, p: Snapshots, at: int, end: int) -> None:
    """Note the state as a cycle begins."""
    for word in range(COUNTERS):
        p.header[at, word] = 0
    p.header[at, AT], p.header[at, NEXT] = s[st.NOW], s[st.NEXT_COMMAND]
    p.header[at, MADE], p.header[at, OLDEST] = s[st.LW_MADE], NONE_IN_FLIGHT
    for generator in range(3 * st.GENERATORS):
        p.header[at, COUNTERS + generator] = s[st.LG_I + generator]
    note(p, at, s[st.NOW] % m.cycles_per_beat)
    note(p, at, max(s[st.WAIT_UNTIL] - s[st.NOW], 0))
    for word in REGISTERS:
        note(p, at, s[word])
    if s[st.LW_CONFIGURED] + s[st.LW_CONFIGURED + 1] > 0:
        note_words(s, p, at, st.LW_LOOPS, st.LW_SETTLED)
    for queue in (st.PORT_Q, st.CONV_Q, st.LOOP_Q, st.LAST_Q):
        note(p, at, s[queue + COUNT])
        for n in range(s[queue + COUNT]):
            e = entry_at(s, queue, st.FRONT_ENTRIES, 1, n)
            note_command(s, p, at, e, end)
            p.header[at, OLDEST] = min(p.header[at, OLDEST], s[e])
    note_station(s, p, at, end)
    note_loads(s, m, p, at, end)
    note_stores(s, m, p, at, end)
    note_products(s, m, p, at)
    note_memory(s, p, at)


@stage
def note_station(s: UnitState, p: Snapshots, at: int, end: int) -> None:
    """Note the reservation station."""
    for part in range(3):
        for n in range(MOST_ENTRIES):
            if not s[st.STATION_VALID + part] >> n & 1:
                continue
            e = st.STATION + (part * MOST_ENTRIES + n) * st.RS_FIELDS
            note_command(s, p, at, e + st.RS_COMMAND, end)
            p.header[at, OLDEST] = min(p.header[at, OLDEST], s[e + st.RS_COMMAND])
            note_words(s, p, at, e + st.RS_CONFIG, e + st.RS_A)
            note_words(s, p, at, e + st.RS_WAITS, e + st.RS_FIELDS)
            for place in (e + st.RS_A, e + st.RS_B):
                note(p, at, s[place])
                note(p, at, s[place + 3])
                note_address(s, p, at, place + 1)
                note_address(s, p, at, place + 2)
        queue = st.UNISSUED + part * st.UNISSUED_WORDS
        note(p, at, s[queue + COUNT])
        for n in range(s[queue + COUNT]):
            note(p, at, s[entry_at(s, queue, MOST_ENTRIES, 1, n)])


@stage
def note_loads(s: UnitState, m: GemminiMachine, p: Snapshots, at: int, end: int) -> None:
    """Note the load controller, the reader and the way of loaded rows."""
    note(p, at, s[st.LD_Q + COUNT])
    for n in range(s[st.LD_Q + COUNT]):
        e = entry_at(s, st.LD_Q, m.load_queue, 2, n)
        note_command(s, p, at, e, end)
        note(p, at, s[e + 1])
    for n in range(st.LD_SLOTS):
        slot = st.LD_SLOT_TABLE + n * st.SLOT_FIELDS
        note(p, at, s[slot + st.SLOT_VALID])
        if s[slot + st.SLOT_VALID]:
            note_words(s, p, at, slot + st.SLOT_ENTRY, slot + st.SLOT_FIELDS)
    note(p, at, s[st.ZERO_VALID])
    if s[st.ZERO_VALID]:
        note(p, at, s[st.ZERO_SLOT])
        note(p, at, s[st.ZERO_COLUMN])
        note_address(s, p, at, st.ZERO_ADDRESS)
    note_row(s, p, at, st.ZR_VALID, st.ZR_ADDRESS, st.ZR_PIXELS + 1)
    note(p, at, s[st.READ_Q + COUNT])
    for n in range(s[st.READ_Q + COUNT]):
        e = entry_at(s, st.READ_Q, st.READ_ENTRIES, 3, n)
        note(p, at, s[e])
        note_bytes(s, p, at, e + 1)
        note_address(s, p, at, e + 2)
    note(p, at, s[st.RD_BUSY])
    if s[st.RD_BUSY]:
        note(p, at, s[st.RD_SLOT])
        note(p, at, s[st.RD_REQUESTED])
        note_bytes(s, p, at, st.RD_ADDRESS)
        note_address(s, p, at, st.RD_ROW)
    for n in range(st.XACTS):
        xact = st.XACT_TABLE + n * st.XACT_FIELDS
        note_row(s, p, at, xact, xact + st.XACT_ROW, xact + st.XACT_FIELDS)
    note_page(s, p, at, st.RD_TLB_VALID, st.RD_TLB_PAGE, st.RD_TLB_PAGE)
    note_page(s, p, at, st.RD_OUT_VALID, st.RD_OUT_PAGE, st.RD_OUT_PAGE)
    for client in range(2):
        valid = st.RD_OUT_VALID if client == st.TLB_READER else st.WR_OUT_VALID
        note(p, at, s[st.TLB_HIT + client] if s[valid] else 0)
        note_address(s, p, at, st.TLB_PAGE + client)
        note_address(s, p, at, st.TLB_ASKED_PAGE + client)
    note_row(s, p, at, st.MG_VALID, st.MG_ROW, st.MG_READ + 1)
    note_row(s, p, at, st.SI_VALID, st.SI_ROW, st.SI_REPEATS + 1)
    for n in range(st.SCALER_ENTRIES):
        entry = st.SE_TABLE + (s[st.SE_HEAD] + n) % st.SCALER_ENTRIES * st.SE_FIELDS
        note_row(s, p, at, entry, entry + st.SE_ROW, entry + st.SE_FIELDS)
    note(p, at, (s[st.SE_TAIL] - s[st.SE_HEAD]) % st.SCALER_ENTRIES)
    note_row(s, p, at, st.PR_VALID, st.PR_ROW, st.PR_PIXELS + 1)
    note_row(s, p, at, st.WI_VALID, st.WI_ROW, st.WI_REPEATS + 1)


@stage
def note_row(s: UnitState, p: Snapshots, at: int, first: int, row: int, end: int) -> None:
    """Note a place that holds a row, whose first register says whether it does."""
    note(p, at, s[first])
    if s[first]:
        note_words(s, p, at, first + 1, row)
        note_words(s, p, at, row + 1, end)
        note_address(s, p, at, row)


@stage
def note_page(s: UnitState, p: Snapshots, at: int, valid: int, page: int, end: int) -> None:
    """Note a beat on its way: what lies between its valid bit and its page, and the page."""
    note(p, at, s[valid])
    if s[valid]:
        note_words(s, p, at, valid + 1, end)
        note_address(s, p, at, page)


@stage
def note_stores(s: UnitState, m: GemminiMachine, p: Snapshots, at: int, end: int) -> None:
    """Note the store controller, the way of stored rows and the writer."""
    note(p, at, s[st.ST_Q + COUNT])
    for n in range(s[st.ST_Q + COUNT]):
        e = entry_at(s, st.ST_Q, m.store_queue, 2, n)
        note_command(s, p, at, e, end)
        note(p, at, s[e + 1])
    for n in range(2):
        note(p, at, s[st.ST_SLOT_VALID + n])
        if s[st.ST_SLOT_VALID + n]:
            note(p, at, s[st.ST_SLOT_ENTRY + n])
            note(p, at, s[st.ST_SLOT_LEFT + n])
    for queue, entries in (
        (st.DISPATCH_Q, st.DISPATCH_ENTRIES), (st.NORM_Q, st.NORM_ENTRIES),
        (st.SCALE_Q, st.SCALE_ENTRIES), (st.ISSUE_Q, st.ISSUE_ENTRIES),
    ):  # fmt: skip
        note(p, at, s[queue + COUNT])
        for n in range(s[queue + COUNT]):
            e = entry_at(s, queue, entries, st.SQ_FIELDS, n)
            note_bytes(s, p, at, e + st.SQ_ADDRESS)
            note_address(s, p, at, e + st.SQ_ROW)
            note_words(s, p, at, e + st.SQ_BANK, e + st.SQ_FIELDS)
    # The pipes see the oldest place of the issue queue even if it is empty.
    e = entry_at(s, st.ISSUE_Q, st.ISSUE_ENTRIES, st.SQ_FIELDS, 0)
    note_words(s, p, at, e + st.SQ_BANK, e + st.SQ_KIND + 1)
    note(p, at, s[st.NORM_DATA_Q + COUNT])
    for n in range(s[st.NORM_DATA_Q + COUNT]):
        note(p, at, s[entry_at(s, st.NORM_DATA_Q, 2, 1, n)])
    if s[st.WR_STATE]:
        note_bytes(s, p, at, st.WR_ADDRESS)
        note_words(s, p, at, st.WR_LENGTH, st.WR_XACTS_BUSY)
    for valid in (st.WR_TLB_VALID, st.WR_OUT_VALID, st.WR_SHADOW_VALID):
        note(p, at, s[valid])
        if s[valid]:
            note_address(s, p, at, valid + 1)
            note_words(s, p, at, valid + 2, valid + 4)
    for bank in range(st.MOST_ACC_BANKS):
        for pipe in (st.ACC_PIPE_0 + bank, st.ACC_PIPE_1 + bank):
            note(p, at, 1 if s[pipe] else 0)
            if s[pipe]:
                note_address(s, p, at, pipe)


@stage
def note_products(s: UnitState, m: GemminiMachine, p: Snapshots, at: int) -> None:
    """Note the execute controller and the array."""
    for queue, entries in ((st.UN_Q, st.UN_ENTRIES), (st.EX_Q, m.execute_queue)):
        note(p, at, s[queue + COUNT])
        for n in range(s[queue + COUNT]):
            e = entry_at(s, queue, entries, 4, n)
            note(p, at, s[e])
            note(p, at, s[e + 3])
            if s[e] == PRELOAD or is_compute(s[e]):
                note_operand(s, m, p, at, e + 1)
                note_operand(s, m, p, at, e + 2)
            else:
                note_words(s, p, at, e + 1, e + 3)
    note(p, at, s[st.CONTROL_Q + COUNT])
    for n in range(s[st.CONTROL_Q + COUNT]):
        e = entry_at(s, st.CONTROL_Q, st.CONTROL_ENTRIES, st.CN_FIELDS, n)
        note_words(s, p, at, e + st.CN_FIRST, e + st.CN_ADDRESS)
        note_operand(s, m, p, at, e + st.CN_ADDRESS)
        if not is_garbage(m, s[e + st.CN_ADDRESS]):
            note(p, at, s[e + st.CN_C_ROWS])
        note_words(s, p, at, e + st.CN_ENTRY, e + st.CN_OPERANDS)
        for operand in range(3):
            field = e + st.CN_OPERANDS + operand * st.OPERAND_FIELDS
            note(p, at, s[field + st.CN_FIRES])
            needs = s[field + st.CN_NEEDS]
            note(p, at, s[field + st.CN_SOURCE] if needs else -1)
    for cycle in range(64):
        leaving = s[st.MESH_LINE + (s[st.NOW] + cycle & 63)]
        if leaving:
            label = ((leaving - 1 >> 1) - s[st.MESH_ID]) % PRODUCTS
            note(p, at, cycle << 8 | label << 1 | (leaving - 1 & 1))
    note(p, at, s[st.TAG_Q + COUNT])
    for n in range(s[st.TAG_Q + COUNT]):
        e = entry_at(s, st.TAG_Q, st.TAGS, st.TAG_FIELDS, n)
        note_operand(s, m, p, at, e)
        note(p, at, s[e + 1])
        note(p, at, s[e + 2])
        note(p, at, (s[e + 3] - s[st.MESH_ID]) % PRODUCTS)
    note(p, at, s[st.TOTAL_Q + COUNT])
    for n in range(s[st.TOTAL_Q + COUNT]):
        e = entry_at(s, st.TOTAL_Q, st.TAGS, 2, n)
        note(p, at, s[e])
        note(p, at, (s[e + 1] - s[st.MESH_ID]) % PRODUCTS)


@stage
def note_memory(s: UnitState, p: Snapshots, at: int) -> None:
    """Note the buffers at the port and what memory owes."""
    for queue in (
        st.RD_BUFFER, st.WR_BUFFER, st.PORT_BUFFER, st.D_BUFFER, st.RD_D_BUFFER, st.WR_D_BUFFER,
    ):  # fmt: skip
        note(p, at, s[queue + COUNT])
        for n in range(s[queue + COUNT]):
            e = entry_at(s, queue, st.BUFFER_ENTRIES, 2, n)
            note_words(s, p, at, e, e + 2)
    note(p, at, s[st.MEMORY_Q + COUNT])
    for n in range(s[st.MEMORY_Q + COUNT]):
        e = entry_at(s, st.MEMORY_Q, st.MEMORY_ENTRIES, 3, n)
        note_words(s, p, at, e, e + 2)
        note(p, at, max(s[e + 2] - s[st.NOW], 0))
