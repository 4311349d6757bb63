"""Holds what commands change besides main memory: local memories and the array's registers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.spec import DIM, GemminiMachine


class Memories(NamedTuple):
    """Scratchpad, accumulator, array. Not to be shared between threads."""

    scratchpad: NDArray[np.int8]  # (rows, 16)
    accumulator: NDArray[np.int32]  # (rows, 16)
    weights: NDArray[np.int32]  # (2, 16, 16): in use, and those of the last PRELOAD
    sums: NDArray[np.int32]  # (16, 16), of output-stationary products
    operand: NDArray[np.int32]  # (3, 16, 16): A, B, D of the product at hand


def blank_memories(machine: GemminiMachine) -> Memories:
    """Zeroed memories, as after reset."""
    return Memories(
        np.zeros((machine.scratchpad_rows, DIM), np.int8),
        np.zeros((machine.accumulator_rows, DIM), np.int32),
        np.zeros((2, DIM, DIM), np.int32),
        np.zeros((DIM, DIM), np.int32),
        np.zeros((3, DIM, DIM), np.int32),
    )
