"""Runs one command stream in program order, as one compiled call that releases the GIL.

Main memory is `memory` (bytes,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.compiled import compiled, stage
from tilewright.targets.gemmini.functional.memories import Memories
from tilewright.targets.gemmini.functional.product import compute, preload
from tilewright.targets.gemmini.functional.transfer import mvin, mvout
from tilewright.targets.gemmini.isa import MVOUT, PRELOAD, is_compute, is_mvin
from tilewright.targets.gemmini.registers import Registers
from tilewright.targets.gemmini.spec import GemminiMachine
from tilewright.targets.gemmini.validity import check_command


@compiled
def run_stream(
    m: GemminiMachine,
    funct: NDArray[np.uint8],
    rs1: NDArray[np.uint64],
    rs2: NDArray[np.uint64],
    memory: NDArray[np.uint8],
    base: int,
    regs: Registers,
    mems: Memories,
    fault: NDArray[np.int64],
) -> int:
    """Execute commands (n,); the fault that stopped the stream, 0 if none did.

    Args:
        memory: image, changed in place; `memory[0]` has address `base`.
        fault: (3,) filled with value, limit and the command's index.
    """
    for n in range(len(funct)):
        code = check_command(m, regs, int(funct[n]), rs1[n], rs2[n], base, memory.size, fault)
        if code != 0:
            fault[2] = n
            return code
        execute_command(m, int(funct[n]), rs1[n], rs2[n], memory, base, regs, mems)
    return 0


@stage
def execute_command(
    m: GemminiMachine,
    funct: int,
    a: int,
    b: int,
    memory: NDArray[np.uint8],
    base: int,
    regs: Registers,
    mems: Memories,
) -> None:
    """One command that has no fault; a CONFIG has been carried out already."""
    if is_mvin(funct):
        mvin(m, regs, mems, funct, a, b, memory, base)
    elif funct == MVOUT:
        mvout(m, regs, mems, a, b, memory, base)
    elif funct == PRELOAD:
        preload(m, regs, mems, a, b)
    elif is_compute(funct):
        compute(m, regs, mems, funct, a, b)
