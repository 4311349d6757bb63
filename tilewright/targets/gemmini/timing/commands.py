"""Lays out the commands that a simulation may meet, and when each of them moved on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Commands = NDArray[np.int64]
"""(7, n + made): a stream with room for what loops make. Three rows say what a command is, four in
which cycle it moved on, -1 for what does not happen."""
FUNCT, RS1, RS2 = 0, 1, 2
ACCEPT, ALLOC, ISSUE, COMPLETE = 3, 4, 5, 6
COMMAND_ROWS = 7
EVENT_NAMES = ("accept", "alloc", "issue", "complete")
