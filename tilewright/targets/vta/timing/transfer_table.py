"""Stores the cycles of transfers that were timed before, so that none is timed twice.

The cycles of a STORE, and of a LOAD that has the read port for itself, follow from its shape and
from where its rows lie in the burst window. The rows of `Simulator.table` are keyed by exactly
that.
"""

from __future__ import annotations

import numba as nb

from tilewright.targets.vta.numba_decorators import helper, stage
from tilewright.targets.vta.timing.load_cycles import (
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
from tilewright.targets.vta.timing.simulator import LOG_TABLE_ROWS, WR_BEATS, WR_BURSTS, Simulator
from tilewright.targets.vta.timing.store_and_gemm_cycles import store_length

MOST_PACKED = (1 << 31) - 1  # beats; a transfer has no more bursts than beats
_LOW = 0xFFFFFFFF
STORE_KEY = 7  # stands for the client in the key of a STORE
_SHIFT = 64 - LOG_TABLE_ROWS


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
    """`load_cycles.add_load` of an instruction."""
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
