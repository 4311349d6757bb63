"""Simulates the way of loaded data: beats are merged into rows, rows scaled, zeros made.

BeatMerger.scala, VectorScalarMultiplier.scala, PixelRepeater.scala and ZeroWriter.scala.

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.spec import BUS_BYTES, DIM
from tilewright.targets.gemmini.timing.local_writes import slot_field
from tilewright.targets.gemmini.timing.reader import ROW_MASK
from tilewright.targets.gemmini.timing.state import (
    BUFFER_ENTRIES,
    COUNT,
    MG_BYTES,
    MG_OFFSET,
    MG_READ,
    MG_ROW,
    MG_SENT,
    MG_SHIFT,
    MG_SIZE,
    MG_SLOT,
    MG_VALID,
    NOW,
    PR_BYTES,
    PR_LAST,
    PR_PIXELS,
    PR_READY,
    PR_ROW,
    PR_SLOT,
    PR_VALID,
    RD_D_BUFFER,
    SCALER_ENTRIES,
    SE_BYTES,
    SE_DONE,
    SE_FIELDS,
    SE_HEAD,
    SE_LAST,
    SE_LAST_GRANT,
    SE_PIPE,
    SE_ROW,
    SE_SLOT,
    SE_TABLE,
    SE_TAIL,
    SE_TAKEN,
    SE_UNTAKEN,
    SE_VALID,
    SI_BYTES,
    SI_LAST,
    SI_READY,
    SI_REPEATS,
    SI_ROW,
    SI_SLOT,
    SI_VALID,
    SLOT_BLOCK_STRIDE,
    SLOT_COLUMNS,
    SLOT_IDENTITY,
    SLOT_PIXELS,
    SLOT_REPEATS,
    SLOT_WIDE,
    WI_BYTES,
    WI_LAST,
    WI_READY,
    WI_REPEATS,
    WI_ROW,
    WI_SLOT,
    WI_VALID,
    XACT_BYTES,
    XACT_FIELDS,
    XACT_FREED,
    XACT_OFFSET,
    XACT_ROW,
    XACT_SHIFT,
    XACT_SIZE,
    XACT_SLOT,
    XACT_TABLE,
    XACTS,
    ZERO_ADDRESS,
    ZERO_COLUMN,
    ZERO_SLOT,
    ZERO_VALID,
    ZR_ADDRESS,
    ZR_LAST,
    ZR_PIXELS,
    ZR_READY,
    ZR_SLOT,
    ZR_VALID,
    UnitState,
    entry_at,
    remove,
)

ALL_ELEMENTS = 15
"""The four elements of a row that go through one multiplier, as a bit set."""
LANE_ELEMENTS = 4
LANE_INPUTS = SCALER_ENTRIES * LANE_ELEMENTS
MULTIPLIER_CYCLES = 5


@stage
def step_scaler(s: UnitState) -> None:
    """One cycle of the scaler, from its results back to its input register."""
    head = SE_TABLE + s[SE_HEAD] * SE_FIELDS
    tail = SE_TABLE + s[SE_TAIL] * SE_FIELDS
    accepts = s[SI_VALID] == 1 and s[tail + SE_VALID] == 0
    finished = s[head + SE_VALID] == 1 and s[head + SE_DONE] == ALL_ELEMENTS
    multiply_row(s)
    if finished and s[PR_READY]:
        s[PR_VALID], s[PR_SLOT], s[PR_LAST] = 1, s[head + SE_SLOT], s[head + SE_LAST]
        s[PR_ROW], s[PR_BYTES] = s[head + SE_ROW], s[head + SE_BYTES]
        s[PR_PIXELS] = slot_field(s, s[head + SE_SLOT], SLOT_PIXELS)
        s[head + SE_VALID] = 0
        s[SE_HEAD] = (s[SE_HEAD] + 1) % SCALER_ENTRIES
    s[SI_READY] = 1 if s[SI_VALID] == 0 or (accepts and s[SI_REPEATS] == 0) else 0
    if accepts:
        s[tail + SE_VALID], s[tail + SE_SLOT] = 1, s[SI_SLOT]
        s[tail + SE_ROW] = (s[SI_ROW] + s[SI_REPEATS]) & ROW_MASK
        s[tail + SE_LAST] = 1 if s[SI_LAST] and s[SI_REPEATS] == 0 else 0
        s[tail + SE_BYTES] = s[SI_BYTES]
        done = ALL_ELEMENTS if slot_field(s, s[SI_SLOT], SLOT_IDENTITY) else 0
        s[tail + SE_TAKEN], s[tail + SE_DONE] = done, done
        s[SE_UNTAKEN] += 0 if done else LANE_ELEMENTS
        s[SE_TAIL] = (s[SE_TAIL] + 1) % SCALER_ENTRIES
        if s[SI_REPEATS] == 0:
            s[SI_VALID] = 0
        else:
            s[SI_REPEATS] -= 1


@stage
def multiply_row(s: UnitState) -> None:
    """One cycle of a multiplier; the four do the same at the same time.

    Elements are taken in turn from the three entries, beginning after the last one taken.
    """
    for step in range(1, LANE_INPUTS + 1 if s[SE_UNTAKEN] > 0 else 1):
        n = (s[SE_LAST_GRANT] + step) % LANE_INPUTS
        entry = SE_TABLE + (n // LANE_ELEMENTS) * SE_FIELDS
        bit = 1 << (n % LANE_ELEMENTS)
        if s[entry + SE_VALID] and not s[entry + SE_TAKEN] & bit:
            s[entry + SE_TAKEN] |= bit
            s[SE_UNTAKEN] -= 1
            s[SE_LAST_GRANT] = n
            s[SE_PIPE + ((s[NOW] + MULTIPLIER_CYCLES) & 7)] = 1 + n
            break
    leaving = s[SE_PIPE + (s[NOW] & 7)]
    if leaving:
        s[SE_PIPE + (s[NOW] & 7)] = 0
        entry = SE_TABLE + ((leaving - 1) // LANE_ELEMENTS) * SE_FIELDS
        s[entry + SE_DONE] |= 1 << ((leaving - 1) % LANE_ELEMENTS)


@stage
def step_merger(s: UnitState) -> None:
    """One cycle: a row out, a beat in."""
    valid, n_bytes = s[MG_VALID] == 1, s[MG_BYTES]
    length, read, sent = 1 << s[MG_SIZE], s[MG_READ], s[MG_SENT]
    next_ready = not valid
    if valid:
        wide = slot_field(s, s[MG_SLOT], SLOT_WIDE) == 1
        row_bytes = 4 * DIM if wide else DIM
        useful = min(max(read - s[MG_SHIFT], 0), n_bytes)
        if read == length and sent == n_bytes:
            s[MG_VALID] = 0
        ready = s[WI_READY] if wide else s[SI_READY]
        if ready and useful > sent and (useful - sent >= row_bytes or useful == n_bytes):
            offset = s[MG_OFFSET] if sent == 0 else 0
            after = min(sent + row_bytes - offset, n_bytes)
            hand_on(s, wide, row_bytes, after == n_bytes)
            s[MG_SENT] = after
            if after == n_bytes and read == length:
                s[MG_VALID] = 0
                next_ready = True
    if s[RD_D_BUFFER + COUNT] == 0 or not (next_ready or (valid and read != length)):
        return
    at = entry_at(s, RD_D_BUFFER, BUFFER_ENTRIES, 2, 0)
    number = s[at] - XACTS
    if s[at + 1]:
        s[XACT_FREED] = 1 + number
    remove(s, RD_D_BUFFER, BUFFER_ENTRIES)
    if next_ready:
        xact = XACT_TABLE + number * XACT_FIELDS
        s[MG_VALID], s[MG_SLOT], s[MG_ROW] = 1, s[xact + XACT_SLOT], s[xact + XACT_ROW]
        s[MG_SHIFT], s[MG_BYTES] = s[xact + XACT_SHIFT], s[xact + XACT_BYTES]
        s[MG_OFFSET], s[MG_SIZE] = s[xact + XACT_OFFSET], s[xact + XACT_SIZE]
        s[MG_SENT] = 0
        s[MG_READ] = min(BUS_BYTES, 1 << s[MG_SIZE])
        return
    if sent == n_bytes and length - read <= BUS_BYTES:
        s[MG_VALID] = 0
    s[MG_READ] = min(read + BUS_BYTES, length)


@stage
def hand_on(s: UnitState, wide: bool, row_bytes: int, last: bool) -> None:
    """A merged row to the scaler's input register or to that of int32 rows."""
    slot = s[MG_SLOT]
    block = (s[MG_OFFSET] + s[MG_SENT]) // row_bytes
    row = (s[MG_ROW] + slot_field(s, slot, SLOT_BLOCK_STRIDE) * block) & ROW_MASK
    repeats = slot_field(s, slot, SLOT_REPEATS)
    if wide:
        s[WI_VALID], s[WI_SLOT], s[WI_ROW], s[WI_BYTES] = 1, slot, row, s[MG_BYTES]
        s[WI_LAST], s[WI_REPEATS] = 1 if last else 0, repeats
    else:
        s[SI_VALID], s[SI_SLOT], s[SI_ROW], s[SI_BYTES] = 1, slot, row, s[MG_BYTES]
        s[SI_LAST], s[SI_REPEATS] = 1 if last else 0, repeats


@stage
def step_zeros(s: UnitState) -> bool:
    """One cycle of the zero writer; whether it takes another row."""
    if s[ZERO_VALID] == 0:
        return True
    if s[ZR_READY] == 0:
        return False
    slot = s[ZERO_SLOT]
    n_columns, column = slot_field(s, slot, SLOT_COLUMNS), s[ZERO_COLUMN]
    offset = slot_field(s, slot, SLOT_BLOCK_STRIDE) * (column // DIM)
    s[ZR_VALID], s[ZR_SLOT], s[ZR_PIXELS] = 1, slot, slot_field(s, slot, SLOT_PIXELS)
    s[ZR_ADDRESS] = (s[ZERO_ADDRESS] + offset) & ROW_MASK
    s[ZR_LAST] = 1 if column + DIM >= n_columns else 0
    s[ZERO_COLUMN] = column + DIM
    if s[ZR_LAST]:
        s[ZERO_VALID] = 0
        return True
    return False
