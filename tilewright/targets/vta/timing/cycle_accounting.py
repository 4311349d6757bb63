"""Accounts for the units' cycles: puts every cycle before FINISH into one column.

`breakdown` is (units, BREAKDOWN_COLUMNS); `total` the cycle of FINISH, negative until it is known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.njit_args import helper, stage
from tilewright.targets.vta.timing.outcome import (
    DECIDING,
    EXECUTING,
    TRANSFERRING,
    WAITING_INSTRUCTION,
    WAITING_MEMORY,
    WAITING_TOKEN,
)


@stage
def spend(
    breakdown: NDArray[np.int64], module: int, column: int, begin: int, end: int, total: int
) -> None:
    """Account the cycles [begin, end) of a module, as far as they lie before FINISH, in
    `breakdown` (units, columns)."""
    if total >= 0:
        end = min(end, total)
    if end > begin:
        breakdown[module, column] += end - begin


@helper
def account_wait(
    breakdown: NDArray[np.int64], module: int, first: int, first_since: int, second: int,
    second_since: int, idle_since: int, visible: int, now: int, total: int,
) -> int:  # fmt: skip
    """Account the cycles before a decision: for the instruction, then for its tokens, the cycle of
    the decision itself. Returns the cycle after it.

    `breakdown` (units, columns). `first` and `second` are the token queues popped, -1 for none;
    their tokens are there since `first_since` and `second_since`.
    """
    begin = max(idle_since, visible)
    spend(breakdown, module, WAITING_INSTRUCTION, idle_since, begin, total)
    if first >= 0 and first_since > begin:
        spend(breakdown, module, WAITING_TOKEN + first, begin, first_since, total)
        begin = first_since
    if second >= 0 and second_since > begin:
        spend(breakdown, module, WAITING_TOKEN + second, begin, second_since, total)
    spend(breakdown, module, DECIDING, now, now + 1, total)
    return now + 1


@helper
def account_end(
    breakdown: NDArray[np.int64], module: int, client: int, beats: int, begin: int, end: int,
    total: int,
) -> int:  # fmt: skip
    """Account the execute cycles of an instruction; a load's are its beats and waiting for them.

    `breakdown` (units, columns). Returns `end`.
    """
    if client < 0:
        spend(breakdown, module, EXECUTING, begin, end, total)
    else:
        moved = min(begin + beats, end)
        spend(breakdown, module, TRANSFERRING, begin, moved, total)
        spend(breakdown, module, WAITING_MEMORY, moved, end, total)
    return end
