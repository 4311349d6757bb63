"""Holds the commands that a simulation may meet, and when each of them moved on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Rows of `Commands.times`
ACCEPT, ALLOC, ISSUE, COMPLETE = 0, 1, 2, 3
EVENT_NAMES = ("accept", "alloc", "issue", "complete")


class Commands(NamedTuple):
    """Argument of compiled code: a stream with room for what loops make, and its times."""

    funct: NDArray[np.int64]  # (n + made,)
    rs1: NDArray[np.uint64]
    rs2: NDArray[np.uint64]
    times: NDArray[np.int64]  # (4, n + made), cycles, -1 for what does not happen
    requests: NDArray[np.int64]  # (room, 3): cycle, xact, bytes of each request at the port
    loops: NDArray[np.int64]  # (2, LOOP_SETTINGS)
