"""Timing of the banks of the scratchpad and the accumulator: read ports and write arbitration.

A row that is read first enters the output register of its bank. A row of the scratchpad then passes
through one of two pipelines of four stages: one leads to the array, the other to the store unit.
Writes follow Scratchpad.scala: results of the array have priority over loaded rows, and loaded rows
over rows of zeros. An accumulating write waits while the same row is in the adder.

`s` is the state of all units, shape (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import GemminiMachine
from tilewright.targets.gemmini.timing.dma import ROW_MASK
from tilewright.targets.gemmini.timing.state import (
    ACC_ADDS,
    ACC_HOLDS,
    ACC_NEXT,
    ACC_OUT_READY,
    ACC_PIPE_0,
    ACC_PIPE_1,
    ACC_READ,
    ACC_READ_READY,
    ACC_WRITTEN,
    ARRAY_WRITE_ADDS,
    ARRAY_WRITE_BANK,
    ARRAY_WRITE_ROW,
    ARRAY_WRITES,
    BANK_HOLDS,
    BANK_NEXT,
    BANK_READ,
    DMA_PIPE,
    DMA_PIPE_READY,
    EX_PIPE,
    EX_PIPE_READY,
    LD_RETURNED,
    LD_RETURNED_BYTES,
    LD_SLOT_TABLE,
    MOST_ACC_BANKS,
    MOST_BANKS,
    PR_BYTES,
    PR_LAST,
    PR_PIXELS,
    PR_READY,
    PR_ROW,
    PR_SLOT,
    PR_VALID,
    READ_READY,
    SLOT_ACCUMULATES,
    SLOT_COLUMNS,
    SLOT_FIELDS,
    SLOT_IN_ACC,
    WI_BYTES,
    WI_LAST,
    WI_READY,
    WI_REPEATS,
    WI_ROW,
    WI_SLOT,
    WI_VALID,
    WRITES,
    ZR_ADDRESS,
    ZR_LAST,
    ZR_PIXELS,
    ZR_READY,
    ZR_SLOT,
    ZR_VALID,
    UnitState,
)

# Who reads a bank: the store unit, or the array (FROM_ARRAY plus the array's bank number).
FROM_STORE = 1
FROM_ARRAY = 2
# Stages of the pipeline between a scratchpad bank and its reader, after the cycle of the bank
# itself.
STAGES = 4
LAST_STAGE = 1 << (STAGES - 1)
NO_WRITE, TO_SCRATCHPAD, TO_ACCUMULATOR = 0, 1, 2


@stage
def latch_reads(s: UnitState) -> None:
    """Begin a cycle: move the rows that were read in the previous cycle to the banks' outputs.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    for bank in range(MOST_BANKS):
        s[BANK_READ + bank] = s[BANK_NEXT + bank]
        s[BANK_NEXT + bank] = 0
    for bank in range(MOST_ACC_BANKS):
        s[ACC_READ + bank] = s[ACC_NEXT + bank]
        s[ACC_NEXT + bank] = 0


@stage
def stage_mask(stages: int, taken: int) -> int:
    """Return a bit mask of the pipeline stages that can accept a row in the next cycle.

    If the row in the last stage is not taken, it and all full stages directly behind it stall. All
    other stages can accept a row.

    Args:
        stages: bit mask of the occupied stages. Bit 0 is the first stage.
        taken: whether the row in the last stage is taken.
    """
    stalls = stages & LAST_STAGE != 0 and not taken
    if not stalls:
        return (1 << STAGES) - 1
    # Full stages stall, from the last stage back to the first empty one.
    free, stage = 0, LAST_STAGE >> 1
    while stage and stages & stage:
        stage >>= 1
    while stage:
        free |= stage
        stage >>= 1
    return free


@stage
def moved(stages: int, free: int, enters: bool) -> int:
    """Advance the rows in a pipeline by one stage, as far as they can move.

    Args:
        stages: bit mask of the stages that hold a row. Bit 0 is the first stage.
        free: bit mask of the stages whose row can move on, from `stage_mask`.
        enters: whether a new row enters the first stage.

    Returns:
        Bit mask of the stages that hold a row in the next cycle.
    """
    stalled = stages & ~free
    moving = stages & free
    return stalled | ((moving << 1) & ((1 << STAGES) - 1)) | (1 if enters else 0)


@stage
def drain_banks(s: UnitState) -> None:
    """Move rows from the banks' outputs into the pipelines, and record which banks can be read.

    A bank can be read if its output register is free.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    for bank in range(MOST_BANKS):
        holds, read = s[BANK_HOLDS + bank], s[BANK_READ + bank]
        ex, dma = s[EX_PIPE + bank], s[DMA_PIPE + bank]
        if holds + read + ex + dma == 0:
            s[READ_READY + bank] = 1
            continue
        ex_free = stage_mask(ex, s[EX_PIPE_READY + bank])
        dma_free = stage_mask(dma, s[DMA_PIPE_READY + bank])
        out = holds if holds else read
        ex_enters = out >= FROM_ARRAY and ex_free & 1 != 0
        dma_enters = out == FROM_STORE and dma_free & 1 != 0
        s[EX_PIPE + bank] = moved(ex, ex_free, ex_enters)
        s[DMA_PIPE + bank] = moved(dma, dma_free, dma_enters)
        if ex_enters or dma_enters:
            s[BANK_HOLDS + bank] = read if holds else 0
        else:
            s[BANK_HOLDS + bank] = out
        s[READ_READY + bank] = 1 if s[BANK_HOLDS + bank] == 0 else 0
    for bank in range(MOST_ACC_BANKS):
        holds, read = s[ACC_HOLDS + bank], s[ACC_READ + bank]
        if s[ACC_OUT_READY + bank]:
            s[ACC_HOLDS + bank] = read if holds else 0
        else:
            s[ACC_HOLDS + bank] = holds if holds else read
        s[ACC_READ_READY + bank] = 1 if s[ACC_HOLDS + bank] == 0 else 0


@stage
def bank_ready(s: UnitState, bank: int) -> bool:
    """Return whether a scratchpad bank can be read in this cycle.

    A bank has a single port, so it cannot be read in a cycle in which it is written.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        bank: number of the bank.
    """
    return s[READ_READY + bank] == 1 and s[WRITES + bank] == 0


@stage
def accumulator_output(s: UnitState, bank: int) -> int:
    """Return which unit the row at the output of an accumulator bank is for.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        bank: number of the bank.

    Returns:
        `FROM_STORE`, or `FROM_ARRAY` plus a bank number; 0 if there is no row.
    """
    return s[ACC_HOLDS + bank] if s[ACC_HOLDS + bank] else s[ACC_READ + bank]


@stage
def accumulator_ready(s: UnitState, bank: int, row: int) -> bool:
    """Return whether an accumulator row can be read in this cycle.

    The output register of its bank must be free, the bank's read port must not be used by an
    accumulating write, and no write to the row may be in progress.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        bank: number of the bank.
        row: row within the bank.
    """
    return (
        s[ACC_READ_READY + bank] == 1
        and s[ACC_ADDS + bank] == 0
        and s[ACC_PIPE_0 + bank] != 1 + row
        and s[ACC_PIPE_1 + bank] != 1 + row
    )


@stage
def move_writes(s: UnitState) -> None:
    """End a cycle: move accumulator writes to the next stage, the adder or the bank.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    for bank in range(MOST_ACC_BANKS):
        s[ACC_PIPE_1 + bank] = s[ACC_PIPE_0 + bank]
        s[ACC_PIPE_0 + bank] = s[ACC_WRITTEN + bank]


@stage
def slot_field(s: UnitState, slot: int, field: int) -> int:
    """Return a field of one of the two commands that the load controller is working on.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        slot: which of the two commands, 0 or 1.
        field: index of the field, for example `SLOT_IN_ACC`.
    """
    return s[LD_SLOT_TABLE + slot * SLOT_FIELDS + field]


@stage
def underflows(m: GemminiMachine, row: int, pixels: int) -> bool:
    """Return whether a repeated pixel would lie before the start of its half of the scratchpad.

    An MVIN can write a pixel repeatedly, to the rows before its own row. The hardware does not
    write repetitions outside the half.

    Args:
        m: the machine.
        row: scratchpad row of the pixel itself.
        pixels: number of rows before `row` at which the repetition lies.
    """
    middle = m.scratchpad_rows // 2
    return row < (0 if row < middle else middle) + pixels


@stage
def write_local(s: UnitState, m: GemminiMachine) -> None:
    """Decide which rows are written to the local memories in this cycle.

    Results of the array have priority. Loaded rows and rows of zeros wait in registers in front of
    the banks; a row that is written leaves its register.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    for bank in range(MOST_BANKS):
        s[WRITES + bank] = 0
    for bank in range(MOST_ACC_BANKS):
        s[ACC_ADDS + bank] = 0
        s[ACC_WRITTEN + bank] = 0
    if s[ARRAY_WRITES] == TO_SCRATCHPAD:
        s[WRITES + s[ARRAY_WRITE_BANK]] = 1
    elif s[ARRAY_WRITES] == TO_ACCUMULATOR:
        offer(s, s[ARRAY_WRITE_BANK], s[ARRAY_WRITE_ROW], s[ARRAY_WRITE_ADDS])
    s[PR_READY] = 1 if s[PR_VALID] == 0 else 0
    s[WI_READY] = 1 if s[WI_VALID] == 0 else 0
    s[ZR_READY] = 1 if s[ZR_VALID] == 0 else 0
    if s[PR_VALID] + s[WI_VALID] + s[ZR_VALID] > 0:
        write_loaded(s, m)


@stage
def offer(s: UnitState, bank: int, row: int, adds: int) -> bool:
    """Start the write of a row to an accumulator bank, if it is possible in this cycle.

    An accumulating write must wait while an earlier write to the same row is in the adder.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        bank: number of the accumulator bank.
        row: row within the bank.
        adds: 1 if the row is added to the stored row, 0 if it replaces the stored row.

    Returns:
        Whether the row is written in this cycle.
    """
    if adds:
        s[ACC_ADDS + bank] = 1
        if s[ACC_PIPE_0 + bank] == 1 + row or s[ACC_PIPE_1 + bank] == 1 + row:
            return False
    s[ACC_WRITTEN + bank] = 1 + row
    return True


@stage
def write_loaded(s: UnitState, m: GemminiMachine) -> None:
    """Write loaded rows and rows of zeros to the banks that the array does not write to.

    There are three candidates, each in its own register: a loaded int8 row, a loaded int32 row and
    a row of zeros.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    row, pixels = s[PR_ROW], s[PR_PIXELS]
    narrow = s[PR_VALID] == 1 and not underflows(m, row, pixels)
    narrow_last = narrow and s[PR_LAST] == 1 and pixels == 0
    narrow_to_acc = narrow and slot_field(s, s[PR_SLOT], SLOT_IN_ACC) == 1
    wide = s[WI_VALID] == 1
    wide_last = wide and s[WI_LAST] == 1 and s[WI_REPEATS] == 0
    blocked = narrow_last and not narrow_to_acc
    zero_row = s[ZR_ADDRESS]
    zero = s[ZR_VALID] == 1
    zero_to_acc = zero and slot_field(s, s[ZR_SLOT], SLOT_IN_ACC) == 1
    if zero and not zero_to_acc and underflows(m, zero_row, s[ZR_PIXELS]):
        zero = False
    zero_wins = zero and not narrow_last and not wide_last
    narrow_done = wide_done = zero_done = False
    if narrow and not narrow_to_acc:
        bank = ((row - pixels) & (m.scratchpad_rows - 1)) >> m.scratchpad_bank_bits
        if s[WRITES + bank] == 0:
            s[WRITES + bank] = 1
            narrow_done = True
    if zero_wins and not zero_to_acc:
        bank = ((zero_row - s[ZR_PIXELS]) & (m.scratchpad_rows - 1)) >> m.scratchpad_bank_bits
        if s[WRITES + bank] == 0:
            s[WRITES + bank] = 1
            zero_done = True
    taken = s[ARRAY_WRITE_BANK] if s[ARRAY_WRITES] == TO_ACCUMULATOR else -1
    loaded_bank, loaded_row, loaded_adds = -1, 0, 0
    if narrow_to_acc:
        at = (row - pixels) & (m.accumulator_rows - 1)
        loaded_adds = slot_field(s, s[PR_SLOT], SLOT_ACCUMULATES)
        loaded_bank, loaded_row = at >> m.accumulator_bank_bits, at & (m.accumulator_bank_rows - 1)
    elif wide:
        at = (s[WI_ROW] + s[WI_REPEATS]) & ROW_MASK & (m.accumulator_rows - 1)
        loaded_adds = slot_field(s, s[WI_SLOT], SLOT_ACCUMULATES)
        loaded_bank, loaded_row = at >> m.accumulator_bank_bits, at & (m.accumulator_bank_rows - 1)
    if loaded_bank >= 0 and loaded_bank != taken and not blocked:
        written = offer(s, loaded_bank, loaded_row, loaded_adds)
        narrow_done = narrow_done or (written and narrow_to_acc)
        wide_done = written and not narrow_to_acc
    if zero_wins and zero_to_acc and not blocked:
        at = zero_row & (m.accumulator_rows - 1)
        bank, at = at >> m.accumulator_bank_bits, at & (m.accumulator_bank_rows - 1)
        if bank != taken and bank != loaded_bank:
            adds = slot_field(s, s[ZR_SLOT], SLOT_ACCUMULATES)
            if loaded_bank >= 0:
                # The address and the kind of write are those of the loaded row.
                at, adds = loaded_row, loaded_adds
            zero_done = offer(s, bank, at, adds)
    empty_narrow(s, narrow, narrow_done, narrow_last)
    if wide_done:
        empty_wide(s, wide_last)
    empty_zero(s, zero, zero_done)


@stage
def empty_narrow(s: UnitState, valid: bool, done: bool, last: bool) -> None:
    """Update the register that holds a loaded int8 row, at the end of a cycle.

    The row leaves the register after the last repetition of its pixel; until then, the number of
    remaining repetitions decreases. The last write of a request is reported to the load controller.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        valid: whether the row must be written; a row outside its half of the scratchpad is skipped.
        done: whether the row was written in this cycle.
        last: whether this is the last write of the request.
    """
    if not s[PR_VALID] or (valid and not done):
        return
    if done and last:
        s[LD_RETURNED], s[LD_RETURNED_BYTES] = 1 + s[PR_SLOT], s[PR_BYTES]
    if s[PR_PIXELS] == 0:
        s[PR_VALID] = 0
        s[PR_READY] = 1 if done else 0
    else:
        s[PR_PIXELS] -= 1


@stage
def empty_wide(s: UnitState, last: bool) -> None:
    """Update the register that holds a loaded int32 row, after the row was written to its bank.

    The row leaves the register after its last repetition; until then, the number of remaining
    repetitions decreases. The last write of a request is reported to the load controller.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        last: whether this is the last write of the request.
    """
    if last:
        s[LD_RETURNED], s[LD_RETURNED_BYTES] = 1 + s[WI_SLOT], s[WI_BYTES]
    if s[WI_REPEATS] == 0:
        s[WI_VALID] = 0
        s[WI_READY] = 1
    else:
        s[WI_REPEATS] -= 1


@stage
def empty_zero(s: UnitState, valid: bool, done: bool) -> None:
    """Update the register that holds a row of zeros, at the end of a cycle.

    The row leaves the register after the last repetition of its pixel; until then, the number of
    remaining repetitions decreases. The last write for a row of the MVIN is reported to the load
    controller.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        valid: whether the row must be written; a row outside its half of the scratchpad is skipped.
        done: whether the row was written in this cycle.
    """
    if not s[ZR_VALID] or (valid and not done):
        return
    if done and s[ZR_LAST] and s[ZR_PIXELS] == 0:
        n_bytes = slot_field(s, s[ZR_SLOT], SLOT_COLUMNS)
        if slot_field(s, s[ZR_SLOT], SLOT_IN_ACC):
            n_bytes *= 4
        s[LD_RETURNED], s[LD_RETURNED_BYTES] = 1 + s[ZR_SLOT], n_bytes
    if s[ZR_PIXELS] == 0:
        s[ZR_VALID] = 0
        s[ZR_READY] = 1 if done else 0
    else:
        s[ZR_PIXELS] -= 1
