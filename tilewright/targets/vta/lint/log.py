"""Stores what compiled checks find."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.njit_args import helper

CAPACITY = 1 << 16
"""Findings kept with their instruction; of further ones only the class is kept."""


class Log(NamedTuple):
    """Rows (class, instruction, value, limit, extra), their number, and the classes met."""

    rows: NDArray[np.int64]
    filled: NDArray[np.int64]  # (1,)
    met: NDArray[np.uint8]  # (64,) by class


def empty_log() -> Log:
    """A log without entries."""
    return Log(np.empty((CAPACITY, 5), np.int64), np.zeros(1, np.int64), np.zeros(64, np.uint8))


@helper
def note(log: Log, kind: int, instruction: int, value: int, limit: int, extra: int) -> None:
    """Append one finding."""
    log.met[kind] = 1
    if log.filled[0] < len(log.rows):
        row = log.rows[log.filled[0]]
        row[0], row[1], row[2], row[3], row[4] = kind, instruction, value, limit, extra
        log.filled[0] += 1


def rename(log: Log, kind: int, to: int) -> None:
    """Turn the findings of one class into those of another."""
    kinds = log.rows[: int(log.filled[0]), 0]
    kinds[kinds == kind] = to
    log.met[kind], log.met[to] = 0, 1
