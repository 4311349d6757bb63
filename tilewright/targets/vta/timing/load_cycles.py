"""Cycles of LOADs and instruction fetches, which share the read port of the memory.

The port has five clients, an arbiter with tags, and one memory that serves bursts in order. The
simulation works in units of bursts. The rules are those of the Chisel RTL (VME, VTAMemDPI,
GenVMECmd):

- A read command for a burst enters the one-entry queue of its client and is granted at least one
  cycle later.
- It is granted neither in a cycle that carries the last beat of a burst nor without a free tag.
  Among waiting commands, the client with the highest priority goes first.
- It enters the queue of the memory one cycle after the grant. The memory takes the next burst in
  the cycle of the previous burst's last beat. A command that meets an empty queue pays the memory
  latency.

Therefore, the cycle in which a burst is granted determines when its beats arrive, and the end of a
client follows from its last grant. A grant at cycle g is final once no other command can become
ready at g. `advance` takes this horizon as an argument.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.numba_decorators import helper, stage

NEVER = 1 << 60

# Clients of the read port, in order of priority (Core.scala, VME.scala)
FETCH_CLIENT, UOP_CLIENT, INP_CLIENT, WGT_CLIENT, ACC_CLIENT = 0, 1, 2, 3, 4
CLIENTS = 5

# Columns of `clients`, which has one row per client
READY = 0  # first cycle in which the waiting command can be granted, NEVER if none waits
BEATS = 1  # beats of the waiting command
ADDRESS = 2  # address of the command after it
ROW_BEATS = 3  # beats of the current row after the waiting command
ROWS = 4  # number of rows after the current one
ROW_ADDRESS, ROW_PITCH, ROW_BYTES = 5, 6, 7
TAIL = 8  # cycles from the last beat on the bus until the client's end
PAD_CYCLE = 9  # next cycle in which zero padding can proceed
# zeros before the data, cycles over data rows, and zeros after them, that remain
PAD_FIRST, PAD_WALK, PAD_LAST = 10, 11, 12
END = 13
MOVED = 14  # number of granted beats
LAST = 15  # bus cycle of the last granted beat
# number of outstanding beats that overflows the counter, 0 if this load cannot reach it
FLIGHT_LIMIT = 16
AHEAD = 17  # 1 if the load ended before its data arrived; or UNCLEAR
AHEAD_AT = 18  # beats of the last burst after which it ends early, 0 if it does not
CLIENT_FIELDS = 20

UNCLEAR = 2

# Results of `add_load`
OPEN, ENDED, STALE = 0, 1, 2

# Indices into `port`, which describes the time since the port was last idle
GRANTS, PASSED, LAST_GRANT, LAST_ACCEPT, LAST_BEAT, READ_BEATS, READ_BURSTS = range(7)
PORT_FIELDS = 8

BURST_FIELDS = 3  # fields of the ring of bursts: cycle of the last beat, client, number of beats


# The kernels of this package are compiled without reference counts. They allocate nothing, and
# counting the references to the arrays of a `Simulator` would take longer than the simulation.


class Bus(NamedTuple):
    """Properties of the memory port: width, burst window, latency and tags.

    All numbers except the latency and the tags are powers of two.
    """

    bytes: int
    log_bytes: int
    window: int  # bytes; a burst never crosses a multiple of the window
    latency: int  # memory latency in cycles
    tags: int  # maximum number of read bursts that are granted and not complete


@helper
def reset_port(clients: NDArray[np.int64], port: NDArray[np.int64]) -> None:
    """Reset the port: no burst is in flight, and the latency counter of the memory is cleared.

    Args:
        clients: state of the clients, shape (CLIENTS, CLIENT_FIELDS).
        port: state of the port, shape (PORT_FIELDS,).
    """
    for c in range(CLIENTS):
        clients[c, READY] = NEVER
        clients[c, AHEAD] = 0
    port[GRANTS] = 0
    port[PASSED] = 0
    port[LAST_GRANT] = -NEVER
    port[LAST_ACCEPT] = -NEVER
    port[LAST_BEAT] = -NEVER
    port[READ_BEATS] = 0
    port[READ_BURSTS] = 0


@stage
def _next_command(client: NDArray[np.int64], ready: int, bus: Bus) -> None:
    """Make the next burst of a client's current row wait for a grant; it ends at a burst window.

    Args:
        client: state of the client, shape (CLIENT_FIELDS,); changed in place.
        ready: first cycle in which the burst can be granted.
        bus: the memory port.
    """
    address = client[ADDRESS]
    room = (bus.window - (address & (bus.window - 1))) >> bus.log_bytes
    beats = min(client[ROW_BEATS], room)
    client[BEATS] = beats
    client[ROW_BEATS] -= beats
    client[ADDRESS] = address + (beats << bus.log_bytes)
    client[READY] = ready


@stage
def _begin_row(client: NDArray[np.int64], bus: Bus) -> None:
    """Compute the beats of a client's next row.

    The beats begin at the bus-aligned address at or below the row's first element.

    Args:
        client: state of the client, shape (CLIENT_FIELDS,); changed in place.
        bus: the memory port.
    """
    offset = client[ROW_ADDRESS] & (bus.bytes - 1)
    client[ADDRESS] = client[ROW_ADDRESS] - offset
    client[ROW_BEATS] = (offset + client[ROW_BYTES] + bus.bytes - 1) >> bus.log_bytes


@helper
def _look_ahead(
    clients: NDArray[np.int64],
    client: int,
    bursts: NDArray[np.int64],
    first: int,
    grants: int,
    queued: int,
) -> bool:
    """Detect a load that the hardware considers finished before all of its data has arrived.

    A load ends when its counter of outstanding beats is zero and its last command has entered its
    queue. The width of the counter depends on the depth of the scratchpad. If the outstanding data
    fills a whole scratchpad, the counter overflows and is zero too early. The cycle in which the
    load then ends is written to `clients[client, END]`.

    Args:
        clients: state of the clients, shape (CLIENTS, CLIENT_FIELDS); changed in place.
        client: index of the client that loads.
        bursts: ring of the last bursts, as in `advance`.
        first: number of the first grant to examine.
        grants: number of grants so far.
        queued: cycle in which the last command enters its queue.

    Returns:
        Whether the load ends too early.
    """
    c = clients[client]
    mask = bursts.shape[0] - 1
    delay = c[TAIL] - 2
    # beats that were on the bus by then have been subtracted from the counter
    counted = queued - delay
    outstanding = c[BEATS]
    for g in range(first, grants):
        if bursts[g & mask, 1] == client:
            outstanding += max(0, min(bursts[g & mask, 2], bursts[g & mask, 0] - counted))
    if outstanding < c[FLIGHT_LIMIT]:
        return False
    missing = outstanding % c[FLIGHT_LIMIT]
    done = queued + 1
    for g in range(first, grants):
        if missing > 0 and bursts[g & mask, 1] == client:
            arriving = max(0, min(bursts[g & mask, 2], bursts[g & mask, 0] - counted))
            if missing <= arriving:
                done = bursts[g & mask, 0] - arriving + missing + delay + 1
            missing = max(0, missing - arriving)
    c[END] = done + 1
    if c[PAD_FIRST] + c[PAD_LAST] > 0 or c[PAD_CYCLE] > done:
        c[AHEAD] = UNCLEAR  # zero padding may outlast the cycles in which the counter reads zero
        return True
    c[AHEAD_AT] = missing
    c[AHEAD] = 1 if missing == 0 else 0
    return missing == 0


@helper
def add_load(
    clients: NDArray[np.int64], client: int, decided: int, lo: int, hi: int, element_bytes: int,
    flight_limit: int, bus: Bus,
) -> int:  # fmt: skip
    """Add a LOAD with rows and elements, which its module decided to start in cycle `decided`.

    Args:
        clients: state of the clients, shape (CLIENTS, CLIENT_FIELDS).
        client: index of the client.
        decided: cycle of the decision.
        lo: low word of the instruction.
        hi: high word of the instruction.
        element_bytes: size of an element in bytes.
        flight_limit: smallest number of outstanding beats that the counter cannot hold.
        bus: the memory port.

    Returns:
        OPEN; ENDED if the end of the LOAD is already known; or STALE if data of the client's
        previous LOAD is still outstanding, which the RTL would take for data of this LOAD. Nothing
        is added then.
    """
    c = clients[client]
    if c[AHEAD] > 0 and (c[READY] != NEVER or c[LAST] + c[TAIL] - 2 > decided):
        return STALE
    y_size = nb.int64(hi & nb.uint64(0xFFFF))
    x_size = nb.int64((hi >> nb.uint64(16)) & nb.uint64(0xFFFF))
    x_stride = nb.int64((hi >> nb.uint64(32)) & nb.uint64(0xFFFF))
    y_pad_0 = nb.int64((hi >> nb.uint64(48)) & nb.uint64(15))
    y_pad_1 = nb.int64((hi >> nb.uint64(52)) & nb.uint64(15))
    x_pads = nb.int64((hi >> nb.uint64(56)) & nb.uint64(15)) + nb.int64(hi >> nb.uint64(60))
    c[ROW_ADDRESS] = nb.int64((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * element_bytes
    c[ROW_PITCH] = x_stride * element_bytes
    c[ROW_BYTES] = x_size * element_bytes
    c[ROWS] = y_size - 1
    narrow = 1 if bus.bytes < element_bytes else 0
    c[TAIL] = 3 + narrow
    # Zero padding: top rows, left and right of the data rows (or a walk past them), bottom rows.
    c[PAD_CYCLE] = decided + 1 + narrow
    width = x_pads + x_size
    if x_pads > 0:
        c[PAD_FIRST] = (y_pad_0 + y_pad_1) * width + x_pads * y_size
        c[PAD_WALK] = 0
        c[PAD_LAST] = 0
    else:
        c[PAD_FIRST] = y_pad_0 * width
        c[PAD_WALK] = y_size if y_pad_1 > 0 else 0
        c[PAD_LAST] = y_pad_1 * width
    most = y_size * ((c[ROW_BYTES] >> bus.log_bytes) + 2)
    c[FLIGHT_LIMIT] = flight_limit if most >= flight_limit else 0
    c[MOVED] = 0
    c[AHEAD] = 0
    c[AHEAD_AT] = 0
    _begin_row(c, bus)
    _next_command(c, decided + 2 + y_pad_0, bus)
    only = c[FLIGHT_LIMIT] > 0 and c[ROW_BEATS] + c[ROWS] == 0
    # There are no grants yet, so any array can stand for the ring.
    if only and _look_ahead(clients, client, clients, 0, 0, decided + 1 + y_pad_0):
        return ENDED
    return OPEN


@helper
def add_fetch(clients: NDArray[np.int64], origin: int, address: int, count: int, bus: Bus) -> None:
    """Add the fetch of a batch of instructions, whose read command is valid in cycle `origin` + 1.

    Args:
        clients: state of the clients, shape (CLIENTS, CLIENT_FIELDS).
        origin: cycle of the request.
        address: byte address of the batch.
        count: number of instructions.
        bus: the memory port.
    """
    c = clients[FETCH_CLIENT]
    c[ROWS] = 0
    c[PAD_FIRST] = 0
    c[PAD_WALK] = 0
    c[PAD_LAST] = 0
    c[PAD_CYCLE] = 0
    c[FLIGHT_LIMIT] = 0
    c[AHEAD_AT] = 0
    if bus.bytes < 16:  # such an instruction is always read in one burst
        c[TAIL] = 2
        c[ROW_BEATS] = 0
        c[BEATS] = 2 * count
        c[READY] = origin + 2
    else:
        c[TAIL] = 4
        c[ROW_ADDRESS] = address
        c[ROW_BYTES] = 16 * count
        _begin_row(c, bus)
        _next_command(c, origin + 2, bus)


@stage
def _pad_until(client: NDArray[np.int64], first: int, last: int) -> None:
    """Advance the zero padding of a load past the cycles in which its data is written.

    No zeros can be written in these cycles.

    Args:
        client: state of the client, shape (CLIENT_FIELDS,); changed in place.
        first: first cycle in which data is written.
        last: last cycle in which data is written.
    """
    cycle = client[PAD_CYCLE]
    if client[PAD_FIRST] > 0:
        free = min(client[PAD_FIRST], max(first - cycle, 0))
        client[PAD_FIRST] -= free
        cycle += free
        if client[PAD_FIRST] > 0:
            client[PAD_CYCLE] = max(cycle, last + 1)
            return
    cycle += client[PAD_WALK]
    client[PAD_WALK] = 0
    if client[PAD_LAST] > 0:
        free = min(client[PAD_LAST], max(first - cycle, 0))
        client[PAD_LAST] -= free
        cycle += free
        if client[PAD_LAST] > 0:
            cycle = max(cycle, last + 1)
    client[PAD_CYCLE] = cycle


@helper
def advance(
    clients: NDArray[np.int64],
    port: NDArray[np.int64],
    bursts: NDArray[np.int64],
    horizon: int,
    bus: Bus,
) -> int:
    """Grant bursts up to cycle `horizon`, or up to the last burst of a client.

    The end of this client is written to `clients[client, END]`. For a LOAD, it is the first cycle
    after the execute state of its module. For the fetch unit, it is the first cycle in which
    instructions can leave its local memory.

    Args:
        clients: state of the clients, shape (CLIENTS, CLIENT_FIELDS).
        port: state of the port, shape (PORT_FIELDS,).
        bursts: ring of the last bursts, with columns (cycle of the last beat, client, beats), shape
            (n, 3); n is a power of two and larger than the number of tags.
        horizon: last cycle to simulate.
        bus: the memory port.

    Returns:
        The index of the client whose last burst was granted, or -1.
    """
    if clients.shape[1] != CLIENT_FIELDS or bursts.shape[1] != BURST_FIELDS:
        # comparing constants takes no time in the compiled code
        raise ValueError("rows of clients or bursts")
    mask = bursts.shape[0] - 1
    grants, passed, last_grant = port[GRANTS], port[PASSED], port[LAST_GRANT]
    last_accept, last_beat = port[LAST_ACCEPT], port[LAST_BEAT]
    finished = -1
    while finished == -1:
        cycle = NEVER
        for c in range(CLIENTS):
            cycle = min(cycle, clients[c, READY])
        cycle = max(cycle, last_grant + 1)
        if cycle > horizon or cycle >= NEVER:
            break
        if grants >= bus.tags:
            cycle = max(cycle, bursts[nb.uint64((grants - bus.tags) & mask), 0] + 1)
        seen = passed
        while seen < grants and bursts[nb.uint64(seen & mask), 0] <= cycle:
            if bursts[nb.uint64(seen & mask), 0] == cycle:
                cycle += 1
            seen += 1
        if cycle > horizon:
            break
        passed, last_grant = seen, cycle
        chosen = 0
        while clients[nb.uint64(chosen), READY] > cycle:
            chosen += 1
        client = clients[nb.uint64(chosen)]
        beats = client[BEATS]
        # The memory leaves no gap if the command is present when it accepts the previous one.
        last_accept = max(last_beat, 0 if cycle <= last_accept else cycle + 1 + bus.latency)
        last_beat = last_accept + beats
        place = nb.uint64(grants & mask)
        bursts[place, 0] = last_beat
        bursts[place, 1] = chosen
        bursts[place, 2] = beats
        grants += 1
        port[READ_BEATS] += beats
        client[MOVED] += beats
        client[LAST] = last_beat
        if client[PAD_FIRST] + client[PAD_LAST] > 0:
            delay = client[TAIL] - 2
            _pad_until(client, last_accept + 1 + delay, last_beat + delay)
        if client[ROW_BEATS] > 0:
            _next_command(client, cycle + 2, bus)
        elif client[ROWS] > 0:
            client[ROWS] -= 1
            client[ROW_ADDRESS] += client[ROW_PITCH]
            _begin_row(client, bus)
            _next_command(client, cycle + 2, bus)
        else:
            client[READY] = NEVER
            if client[AHEAD] > 0:
                continue
            padded = client[PAD_CYCLE] + client[PAD_FIRST] + client[PAD_WALK] + client[PAD_LAST]
            client[END] = max(last_beat + client[TAIL], padded + 1)
            if client[AHEAD_AT] > 0:
                client[END] = last_accept + client[AHEAD_AT] + client[TAIL]
                client[AHEAD] = 1
            finished = chosen
            continue
        if (
            client[FLIGHT_LIMIT] > 0
            and client[ROW_BEATS] + client[ROWS] == 0
            and _look_ahead(clients, chosen, bursts, max(0, grants - bus.tags), grants, cycle + 1)
        ):
            finished = chosen
    port[READ_BURSTS] += grants - port[GRANTS]
    port[GRANTS], port[PASSED], port[LAST_GRANT] = grants, passed, last_grant
    port[LAST_ACCEPT], port[LAST_BEAT] = last_accept, last_beat
    return finished
