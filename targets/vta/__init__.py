"""The VTA target: specification, instruction set, lowering and the two simulators.

The functions here are the short way in; they import their machinery when first called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from targets.vta.spec import VtaSpec


def cycles(
    insn_bytes: bytes, spec: Mapping[str, object] | VtaSpec
) -> tuple[int, list[tuple[str, int, int]]]:
    """Cycles from launch to FINISH, and (module, start, end) of every instruction.

    `spec` is a `VtaSpec` or the keys of `vta_config.json` plus those of the memory port; the key
    `insn_address` gives the byte address of the first instruction (0 if absent).
    """
    from targets.vta.timing import cycles as run

    return run(insn_bytes, spec)
