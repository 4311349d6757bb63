"""Target for the VTA accelerator: specification, instruction set, lowering and exact simulators.

The functions of this module are the simplest interface to the two simulators (function and timing)
and to the linter. The modules that implement them are imported on the first call.
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
        insn_bytes: instructions, 16 bytes each.
        spec: the machine, or a mapping with the keys of `vta_config.json` and the keys of the
            memory port. The mapping may also contain `insn_address`, the byte address of the first
            instruction (default 0).

    Returns:
        The cycles from launch to FINISH, and one tuple (module, start cycle, end cycle) per
        instruction.
    """
    from tilewright.targets.vta.timing import cycles as run

    return run(insn_bytes, spec)


def execute(
    insn_bytes: bytes, dram: bytes, base: int, spec: Mapping[str, object] | VtaSpec
) -> bytes:
    """Execute a program on the functional simulator and return the memory image after it.

    Args:
        insn_bytes: instructions, 16 bytes each.
        dram: memory image before the program; `dram[0]` is at address `base`.
        base: byte address of the memory image.
        spec: the machine, or a mapping with the keys of `vta_config.json`.

    Returns:
        The memory image after the program, of the same length as `dram`.

    Raises:
        TilewrightError: the program is invalid, or does not finish.
    """
    from tilewright.targets.vta.functional import execute as run

    return run(insn_bytes, dram, base, spec)


def classify(
    insn_bytes: bytes, dram: bytes, base: int, spec: Mapping[str, object] | VtaSpec
) -> set[str]:
    """Lint a program and return the classes of problems that were found.

    A problem is an invalid instruction, or behaviour that is not portable between implementations
    of the VTA.

    Args:
        insn_bytes: instructions, 16 bytes each.
        dram: memory image before the program; `dram[0]` is at address `base`.
        base: byte address of the memory image.
        spec: the machine, or a mapping with the keys of `vta_config.json`.

    Returns:
        Names of the problem classes; empty if there is no problem.
    """
    from tilewright.targets.vta.lint import classify as run

    return run(insn_bytes, dram, base, spec)
