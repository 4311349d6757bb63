"""Cycle simulator of Gemmini: counts the cycles of a command stream, without computing its data.

`simulator` advances all units by one cycle at a time. `reservation_station` holds the commands that
wait for a unit. `mvin` and `mvout` contain the load and store controllers with their data paths,
`dma` the memory side, `local_memory` the banks, `execute_controller` and `systolic_array` the
computation, and `loop_unit` the hardware loop LOOP_WS. `state` defines the state that all of them
share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.targets.gemmini.faults import HANG, StreamFault, stream_error
from tilewright.targets.gemmini.isa import FENCE, FLUSH, CommandStream, stream_of
from tilewright.targets.gemmini.loop_unrolling import unroll_stream
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.stream_checks import check_stream
from tilewright.targets.gemmini.timing.simulator import HANGS, simulate_stream
from tilewright.targets.gemmini.timing.state import (
    ACCEPT,
    COMMAND_ROWS,
    COMPLETE,
    EVENT_NAMES,
    FUNCT,
    RS1,
    RS2,
    blank_state,
)

__all__ = ["CommandTimes", "cycles", "time_stream"]


@dataclass(frozen=True, eq=False)
class CommandTimes:
    """Result of timing a stream.

    Attributes:
        total: cycles of the whole stream.
        events: the cycle in which each command was accepted, allocated in the reservation station,
            issued and completed: int64 arrays of shape (n,) with the keys `accept`, `alloc`,
            `issue` and `complete`. The value is -1 if the event does not occur.
        requests: recorded requests at the memory port, shape (r, 3), with the columns cycle,
            transaction and bytes. Transactions 0 to 15 are writes, 16 to 31 are reads.
    """

    total: int
    events: dict[str, NDArray[np.int64]]
    requests: NDArray[np.int64]


def time_stream(stream: CommandStream, spec: GemminiSpec, most_requests: int = 0) -> CommandTimes:
    """Simulate the timing of a stream.

    The time runs from the first command at the port until the accelerator is idle after the last
    command.

    Args:
        stream: the commands.
        spec: the machine.
        most_requests: maximum number of requests at the memory port to record; 0 records none.

    Raises:
        StreamError: the stream is invalid, or does not finish.
    """
    n = len(stream.funct)
    plain, origin = unroll_stream(stream, spec.machine)
    check_stream(stream, plain, origin, spec.machine)
    generated = len(plain.funct) if stream.has_loops else 0
    commands = np.full((COMMAND_ROWS, n + generated), -1, np.int64)
    commands[FUNCT, :n] = stream.funct
    commands[RS1, :n] = stream.rs1.view(np.int64)
    commands[RS2, :n] = stream.rs2.view(np.int64)
    requests = np.full((most_requests, 3), -1, np.int64)
    total = simulate_stream(blank_state(), spec.machine_record, commands, n, requests)
    if total == HANGS:
        raise stream_error(_hang(stream, commands[COMPLETE, :n]))
    events = dict(zip(EVENT_NAMES, commands[ACCEPT:, :n], strict=True))
    return CommandTimes(total, events, requests[requests[:, 0] >= 0])


def cycles(
    funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike, setting: Mapping[str, object] | None = None,
    machine: GemminiSpec | Mapping[str, object] | None = None,
) -> tuple[int, dict[str, NDArray[np.int64]]]:  # fmt: skip
    """Simulate the timing of a stream; see `gemmini.cycles`.

    Args:
        funct: function codes, shape (n,).
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        setting: overrides for keys of the machine, such as `memory_latency_cycles`.
        machine: specification, or a mapping with the keys of a preset; None for the default
            machine.

    Returns:
        Total number of cycles, and the cycle of each command's events by name, arrays of shape
        (n,). A stream with hardware loops has only the event `accept`.

    Raises:
        TilewrightError: the stream or the machine's specification is invalid, or the stream does
            not finish.
    """
    if isinstance(machine, GemminiSpec):
        machine = machine.model_dump()
    spec = GemminiSpec.from_mapping({**(machine or {}), **(setting or {})})
    stream = stream_of(funct, rs1, rs2)
    times = time_stream(stream, spec)
    events = ("accept",) if stream.has_loops else EVENT_NAMES
    return times.total, {name: times.events[name] for name in events}


def _hang(stream: CommandStream, complete: NDArray[np.int64]) -> StreamFault:
    """Return the fault of a stream that does not finish.

    The fault names the first incomplete command other than FENCE and FLUSH, which only wait for
    other commands. If there is none, it names the last command of the stream.

    Args:
        stream: the commands.
        complete: completion cycle of each command, shape (n,); negative if it never completes.
    """
    waits = (complete < 0) & (stream.funct != FENCE) & (stream.funct != FLUSH)
    first = int(np.flatnonzero(waits)[0]) if waits.any() else len(stream.funct) - 1
    return StreamFault(first, int(stream.funct[first]), HANG, 0, 0)
