"""When each instruction of a VTA program starts and ends, exact to the clock cycle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from targets.vta.isa import MODULE_NAMES, layout_of, module_of
from targets.vta.program import words_of
from targets.vta.spec import VtaSpec
from targets.vta.timing.stepped import step


def cycles(
    insn_bytes: bytes, spec: Mapping[str, object] | VtaSpec
) -> tuple[int, list[tuple[str, int, int]]]:
    """Total cycles, and (module, start, end) of each instruction in program order."""
    address = 0
    if not isinstance(spec, VtaSpec):
        address = int(spec.get("insn_address", 0))  # type: ignore[call-overload]
        spec = VtaSpec.from_mapping(dict(spec))
    insns = words_of(insn_bytes)
    starts, ends = np.zeros(len(insns), np.int64), np.zeros(len(insns), np.int64)
    total = step(
        insns, address, spec.machine, layout_of(spec), np.zeros(4, np.int64), starts, ends,
        np.zeros(6, np.int64), 1 << 40,
    )  # fmt: skip
    modules = [module_of(int(lo) & 7, int(lo) >> 7 & 7) for lo in insns[:, 0]]
    events = zip(modules, starts.tolist(), ends.tolist(), strict=True)
    return total, [(MODULE_NAMES[m], start, end) for m, start, end in events]
