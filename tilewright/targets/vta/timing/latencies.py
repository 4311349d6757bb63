"""Computes how long an instruction takes that waits for nobody: loops, stores, and loads alone on
the port.

The length of a transfer follows from its shape and from where its rows lie in the burst window. So
lengths are kept in a table keyed by exactly that.
"""

from __future__ import annotations

import numba as nb

from tilewright.targets.vta.encoding import LOOP_FIELD_BITS
from tilewright.targets.vta.isa import Layout, get
from tilewright.targets.vta.njit_args import helper, stage
from tilewright.targets.vta.spec import Machine
from tilewright.targets.vta.timing.outcome import WR_BEATS, WR_BURSTS
from tilewright.targets.vta.timing.port import (
    AHEAD,
    END,
    FETCH_CLIENT,
    NEVER,
    OPEN,
    READ_BEATS,
    READ_BURSTS,
    add_fetch,
    add_load,
    advance,
    reset_port,
)
from tilewright.targets.vta.timing.simulator import LOG_TABLE_ROWS, Simulator

MOST_PACKED = (1 << 31) - 1  # beats; a transfer has no more bursts than beats
_LOW = 0xFFFFFFFF
STORE_KEY = 7  # stands for the client in the key of a STORE
_SHIFT = 64 - LOG_TABLE_ROWS


@stage
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


@stage
def place_of(lo: int, element_bytes: int, window: int, client: int) -> int:
    """Where the first row lies in the burst window, and whose it is: the second word of a key.

    The first word is `hi`, which holds sizes, stride and padding.
    """
    address = ((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * nb.uint64(element_bytes)
    return (address & nb.uint64(window - 1)) << nb.uint64(3) | nb.uint64(client)


@stage
def row_of(hi: int, place: int) -> int:
    """Row of the table for the key (`hi`, `place`)."""
    mixed = hi * nb.uint64(0x9E3779B97F4A7C15) ^ place * nb.uint64(0xC2B2AE3D27D4EB4F)
    return nb.int64(mixed >> nb.uint64(_SHIFT))


@stage
def packed(beats: int, bursts: int) -> int:
    """Traffic in one word, so that counting it is one addition; at most MOST_PACKED beats."""
    return nb.uint64(beats) << nb.uint64(32) | nb.uint64(bursts)


@stage
def beats_in(traffic: int) -> int:
    """The beats of `packed` traffic."""
    return nb.int64(traffic >> nb.uint64(32))


@stage
def bursts_in(traffic: int) -> int:
    """The bursts of `packed` traffic."""
    return nb.int64(traffic & nb.uint64(_LOW))


@stage
def overflows(traffic: int) -> bool:
    """Whether a sum of `packed` traffic has to be emptied before more is added to it."""
    return beats_in(traffic) > MOST_PACKED


@helper
def add(sim: Simulator, client: int, begin: int, lo: int, hi: int) -> int:
    """`port.add_load` of an instruction."""
    return add_load(
        sim.clients, client, begin, lo, hi,
        sim.element_bytes[client], sim.flight_limits[client], sim.bus,
    )  # fmt: skip


@helper
def time_load(sim: Simulator, client: int, lo: int, hi: int, row: int, place: int) -> bool:
    """Enter a load that has the port for itself into the table: cycles from decision to end.

    False, and no entry, if it ends before the port is quiet again, or its traffic cannot be packed.
    """
    reset_port(sim.clients, sim.port)
    if add(sim, client, 0, lo, hi) == OPEN:
        advance(sim.clients, sim.port, sim.bursts, NEVER, sim.bus)
    if sim.clients[client, AHEAD] > 0 or sim.port[READ_BEATS] > MOST_PACKED:
        reset_port(sim.clients, sim.port)
        return False
    sim.table[row, 0] = hi
    sim.table[row, 1] = place
    sim.table[row, 2] = sim.clients[client, END]
    sim.table[row, 3] = packed(sim.port[READ_BEATS], sim.port[READ_BURSTS])
    return True


@helper
def time_store(sim: Simulator, lo: int, hi: int, row: int, place: int) -> None:
    """Enter a STORE into the table: its execute cycles.

    One whose traffic cannot be packed is counted here, and its row keeps the cycles only: it has
    the key of no STORE, so that it is timed and counted again whenever it runs.
    """
    cycles, beats, bursts = store_length(lo, hi, sim.machine)
    sim.table[row, 0] = hi
    sim.table[row, 1] = place
    sim.table[row, 2] = cycles
    sim.table[row, 3] = packed(beats, bursts)
    if beats > MOST_PACKED:
        sim.table[row, 0] = 0
        sim.table[row, 3] = 0
        sim.outcome[WR_BEATS] += beats
        sim.outcome[WR_BURSTS] += bursts


@helper
def time_fetch(sim: Simulator, cycle: int, address: int, count: int) -> int:
    """The end of a batch of instructions that has the port for itself."""
    reset_port(sim.clients, sim.port)
    add_fetch(sim.clients, cycle, address, count, sim.bus)
    advance(sim.clients, sim.port, sim.bursts, NEVER, sim.bus)
    return sim.clients[FETCH_CLIENT, END]


@helper
def replay(sim: Simulator, client: int, begin: int, lo: int, hi: int, cycle: int) -> bool:
    """Bring the port to the state it has in `cycle`, from the only client that used it so far.

    True if that client's end is open again. A fetch has its address and count in `lo` and `hi`.
    """
    reset_port(sim.clients, sim.port)
    if client == FETCH_CLIENT:
        add_fetch(sim.clients, begin, nb.int64(lo), nb.int64(hi), sim.bus)
    else:
        add(sim, client, begin, lo, hi)
    return advance(sim.clients, sim.port, sim.bursts, cycle + 1, sim.bus) < 0


@stage
def _log2(power: int) -> int:
    log = 0
    while 1 << log < power:
        log += 1
    return log


@helper
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
