"""Implements the VTA target: specification, instruction set, lowering and the two simulators.

The functions here are the short way in; they import their machinery when first called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.targets.vta.spec import VtaSpec


def cycles(
    insn_bytes: bytes, spec: Mapping[str, object] | VtaSpec
) -> tuple[int, list[tuple[str, int, int]]]:
    """Cycles from launch to FINISH, and (module, start, end) of every instruction.

    `spec` is a `VtaSpec` or the keys of `vta_config.json` plus those of the memory port; the key
    `insn_address` gives the byte address of the first instruction (0 if absent).
    """
    from tilewright.targets.vta.timing import cycles as run

    return run(insn_bytes, spec)


def execute(
    insn_bytes: bytes, dram: bytes, base: int, spec: Mapping[str, object] | VtaSpec
) -> bytes:
    """The memory image after a stream of 16-byte instructions; `dram[0]` is at address `base`.

    `spec` is a `VtaSpec` or the keys of `vta_config.json`. Raises `TilewrightError` for a stream
    that does not run to its end.
    """
    from tilewright.targets.vta.functional import execute as run

    return run(insn_bytes, dram, base, spec)


def classify(
    insn_bytes: bytes, dram: bytes, base: int, spec: Mapping[str, object] | VtaSpec
) -> set[str]:
    """The classes of everything invalid or not portable in a stream, empty for a clean one."""
    from tilewright.targets.vta.lint import classify as run

    return run(insn_bytes, dram, base, spec)
