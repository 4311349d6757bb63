"""What compiling reveals of a kernel: LLVM's instruction mix, spills and code size."""

from __future__ import annotations

import re
from typing import Any

from targets.features import Feature

COLUMNS = (
    Feature("fused_multiply_adds", "work", "compute", "vector multiply-adds in the code"),
    Feature("broadcasts", "instructions", "load", "broadcasts of one number into a vector"),
    Feature("vector_loads", "instructions", "load", "vector moves from memory"),
    Feature("spills", "waiting", "", "vector moves to and from the stack"),
    Feature("wide_share", "", "", "share of vector instructions on the widest registers"),
    Feature("instructions", "instructions", "", "instructions of the whole function"),
    Feature("branches", "", "", "jumps and calls"),
)

_LINE = re.compile(r"^\t([a-z]\w*)\t?(.*)$", re.MULTILINE)


def hidden_features(function: Any, assembly: str) -> tuple[float, ...]:
    """A number a column of `COLUMNS`, from the scheduled TensorIR function and LLVM's assembly."""
    fma = broadcast = loads = spills = wide = vectors = total = branches = 0
    for op, operands in _LINE.findall(assembly):
        total += 1
        if op.startswith("j") or op.startswith("call"):
            branches += 1
        if not op.startswith("v"):
            continue
        vectors += 1
        wide += "%zmm" in operands
        fma += "fmadd" in op or "fmla" in op
        broadcast += "broadcast" in op or "{1to" in operands
        if op.startswith("vmov"):
            if "(%rsp)" in operands or "(%rbp)" in operands:
                spills += 1
            elif "(" in operands.rpartition(",")[0]:
                loads += 1
    share = wide / vectors if vectors else 0.0
    return tuple(map(float, (fma, broadcast, loads, spills, share, total, branches)))
