"""Cache of the durations of transfers, so that equal transfers are simulated only once.

The cycles of a STORE, and of a LOAD that is the only user of the read port, depend only on the
shape of the transfer and on the position of its rows in the burst window. These values are the keys
of the rows in `Simulator.table`.
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

MOST_PACKED = (1 << 31) - 1  # maximum number of beats; a transfer has no more bursts than beats
_LOW = 0xFFFFFFFF
STORE_KEY = 7  # client in the key of a STORE, which has no client
_SHIFT = 64 - LOG_TABLE_ROWS


@stage
def place_of(lo: int, element_bytes: int, window: int, client: int) -> int:
    """Return the second word of a table key: the position of a transfer in its burst window.

    The word also contains the client of the port. The first word of a key is the high word of the
    instruction, which contains sizes, stride and padding.

    Args:
        lo: low word of the instruction.
        element_bytes: size of an element in bytes.
        window: size of a burst window in bytes.
        client: client of the port.
    """
    address = ((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * nb.uint64(element_bytes)
    return (address & nb.uint64(window - 1)) << nb.uint64(3) | nb.uint64(client)


@stage
def row_of(hi: int, place: int) -> int:
    """Return the row of the table of durations for a key, by hashing the key.

    Args:
        hi: first word of the key, which is the high word of the instruction.
        place: second word of the key, from `place_of`.
    """
    mixed = hi * nb.uint64(0x9E3779B97F4A7C15) ^ place * nb.uint64(0xC2B2AE3D27D4EB4F)
    return nb.int64(mixed >> nb.uint64(_SHIFT))


@stage
def packed(beats: int, bursts: int) -> int:
    """Pack numbers of beats and bursts into one word, so that both are added in one step.

    The word can hold at most MOST_PACKED beats.

    Args:
        beats: number of beats.
        bursts: number of bursts.
    """
    return nb.uint64(beats) << nb.uint64(32) | nb.uint64(bursts)


@stage
def beats_in(traffic: int) -> int:
    """Return the number of beats in a word from `packed`.

    Args:
        traffic: numbers of beats and bursts, packed into one word by `transfer_table.packed`.
    """
    return nb.int64(traffic >> nb.uint64(32))


@stage
def bursts_in(traffic: int) -> int:
    """Return the number of bursts in a word from `packed`.

    Args:
        traffic: numbers of beats and bursts, packed into one word by `transfer_table.packed`.
    """
    return nb.int64(traffic & nb.uint64(_LOW))


@stage
def overflows(traffic: int) -> bool:
    """Return whether packed numbers of beats and bursts are too large to add more to them.

    They must be added to the total first.

    Args:
        traffic: numbers of beats and bursts, packed into one word by `transfer_table.packed`.
    """
    return beats_in(traffic) > MOST_PACKED


@helper
def add(sim: Simulator, client: int, begin: int, lo: int, hi: int) -> int:
    """Add a LOAD instruction to the read port, see `load_cycles.add_load`.

    Args:
        sim: the simulator.
        client: client of the read port.
        begin: cycle in which the LOAD begins.
        lo: low word of the instruction.
        hi: high word of the instruction.
    """
    return add_load(
        sim.clients, client, begin, lo, hi,
        sim.element_bytes[client], sim.flight_limits[client], sim.bus,
    )  # fmt: skip


@helper
def time_load(sim: Simulator, client: int, lo: int, hi: int, row: int, place: int) -> bool:
    """Simulate a LOAD that is the only user of the port, and write its duration to the table.

    Args:
        sim: the simulator.
        client: client of the read port.
        lo: low word of the instruction.
        hi: high word of the instruction, which is the first word of the key.
        row: row of the table that is written.
        place: second word of the key.

    Returns:
        Whether an entry was written. No entry is written if the load ends before the port is idle
        again, or if its traffic cannot be packed.
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
    """Compute the execute cycles of a STORE, and write them to the table of durations.

    If the beats and bursts of the STORE cannot be packed into one word, they are added to the total
    here. The row of the table then contains the cycles and a key that matches no STORE, so that the
    STORE is timed and counted again whenever it runs.

    Args:
        sim: the simulator.
        lo: low word of the instruction.
        hi: high word of the instruction, which is the first word of the key.
        row: row of the table that is written.
        place: second word of the key, from `place_of`.
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
    """Return the cycle in which a batch of instructions arrives if nothing else uses the port.

    Args:
        sim: the simulator.
        cycle: cycle of the request.
        address: byte address of the batch.
        count: number of instructions.
    """
    reset_port(sim.clients, sim.port)
    add_fetch(sim.clients, cycle, address, count, sim.bus)
    advance(sim.clients, sim.port, sim.bursts, NEVER, sim.bus)
    return sim.clients[FETCH_CLIENT, END]


@helper
def replay(sim: Simulator, client: int, begin: int, lo: int, hi: int, cycle: int) -> bool:
    """Simulate the port up to the given cycle, with the only client that has used it so far.

    Args:
        sim: the simulator.
        client: the client.
        begin: cycle in which the client began.
        lo: low word of the LOAD; for a fetch, its address.
        hi: high word of the LOAD; for a fetch, its number of instructions.
        cycle: the current cycle.

    Returns:
        Whether the end of the client is not known yet.
    """
    reset_port(sim.clients, sim.port)
    if client == FETCH_CLIENT:
        add_fetch(sim.clients, begin, nb.int64(lo), nb.int64(hi), sim.bus)
    else:
        add(sim, client, begin, lo, hi)
    return advance(sim.clients, sim.port, sim.bursts, cycle + 1, sim.bus) < 0
