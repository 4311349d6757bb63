"""Replaces each LOOP_WS by the commands it stands for, in program order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini import faults as f
from tilewright.targets.gemmini.faults import StreamFault, stream_error
from tilewright.targets.gemmini.isa import LOOP_STRIDES_DC, LOOP_WS
from tilewright.targets.gemmini.loop_commands import (
    C_ADDRESS,
    C_BASE,
    LOOP_ACTIVATION,
    LOOP_ID,
    LOOP_SETTINGS,
    LOOPS,
    MAX_I,
    MAX_J,
    MAX_K,
    commands_of,
    set_loop,
    unroll_loop,
)
from tilewright.targets.gemmini.spec import GemminiMachine
from tilewright.targets.gemmini.stream import CommandStream

MOST_LOOP_COMMANDS = 1 << 22
"""Commands of one loop that are unrolled; longer ones are refused."""


def unrolled(
    stream: CommandStream, machine: GemminiMachine
) -> tuple[CommandStream, NDArray[np.int64]]:
    """The stream (n,) without loops, and of each command (m,) the index it comes from.

    Raises `StreamError` for a loop that never ends or that asks for what the machine lacks.
    """
    if not stream.has_loops:
        return stream, np.arange(len(stream.funct))
    loops = np.zeros((LOOPS, LOOP_SETTINGS), np.int64)
    pieces: list[CommandStream] = []
    origins: list[NDArray[np.int64]] = []
    started, base, plain_from = 0, 0, 0
    for n, funct in enumerate(stream.funct.tolist()):
        if not LOOP_WS <= funct <= LOOP_STRIDES_DC:
            continue
        pieces.append(stream.part(plain_from, n))
        origins.append(np.arange(plain_from, n))
        plain_from = n + 1
        loop = loops[started % LOOPS]
        set_loop(loop, funct, stream.rs1[n], stream.rs2[n])
        if funct == LOOP_WS:
            loop[LOOP_ID], loop[C_BASE] = started % LOOPS, base
            pieces.append(_commands(loop, machine, n))
            origins.append(np.full(len(pieces[-1].funct), n))
            started += 1
            if loop[C_ADDRESS] != 0:
                base = (base + machine.accumulator_rows // LOOPS) % machine.accumulator_rows
    pieces.append(stream.part(plain_from, len(stream.funct)))
    origins.append(np.arange(plain_from, len(stream.funct)))
    plain = CommandStream(
        np.concatenate([piece.funct for piece in pieces]),
        np.concatenate([piece.rs1 for piece in pieces]),
        np.concatenate([piece.rs2 for piece in pieces]),
    )
    return plain, np.concatenate(origins)


def _commands(loop: NDArray[np.int64], machine: GemminiMachine, n: int) -> CommandStream:
    if min(loop[MAX_I], loop[MAX_J], loop[MAX_K]) == 0:
        raise stream_error(StreamFault(n, LOOP_WS, f.LOOP_INCOMPLETE, 0, 0))
    if loop[LOOP_ACTIVATION] > 1:
        raise stream_error(
            StreamFault(n, LOOP_WS, f.UNSUPPORTED_LOOP, int(loop[LOOP_ACTIVATION]), 0)
        )
    most = commands_of(loop)
    if most > MOST_LOOP_COMMANDS:
        raise stream_error(StreamFault(n, LOOP_WS, f.LOOP_TOO_LONG, most, MOST_LOOP_COMMANDS))
    out = CommandStream(
        np.zeros(most, np.uint8), np.zeros(most, np.uint64), np.zeros(most, np.uint64)
    )
    count = unroll_loop(machine, loop, out.funct, out.rs1, out.rs2, 0)
    return out.part(0, count)
