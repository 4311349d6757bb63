"""How long an instruction takes that waits for nobody: loops, stores, and loads alone on the port.

The length of a transfer follows from its shape and from where its rows lie in the burst window, so
lengths are kept in a table keyed by exactly that.
"""

from __future__ import annotations

import numba as nb

from targets.vta.isa import Layout, get
from targets.vta.spec import LOOP_FIELD_BITS, Machine

# One row of the table: two key words, cycles, beats << 32 | bursts
MEMO_ROWS = 4096
MEMO_FIELDS = 4
_MEMO_SHIFT = 52  # 64 - log2(MEMO_ROWS)


@nb.njit(inline="always")
def loop_iterations(lo: int, hi: int, lay: Layout) -> int:
    """iter_out · iter_in · micro-ops, with the RTL's wrap-around: 0 runs the whole counter."""
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


@nb.njit(inline="always")
def memo_place(hi: int, place: int) -> int:
    """Row of the table for the key (`hi`, `place`)."""
    mixed = hi * nb.uint64(0x9E3779B97F4A7C15) ^ place * nb.uint64(0xC2B2AE3D27D4EB4F)
    return nb.int64(mixed >> nb.uint64(_MEMO_SHIFT))


@nb.njit(cache=True, nogil=True)
def store_length(lo: int, hi: int, machine: Machine) -> tuple[int, int, int]:
    """Execute cycles, beats and bursts of a STORE with elements; 0 cycles if it never ends.

    A burst takes a command, two address, its beat and a response cycle, one after the other; a
    narrow store reads its scratchpad for one cycle after each block row (Chisel RTL,
    TensorStoreNarrowVME and TensorStoreWideVME).
    """
    bus = machine.bus_bytes
    window = bus * machine.max_burst_beats
    wide = bus >= machine.out_bytes
    rows = nb.int64(hi & nb.uint64(0xFFFF))
    row_bytes = nb.int64((hi >> nb.uint64(16)) & nb.uint64(0xFFFF)) * machine.out_bytes
    # The narrow store multiplies its stride by values, whatever their width.
    pitch = machine.out_bytes if wide else machine.batch * machine.block_out
    stride = nb.int64((hi >> nb.uint64(32)) & nb.uint64(0xFFFF)) * pitch
    if rows == 0:
        if wide:
            return 0, 0, 0
        rows = 1 << 16
    block_row = max(1, machine.block_out * machine.inp_bits // 8 // bus)
    address = nb.int64((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * machine.out_bytes
    cycles, beats, bursts = 0, 0, 0
    for _ in range(rows):
        offset = address & (bus - 1)
        left = (offset + row_bytes + bus - 1) // bus
        room = (window - ((address - offset) & (window - 1))) // bus
        while left > 0:
            burst = min(left, room)
            left -= burst
            room = machine.max_burst_beats
            beats += burst
            bursts += 1
            cycles += 4 + burst
            if not wide:
                cycles += (burst - 1) // block_row
        address += stride
    return cycles, beats, bursts
