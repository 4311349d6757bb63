"""Records what is known of a program while it is written: its counts and its open tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray


class ProgramState:
    """The fields of a record of int64, which compiled code reads and writes at its address."""

    # What the next instruction depends on.
    pops: int  # pop flags waiting for load, compute, store: two bits each, pop_prev the lower
    carrier: int  # module whose last instruction may take a push; -1 none
    pushed: int  # push flags of the last instruction
    problem: int  # failure code of something that could not be encoded

    # What is written.
    instructions: int
    uops: int
    inp_loads: int  # instructions by kind
    wgt_loads: int
    acc_loads: int
    uop_loads: int
    stores: int
    gemms: int
    alus: int
    nops: int
    tokens: int  # dependency flags set by a push
    inp_bytes: int  # transferred, padding not counted
    wgt_bytes: int
    acc_bytes: int
    uop_bytes: int
    out_bytes: int
    inp_rows: int  # DMA rows
    out_rows: int
    padded: int  # zero elements written by input loads
    gemm_iterations: int  # without reset
    alu_iterations: int
    reset_iterations: int

    # What a lowering knows of its tiles.
    tiles: int  # output tiles
    steps: int  # reduction steps of all of them
    inp_used: int  # elements of each scratchpad that the program occupies
    wgt_used: int
    acc_used: int

    # What the program waits for, see `stall_features`.
    first_loaded: int  # bytes
    exposed_loads: int
    exposed_stores: int
    last_stored: int
    last_iterations: int


FIELDS = tuple(ProgramState.__annotations__)
_RECORD = np.dtype((np.record, [(name, np.int64) for name in FIELDS]))


def new_states(programs: int) -> NDArray[np.void]:
    """Records of programs not begun, shape (programs,), with the fields of `ProgramState`."""
    return np.zeros(programs, _RECORD)


def new_state() -> ProgramState:
    """The record of one program not begun."""
    return cast(ProgramState, new_states(1)[0])


def columns(states: NDArray[np.void], names: Sequence[str]) -> NDArray[np.int64]:
    """Some fields of records (programs,), by their names: (programs, names)."""
    numbers = states.view(np.int64).reshape(len(states), len(FIELDS))
    return numbers[:, [FIELDS.index(name) for name in names]]
