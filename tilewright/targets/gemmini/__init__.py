"""Gemmini: a systolic array with a scratchpad, simulated exactly.

`timing` counts cycles without data, `functional` computes data without cycles. The functions here
are the short way in; they import their machinery when first called.
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
    """Return the memory image after a stream of commands; `memory[0]` is at address `base`.

    Args:
        funct: function codes, shape (n,).
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        memory: the memory image before the stream.
        base: the address of the image.
        machine: a specification, or the keys of a preset; the default machine if left out.

    Raises:
        TilewrightError: the stream does not run to its end.
    """
    from tilewright.targets.gemmini.functional import execute as run

    return run(funct, rs1, rs2, memory, base, machine)


def cycles(
    funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike, setting: Mapping[str, object] | None = None,
    machine: GemminiSpec | Mapping[str, object] | None = None,
) -> tuple[int, dict[str, NDArray[np.int64]]]:  # fmt: skip
    """Return the cycles of a stream of commands, and when each command moved on.

    Args:
        funct: function codes, shape (n,).
        rs1: first operands, shape (n,).
        rs2: second operands, shape (n,).
        setting: overrides keys of the machine, such as `memory_latency_cycles`.
        machine: a specification, or the keys of a preset; the default machine if left out.

    Returns:
        The cycles, and the events accept, alloc, issue and complete, each in cycles, shape (n,).

    Raises:
        TilewrightError: the stream does not run to its end.
    """
    from tilewright.targets.gemmini.timing import cycles as run

    return run(funct, rs1, rs2, setting, machine)
