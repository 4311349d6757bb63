"""Gemmini, a systolic array with a scratchpad, as a target that is simulated exactly.

There are two simulators. The package `timing` counts the cycles of a command stream without
computing its data. The module `functional` computes the data without counting cycles. `execute` and
`cycles` are the simplest interface to the two simulators. They import the simulators at their first
call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from tilewright.targets.gemmini.spec import GemminiSpec


def execute(
    funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike, memory: bytes, base: int,
    machine: GemminiSpec | Mapping[str, object] | None = None,
) -> bytes:  # fmt: skip
    """Execute a stream of commands and return the memory image after it.

    Args:
        funct: function codes, shape (n,).
        rs1: first operands of the commands, 64-bit integers of shape (n,).
        rs2: second operands of the commands, 64-bit integers of shape (n,).
        memory: memory image before the stream; `memory[0]` is at address `base`.
        base: address of the memory image.
        machine: specification of the machine, or a mapping with the keys of a preset; None for the
            default machine.

    Returns:
        The memory image after the stream, with the same size and base address.

    Raises:
        TilewrightError: the stream or the machine's specification is invalid.
    """
    from tilewright.targets.gemmini.functional import execute as run

    return run(funct, rs1, rs2, memory, base, machine)


def cycles(
    funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike, setting: Mapping[str, object] | None = None,
    machine: GemminiSpec | Mapping[str, object] | None = None,
) -> tuple[int, dict[str, NDArray[np.int64]]]:  # fmt: skip
    """Simulate the timing of a stream of commands.

    Args:
        funct: function codes, shape (n,).
        rs1: first operands of the commands, 64-bit integers of shape (n,).
        rs2: second operands of the commands, 64-bit integers of shape (n,).
        setting: overrides for keys of the machine, such as `memory_latency_cycles`.
        machine: specification of the machine, or a mapping with the keys of a preset; None for the
            default machine.

    Returns:
        Total number of cycles, and the cycles in which each command was accepted, allocated, issued
        and completed: int64 arrays of shape (n,) with the keys `accept`, `alloc`, `issue` and
        `complete`. A stream with hardware loops has only `accept`.

    Raises:
        TilewrightError: the stream or the machine's specification is invalid, or the stream does
            not finish.
    """
    from tilewright.targets.gemmini.timing import cycles as run

    return run(funct, rs1, rs2, setting, machine)
