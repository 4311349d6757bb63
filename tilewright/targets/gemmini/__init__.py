"""Gemmini, a systolic array with a scratchpad, as an exactly simulated target.

The package `timing` counts cycles without data; the module `functional` computes data without
cycles. The functions here are the simplest interface to both simulators. They import the simulators
on their first call.
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
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        memory: memory image before the stream; `memory[0]` is at address `base`.
        base: address of the memory image.
        machine: specification, or a mapping with the keys of a preset; the default machine if None.

    Raises:
        TilewrightError: the stream is invalid, or does not finish.
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
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        setting: overrides for keys of the machine, such as `memory_latency_cycles`.
        machine: specification, or a mapping with the keys of a preset; the default machine if None.

    Returns:
        Total number of cycles, and the cycle of the events accept, alloc, issue and complete of
        each command, arrays of shape (n,).

    Raises:
        TilewrightError: the stream is invalid, or does not finish.
    """
    from tilewright.targets.gemmini.timing import cycles as run

    return run(funct, rs1, rs2, setting, machine)
