"""Simulates the read ports of the banks: an output register each, pipelines of four stages.

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
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
    BANK_HOLDS,
    BANK_NEXT,
    BANK_READ,
    DMA_PIPE,
    DMA_PIPE_READY,
    EX_PIPE,
    EX_PIPE_READY,
    MOST_ACC_BANKS,
    MOST_BANKS,
    READ_READY,
    WRITES,
    UnitState,
)

FROM_STORE = 1
FROM_ARRAY = 2
STAGES = 4
LAST_STAGE = 1 << (STAGES - 1)


@stage
def latch_reads(s: UnitState) -> None:
    """Begin a cycle: what was read in the last one comes out of the banks."""
    for bank in range(MOST_BANKS):
        s[BANK_READ + bank] = s[BANK_NEXT + bank]
        s[BANK_NEXT + bank] = 0
    for bank in range(MOST_ACC_BANKS):
        s[ACC_READ + bank] = s[ACC_NEXT + bank]
        s[ACC_NEXT + bank] = 0


@stage
def stage_mask(stages: int, taken: int) -> int:
    """The stages of a pipeline that are free in the next cycle, before they are filled."""
    stalls = stages & LAST_STAGE != 0 and not taken
    if not stalls:
        return (1 << STAGES) - 1
    # From the last stage back, all full ones stall up to the first empty one.
    free, stage = 0, LAST_STAGE >> 1
    while stage and stages & stage:
        stage >>= 1
    while stage:
        free |= stage
        stage >>= 1
    return free


@stage
def moved(stages: int, free: int, enters: bool) -> int:
    """A pipeline's stages in the next cycle."""
    stalled = stages & ~free
    moving = stages & free
    return stalled | ((moving << 1) & ((1 << STAGES) - 1)) | (1 if enters else 0)


@stage
def drain_banks(s: UnitState) -> None:
    """Move rows from the banks into the two pipelines, and say which banks can be read."""
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
    """Whether a scratchpad bank can be read in this cycle: it has one port."""
    return s[READ_READY + bank] == 1 and s[WRITES + bank] == 0


@stage
def accumulator_output(s: UnitState, bank: int) -> int:
    """The reader that gets the row at a bank's output; 0 without a row."""
    return s[ACC_HOLDS + bank] if s[ACC_HOLDS + bank] else s[ACC_READ + bank]


@stage
def accumulator_ready(s: UnitState, bank: int, row: int) -> bool:
    """Whether a row can be read: no addition uses the port, and no write to it is under way."""
    return (
        s[ACC_READ_READY + bank] == 1
        and s[ACC_ADDS + bank] == 0
        and s[ACC_PIPE_0 + bank] != 1 + row
        and s[ACC_PIPE_1 + bank] != 1 + row
    )


@stage
def move_writes(s: UnitState) -> None:
    """End a cycle: accumulator writes move on to the adder and to the bank."""
    for bank in range(MOST_ACC_BANKS):
        s[ACC_PIPE_1 + bank] = s[ACC_PIPE_0 + bank]
        s[ACC_PIPE_0 + bank] = s[ACC_WRITTEN + bank]
