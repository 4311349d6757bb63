"""The VTA target: specification, instruction set, lowering and two exact simulators.

The functions here are the simplest interface to the simulators and the linter. They import them on
their first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.targets.vta.spec import VtaSpec


def cycles(
    insn_bytes: bytes, spec: Mapping[str, object] | VtaSpec
) -> tuple[int, list[tuple[str, int, int]]]:
    """Simulate the timing of a program.

    Args:
        insn_bytes: instructions of 16 bytes each.
        spec: specification, or a mapping with the keys of `vta_config.json` and of the memory port.
            The key `insn_address` is the byte address of the first instruction, by default 0.

    Returns:
        Cycles from launch to FINISH, and (module, start cycle, end cycle) of each instruction.
    """
    from tilewright.targets.vta.timing import cycles as run

    return run(insn_bytes, spec)


def execute(
    insn_bytes: bytes, dram: bytes, base: int, spec: Mapping[str, object] | VtaSpec
) -> bytes:
    """Execute a program and return the memory image after it.

    Args:
        insn_bytes: instructions of 16 bytes each.
        dram: memory image before the program; `dram[0]` is at address `base`.
        base: byte address of the memory image.
        spec: specification, or a mapping with the keys of `vta_config.json`.

    Raises:
        TilewrightError: the program is invalid, or does not finish.
    """
    from tilewright.targets.vta.functional import execute as run

    return run(insn_bytes, dram, base, spec)


def classify(
    insn_bytes: bytes, dram: bytes, base: int, spec: Mapping[str, object] | VtaSpec
) -> set[str]:
    """Return the classes of problems that the linter finds in a program: invalid or not portable.

    Args:
        insn_bytes: instructions of 16 bytes each.
        dram: memory image before the program; `dram[0]` is at address `base`.
        base: byte address of the memory image.
        spec: specification, or a mapping with the keys of `vta_config.json`.

    Returns:
        Names of the classes; empty if the linter finds nothing.
    """
    from tilewright.targets.vta.lint import classify as run

    return run(insn_bytes, dram, base, spec)
