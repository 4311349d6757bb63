"""Timing of the systolic array: rows enter in order and leave after a fixed time.

Blocks of operands are fed into the array row by row. Up to six products of blocks can be in
progress. Each product has a tag, which holds the local address for its result and the reservation
station entry that completes with it. The source is MeshWithDelays.scala.

`s` is the state of all units, shape (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.isa import OUTPUT_STATIONARY, in_accumulator, is_garbage
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import DIM, GemminiMachine
from tilewright.targets.gemmini.timing.local_memory import (
    FROM_ARRAY,
    LAST_STAGE,
    NO_WRITE,
    TO_ACCUMULATOR,
    TO_SCRATCHPAD,
)
from tilewright.targets.gemmini.timing.state import (
    ACC_RESPONSE_READY,
    ACC_SCALER,
    ACC_SCALER_STAGES,
    ARRAY_WRITE_ADDS,
    ARRAY_WRITE_BANK,
    ARRAY_WRITE_ROW,
    ARRAY_WRITES,
    CN_ADDRESS,
    CN_C_ROWS,
    CN_DATAFLOW,
    CN_ENTRY,
    CN_FIELDS,
    CN_FIRES,
    CN_FIRST,
    CN_NEEDS,
    CN_OPERANDS,
    CN_ROWS,
    CN_SOURCE,
    CONTROL_ENTRIES,
    CONTROL_Q,
    COUNT,
    ENTRIES,
    EX_C_STRIDE,
    EX_DATAFLOW,
    EX_PIPE,
    EX_PIPE_READY,
    EX_STATE,
    MESH_COMPLETES,
    MESH_FED,
    MESH_FLUSHES,
    MESH_ID,
    MESH_LINE,
    MESH_REQ_FIRES,
    MESH_REQ_READY,
    MESH_ROWS,
    MESH_VALID,
    MESH_WRITTEN,
    MOST_ACC_BANKS,
    MOST_BANKS,
    NOW,
    OPERAND_FIELDS,
    OUTPUT_COUNTER,
    TAG_FIELDS,
    TAG_Q,
    TAG_REMOVED,
    TAGS,
    TOTAL_Q,
    TOTAL_REMOVED,
    UnitState,
    entry_at,
    new_entry,
    remove,
)

FLUSH_STATE = 2
OPERANDS = 3
ALL_OPERANDS = 7
# Products in the array have numbers modulo 5.
PRODUCTS = 5
# A power of two above ARRAY_CYCLES, so that a cycle can be reduced to an index by a mask.
LINE = 64
ARRAY_CYCLES = 2 * DIM
"""Latency of the array in cycles, from the entry of a row to its result."""
TAG_ADDRESS, TAG_ENTRY, TAG_ROWS, TAG_ID = 0, 1, 2, 3
NO_TAG = -1


@stage
def step_results(s: UnitState, m: GemminiMachine) -> None:
    """Process the row that leaves the array in this cycle, if any.

    The row is offered for writing. If it is the last row of its product, the tag is marked for
    removal and the product's command completes.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    s[ARRAY_WRITES] = NO_WRITE
    s[MESH_COMPLETES] = -1
    s[TAG_REMOVED] = 0
    s[TOTAL_REMOVED] = 0
    leaving = s[MESH_LINE + (s[NOW] & (LINE - 1))]
    if leaving == 0:
        return
    s[MESH_LINE + (s[NOW] & (LINE - 1))] = 0
    number, last = (leaving - 1) >> 1, (leaving - 1) & 1
    total = DIM
    if s[TOTAL_Q + COUNT] > 0:
        at = entry_at(s, TOTAL_Q, TAGS, 2, 0)
        if s[at + 1] == number:
            total = s[at]
            s[TOTAL_REMOVED] = last
    if s[TAG_Q + COUNT] == 0:
        return
    tag = entry_at(s, TAG_Q, TAGS, TAG_FIELDS, 0)
    if s[tag + TAG_ID] != number:
        return
    s[TAG_REMOVED] = last
    if s[tag + TAG_ENTRY] == NO_TAG:
        return
    counter = s[OUTPUT_COUNTER]
    s[OUTPUT_COUNTER] = 0 if counter + 1 >= total else counter + 1
    if last:
        s[MESH_COMPLETES] = s[tag + TAG_ENTRY]
    row, offset = counter, counter * s[EX_C_STRIDE]
    if s[EX_DATAFLOW] == OUTPUT_STATIONARY:
        row, offset = total - 1 - counter, total - 1 - offset
    if row < s[tag + TAG_ROWS] and not is_garbage(m, s[tag + TAG_ADDRESS]):
        write_row(s, m, s[tag + TAG_ADDRESS], offset)


@stage
def write_row(s: UnitState, m: GemminiMachine, address: int, offset: int) -> None:
    """Request that a row of a result is written to its bank in this cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        address: local address of the result.
        offset: number of the row within the result.
    """
    at = (address + offset) & m.address_mask
    if in_accumulator(address):
        at &= m.accumulator_rows - 1
        s[ARRAY_WRITES] = TO_ACCUMULATOR
        s[ARRAY_WRITE_BANK] = at >> m.accumulator_bank_bits
        s[ARRAY_WRITE_ROW] = at & (m.accumulator_bank_rows - 1)
        s[ARRAY_WRITE_ADDS] = (address >> 30) & 1
    else:
        at &= m.scratchpad_rows - 1
        s[ARRAY_WRITES] = TO_SCRATCHPAD
        s[ARRAY_WRITE_BANK] = at >> m.scratchpad_bank_bits


@stage
def has_data(s: UnitState, control: int, operand: int) -> bool:
    """Return whether the row that an operand needs has arrived from its bank.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        control: position of the entry of the control queue that needs the row.
        operand: the operand: 0 for A, 1 for B, 2 for D.
    """
    field = control + CN_OPERANDS + operand * OPERAND_FIELDS
    if not s[field + CN_NEEDS]:
        return True
    source = s[field + CN_SOURCE]
    if source < MOST_BANKS:
        return s[EX_PIPE + source] & LAST_STAGE != 0
    leaving = s[ACC_SCALER + ACC_SCALER_STAGES - 1]
    return leaving == FROM_ARRAY + source - MOST_BANKS


@stage
def step_array(s: UnitState) -> None:
    """Simulate one cycle of the array's input: feed a row, and take an entry of the control queue.

    The control queue says which rows of the operands arrive from the banks. A row enters the array
    when it has arrived for all three operands.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    for bank in range(MOST_BANKS):
        s[EX_PIPE_READY + bank] = 0
    for bank in range(MOST_ACC_BANKS):
        s[ACC_RESPONSE_READY + bank] = 0
    valid, written = s[MESH_VALID] == 1, s[MESH_WRITTEN]
    enters = valid and (written == ALL_OPERANDS or s[MESH_FLUSHES] > 0)
    last = enters and s[MESH_FED] == s[MESH_ROWS] - 1
    if enters:
        s[MESH_LINE + ((s[NOW] + ARRAY_CYCLES) & (LINE - 1))] = (
            1 + 2 * s[MESH_ID] + (1 if last else 0)
        )
    room = s[TAG_Q + COUNT] < TAGS and s[TOTAL_Q + COUNT] < TAGS
    ready = (not valid or last) and room
    takes = s[CONTROL_Q + COUNT] > 0
    flushes = s[EX_STATE] == FLUSH_STATE and not takes
    control = entry_at(s, CONTROL_Q, CONTROL_ENTRIES, CN_FIELDS, 0)
    fired, asks, leaves = 0, flushes, takes
    if takes:
        for operand in range(OPERANDS):
            field = control + CN_OPERANDS + operand * OPERAND_FIELDS
            if s[field + CN_FIRES]:
                accepts = not written & (1 << operand) or enters or ready
                if accepts and has_data(s, control, operand):
                    fired |= 1 << operand
                elif accepts:
                    leaves = False
        leaves = leaves and (not s[control + CN_FIRST] or ready)
        any_fires = False
        for operand in range(OPERANDS):
            field = control + CN_OPERANDS + operand * OPERAND_FIELDS
            any_fires = any_fires or s[field + CN_FIRES] == 1
        asks = leaves and any_fires
    request = asks and ready
    s[MESH_REQ_READY], s[MESH_REQ_FIRES] = 1 if ready else 0, 1 if request else 0
    if request:
        take_request(s, control, flushes)
    elif last:
        s[MESH_VALID] = 1 if s[MESH_FLUSHES] > 1 else 0
        s[MESH_FLUSHES] -= 1
    if enters:
        s[MESH_WRITTEN] = 0
        # `last` must compare with the rows of the product that was fed, so it is computed before a
        # new product is taken.
        s[MESH_FED] = 0 if last else s[MESH_FED] + 1
    s[MESH_WRITTEN] |= fired
    if leaves:
        release_rows(s, control, fired)
        remove(s, CONTROL_Q, CONTROL_ENTRIES)


@stage
def take_request(s: UnitState, control: int, flushes: bool) -> None:
    """Start a product in the array, or a flush, which pushes earlier results out of the array.

    A product gets a tag, which says where its result is written.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        control: position of the product's entry in the control queue, which tells the array which
            rows to expect.
        flushes: whether a flush is started.
    """
    number = s[MESH_ID]
    s[MESH_ID] = (number + 1) % PRODUCTS
    s[MESH_VALID] = 1
    s[MESH_FLUSHES] = 1 if flushes else 0
    s[MESH_ROWS] = DIM if flushes else s[control + CN_ROWS]
    if flushes:
        return
    ahead = 3 if s[control + CN_DATAFLOW] == OUTPUT_STATIONARY else 2
    tag = new_entry(s, TAG_Q, TAGS, TAG_FIELDS)
    s[tag + TAG_ADDRESS] = s[control + CN_ADDRESS]
    s[tag + TAG_ENTRY] = s[control + CN_ENTRY]
    s[tag + TAG_ROWS] = s[control + CN_C_ROWS]
    s[tag + TAG_ID] = (number + ahead) % PRODUCTS
    total = new_entry(s, TOTAL_Q, TAGS, 2)
    s[total], s[total + 1] = s[control + CN_ROWS], (number + 1) % PRODUCTS


@stage
def release_rows(s: UnitState, control: int, fired: int) -> None:
    """Free the outputs of the banks whose rows the array has taken in this cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        control: position of the entry of the control queue that needed the rows.
        fired: bit mask of the operands whose rows were taken.
    """
    for operand in range(OPERANDS):
        field = control + CN_OPERANDS + operand * OPERAND_FIELDS
        if fired & (1 << operand) and s[field + CN_NEEDS]:
            source = s[field + CN_SOURCE]
            if source < MOST_BANKS:
                s[EX_PIPE_READY + source] = 1
            else:
                s[ACC_RESPONSE_READY + source - MOST_BANKS] = 1


@stage
def drop_tags(s: UnitState) -> None:
    """End a cycle: remove the tags of products that have left the array.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    if s[TAG_REMOVED]:
        tag = entry_at(s, TAG_Q, TAGS, TAG_FIELDS, 0)
        s[tag + TAG_ADDRESS], s[tag + TAG_ENTRY] = NO_TAG, NO_TAG
        remove(s, TAG_Q, TAGS)
    if s[TOTAL_REMOVED]:
        remove(s, TOTAL_Q, TAGS)


@stage
def has_products(s: UnitState) -> bool:
    """Return whether the array contains a product whose result completes a command.

    Args:
        s: state of all units, shape (STATE_WORDS,).
    """
    entries = 0
    for n in range(TAGS):
        entries += 0 if s[TAG_Q + ENTRIES + n * TAG_FIELDS + TAG_ENTRY] == NO_TAG else 1
    return entries > 0


@stage
def writes_to(s: UnitState, m: GemminiMachine, operand: int) -> bool:
    """Return whether a product in progress writes its result to the start address of an operand.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        operand: operand of a command, whose low bits are a local address.
    """
    mask = (1 << 31) | m.address_mask
    for n in range(TAGS):
        address = s[TAG_Q + ENTRIES + n * TAG_FIELDS + TAG_ADDRESS]
        if address == NO_TAG or is_garbage(m, address):
            continue
        if address & mask == operand & mask:
            return True
    return False
