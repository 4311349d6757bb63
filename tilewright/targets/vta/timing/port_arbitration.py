"""Arbitration of the memory's read port between its users (loads and instruction fetch).

While a load is the only user of the port, its duration depends only on its shape and address, and
is looked up in a table. If a second user arrives before the end, this end is revoked, and the
commands of the first user are replayed up to the current cycle. From then on, the port is simulated
burst by burst (`load_cycles.advance`) until it is idle again. Such a port is called *live*.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb

from tilewright.targets.vta.numba_decorators import rarely, stage
from tilewright.targets.vta.timing.load_cycles import (
    AHEAD,
    END,
    ENDED,
    FETCH_CLIENT,
    NEVER,
    READ_BEATS,
    READ_BURSTS,
    STALE,
    UNCLEAR,
    add_fetch,
)
from tilewright.targets.vta.timing.simulator import (
    AHEAD_LOADS,
    CODE,
    CULPRIT,
    OVERTAKEN,
    RD_BEATS,
    RD_BURSTS,
    Simulator,
)
from tilewright.targets.vta.timing.transfer_table import (
    add,
    beats_in,
    bursts_in,
    overflows,
    packed,
    place_of,
    replay,
    row_of,
    time_fetch,
    time_load,
)

NOBODY = -1


class PortRequest(NamedTuple):
    """Request of a client to use the read port, for a LOAD or for a batch of instructions."""

    client: int
    insn: int  # instruction that requests; for a batch, its first instruction
    lo: int  # low word of a LOAD; for a batch, its address, and in `hi` the number of instructions
    hi: int


class Sharing(NamedTuple):
    """State of the read port: its users, and whether it is simulated burst by burst."""

    users: int
    live: bool  # whether the port is simulated burst by burst
    alone: PortRequest  # the only user, unless the port is simulated burst by burst
    alone_since: int
    alone_read: int  # traffic of the only user, `packed`
    read: int  # traffic of all earlier single users, `packed`, in addition to `Simulator.outcome`


@stage
def nobody() -> Sharing:
    """Return the state of the read port before the first request, without users."""
    zero = nb.uint64(0)
    return Sharing(0, False, PortRequest(0, 0, zero, zero), 0, zero, zero)


@stage
def count_read(sim: Simulator, beats: int, bursts: int) -> None:
    """Add `beats` and `bursts` to the total numbers of beats and bursts that were read."""
    sim.outcome[RD_BEATS] += beats
    sim.outcome[RD_BURSTS] += bursts


@stage
def count_packed(sim: Simulator, traffic: int) -> None:
    """Add packed `traffic` to the total numbers of beats and bursts that were read."""
    count_read(sim, beats_in(traffic), bursts_in(traffic))


@stage
def count_episode(sim: Simulator) -> None:
    """Count everything that the clients have read since the port was last idle."""
    count_read(sim, sim.port[READ_BEATS], sim.port[READ_BURSTS])


@stage
def leave(sim: Simulator, sharing: Sharing, leaving: int) -> Sharing:
    """Remove `leaving` users that have ended from the port, which is idle if none is left."""
    users = sharing.users - leaving
    live = sharing.live
    if leaving > 0 and live and users == 0:
        live = False
        count_episode(sim)
    return Sharing(
        users, live, sharing.alone, sharing.alone_since, sharing.alone_read, sharing.read
    )


@stage
def stay(sim: Simulator, sharing: Sharing) -> Sharing:
    """Keep the port busy after a load that ended before its data arrived."""
    sim.outcome[AHEAD_LOADS] += 1
    return Sharing(
        sharing.users + 1, sharing.live, sharing.alone, sharing.alone_since, sharing.alone_read,
        sharing.read,
    )  # fmt: skip


@stage
def overtaken(sim: Simulator, insn: int) -> int:
    """Record that a load may take the data of its predecessor for its own.

    Args:
        sim: the simulator, whose outcome is written.
        insn: index of the load.

    Returns:
        The code OVERTAKEN.
    """
    sim.outcome[CODE], sim.outcome[CULPRIT] = OVERTAKEN, insn
    return OVERTAKEN


@stage
def join(
    sim: Simulator, sharing: Sharing, request: PortRequest, now: int
) -> tuple[Sharing, int, int]:
    """Add a user to the read port.

    Args:
        sim: the simulator.
        sharing: state of the port.
        request: request of the client.
        now: current cycle.

    Returns:
        The new state of the port; the end of the client, which is NEVER if it is not known yet, or
        OVERTAKEN; and the client whose known end is revoked, or NOBODY.
    """
    reopened = NOBODY
    if sharing.users == 0:
        row = row_of_load(sim, request)
        if row >= 0:
            sharing, end = have_alone(sim, sharing, request, row, now)
            return sharing, end, reopened
        sharing = go_live(sharing)
    elif not sharing.live:
        alone = sharing.alone
        if replay(sim, alone.client, sharing.alone_since, alone.lo, alone.hi, now):
            reopened = alone.client
        count_read(sim, -beats_in(sharing.alone_read), -bursts_in(sharing.alone_read))
        sharing = go_live(sharing)
    sharing, end = have_together(sim, sharing, request, now)
    return sharing, end, reopened


@stage
def row_of_load(sim: Simulator, request: PortRequest) -> int:
    """Return the row of `Simulator.table` with the duration of a load that is the port's only user.

    If the row is empty or holds another load, the load is simulated and stored in the row.

    Returns:
        Index of the row. It is 0 for a request of the fetch module, which loads a batch of
        instructions, and -1 if the table cannot hold the duration.
    """
    client, lo, hi = request.client, request.lo, request.hi
    if client == FETCH_CLIENT:
        return 0
    place = place_of(lo, sim.element_bytes[client], sim.bus.window, client)
    row = row_of(hi, place)
    known = sim.table[row, 0] == hi and sim.table[row, 1] == place
    if rarely(not known) and not time_load(sim, client, lo, hi, row, place):
        return -1
    return row


@stage
def go_live(sharing: Sharing) -> Sharing:
    """Return the state of the port in which it is simulated burst by burst."""
    return Sharing(
        sharing.users, True, sharing.alone, sharing.alone_since, sharing.alone_read,
        sharing.read,
    )  # fmt: skip


@stage
def have_alone(
    sim: Simulator, sharing: Sharing, request: PortRequest, row: int, now: int
) -> tuple[Sharing, int]:
    """Add the first user to an idle read port, and determine when it ends.

    Args:
        sim: the simulator.
        sharing: state of the port.
        request: request of the client.
        row: row of `Simulator.table` with the duration of the load; unused for a fetch.
        now: current cycle.

    Returns:
        The new state of the port, and the cycle in which the client ends.
    """
    if request.client == FETCH_CLIENT:
        end = time_fetch(sim, now, nb.int64(request.lo), nb.int64(request.hi))
        alone_read = packed(sim.port[READ_BEATS], sim.port[READ_BURSTS])
    else:
        end = now + nb.int64(sim.table[row, 2])
        alone_read = sim.table[row, 3]
    read = sharing.read + alone_read
    if rarely(overflows(read)):
        count_packed(sim, read)
        read = nb.uint64(0)
    return Sharing(1, False, request, now, alone_read, read), end


@stage
def have_together(
    sim: Simulator, sharing: Sharing, request: PortRequest, now: int
) -> tuple[Sharing, int]:
    """Add a user to a port that is simulated burst by burst.

    Args:
        sim: the simulator.
        sharing: state of the port.
        request: request of the client.
        now: current cycle.

    Returns:
        The new state of the port; and the end of the client, which is NEVER if it is not known yet,
        or OVERTAKEN.
    """
    client = request.client
    users, end = sharing.users + 1, NEVER
    if client == FETCH_CLIENT:
        add_fetch(sim.clients, now, nb.int64(request.lo), nb.int64(request.hi), sim.bus)
    else:
        added = add(sim, client, now, request.lo, request.hi)
        if rarely(added == STALE or sim.clients[client, AHEAD] == UNCLEAR):
            end = overtaken(sim, request.insn)
        elif added == ENDED:
            end = sim.clients[client, END]
            users += 1
            sim.outcome[AHEAD_LOADS] += 1
    sharing = Sharing(
        users, True, sharing.alone, sharing.alone_since, sharing.alone_read, sharing.read
    )
    return sharing, end
