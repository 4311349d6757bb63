"""Cycle simulator of Gemmini: how many cycles a stream of commands takes, without its data.

`simulator` steps all units once per cycle. `mvin` and `mvout` are the load and the store controller
with their data paths, `execute_controller` and `systolic_array` compute, `loop_unit` is LOOP_WS.
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
    """How a stream ran: its cycles, and when each command moved on.

    `events` has accept, alloc, issue and complete, each (n,) cycles; -1 for what does not happen.
    `requests` (r, 3) has cycle, transaction (16 and more are reads) and bytes of each request at
    the memory port.
    """

    total: int
    events: dict[str, NDArray[np.int64]]
    requests: NDArray[np.int64]


def time_stream(stream: CommandStream, spec: GemminiSpec, most_requests: int = 0) -> CommandTimes:
    """Cycles from the first command at the port until the accelerator is idle after the last.

    `most_requests`: of how many requests at the memory port to keep a record. Raises
    `StreamError` for a stream that the machine does not run to its end.
    """
    n = len(stream.funct)
    plain, origin = unroll_stream(stream, spec.machine)
    check_stream(stream, plain, origin, spec.machine)
    made = len(plain.funct) if stream.has_loops else 0
    commands = np.full((COMMAND_ROWS, n + made), -1, np.int64)
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
    """Cycles of a stream (n,) and the events of its commands, (n,) each; of loops, only `accept`.

    `setting` overrides keys of the machine, such as `memory_latency_cycles`. Raises
    `TilewrightError`.
    """
    if isinstance(machine, GemminiSpec):
        machine = machine.model_dump()
    spec = GemminiSpec.from_mapping({**(machine or {}), **(setting or {})})
    stream = stream_of(funct, rs1, rs2)
    times = time_stream(stream, spec)
    kept = ("accept",) if stream.has_loops else EVENT_NAMES
    return times.total, {name: times.events[name] for name in kept}


def _hang(stream: CommandStream, complete: NDArray[np.int64]) -> StreamFault:
    """The first command that never completes."""
    waits = (complete < 0) & (stream.funct != FENCE) & (stream.funct != FLUSH)
    first = int(np.flatnonzero(waits)[0]) if waits.any() else len(stream.funct) - 1
    return StreamFault(first, int(stream.funct[first]), HANG, 0, 0)
