"""Cycles of instructions that share no port with other instructions: STORE, GEMM and ALU."""

from __future__ import annotations

import numba as nb

from tilewright.targets.vta.instruction_format import Layout, get
from tilewright.targets.vta.numba_decorators import helper, stage
from tilewright.targets.vta.spec import LOOP_FIELD_BITS, Machine


@stage
def loop_iterations(lo: int, hi: int, lay: Layout) -> int:
    """Return the number of iterations of a GEMM or ALU instruction.

    It is iter_out · iter_in · (number of micro-ops). As in the RTL, counters wrap around: a counter
    of 0 runs through its full range.

    Args:
        lo: low word of the instruction.
        hi: high word of the instruction.
        lay: bit positions of the instruction fields.
    """
    iter_out = get(lo, hi, lay.iter_out, LOOP_FIELD_BITS)
    iter_in = get(lo, hi, lay.iter_in, LOOP_FIELD_BITS)
    bgn = get(lo, hi, lay.uop_bgn, lay.uop_index_bits)
    end = get(lo, hi, lay.uop_end, lay.uop_index_bits + 1)
    uops = (end - bgn) & ((1 << (lay.uop_index_bits + 1)) - 1)
    if iter_out == 0:
        iter_out = 1 << LOOP_FIELD_BITS
    if iter_in == 0:
        iter_in = 1 << LOOP_FIELD_BITS
    if uops == 0:
        uops = 1 << (lay.uop_index_bits + 1)
    return iter_out * iter_in * uops


@stage
def _log2(power: int) -> int:
    log = 0
    while 1 << log < power:
        log += 1
    return log


@helper
def store_length(lo: int, hi: int, machine: Machine) -> tuple[int, int, int]:
    """Return the execute cycles, beats and bursts of a STORE with elements.

    Bursts are written one after the other. A burst takes one command cycle, two address cycles, its
    beats, and one response cycle. A narrow store module needs one more cycle to read its scratchpad
    between two block rows of a burst (Chisel RTL, TensorStoreNarrowVME and TensorStoreWideVME).

    A STORE without rows never ends in a wide store module, and its cycles are 0. A narrow store
    module writes 65,536 rows instead.

    Args:
        lo: low word of the instruction.
        hi: high word of the instruction.
        machine: the machine.
    """
    bus = machine.bus_bytes
    window = bus * machine.max_burst_beats
    wide = bus >= machine.out_bytes
    rows = nb.int64(hi & nb.uint64(0xFFFF))
    row_bytes = nb.int64((hi >> nb.uint64(16)) & nb.uint64(0xFFFF)) * machine.out_bytes
    # The narrow store module multiplies its stride by the number of values, regardless of their
    # width.
    pitch = machine.out_bytes if wide else machine.batch * machine.block_out
    stride = nb.int64((hi >> nb.uint64(32)) & nb.uint64(0xFFFF)) * pitch
    if rows == 0:
        if wide:
            return 0, 0, 0
        rows = 1 << 16
    block_row = max(1, machine.block_out * machine.inp_bits // 8 // bus)
    address = nb.int64((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * machine.out_bytes
    log_bus, log_burst = _log2(bus), _log2(machine.max_burst_beats)
    full_blocks = (machine.max_burst_beats - 1) // block_row
    beats, bursts, blocks = 0, 0, 0
    for _ in range(rows):
        offset = address & (bus - 1)
        row_beats = (offset + row_bytes + bus - 1) >> log_bus
        first = min(row_beats, (window - ((address - offset) & (window - 1))) >> log_bus)
        full = (row_beats - first) >> log_burst
        last = (row_beats - first) & (machine.max_burst_beats - 1)
        beats += row_beats
        bursts += 1 + full
        blocks += (first - 1) // block_row + full * full_blocks
        if last > 0:
            bursts += 1
            blocks += (last - 1) // block_row
        address += stride
    return 4 * bursts + beats + (0 if wide else blocks), beats, bursts
