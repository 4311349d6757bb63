"""Reads what compiling reveals of a kernel: what its loops touch, and what LLVM made of them."""

from __future__ import annotations

from typing import Any

from tilewright.targets.cpu.assembly import mix_of
from tilewright.targets.cpu.store_features import STORE_COLUMNS, store_features
from tilewright.targets.features import Feature

CODE_COLUMNS = (
    Feature("fused_share", "", "compute", "vector multiply-adds, of all vector instructions"),
    Feature("broadcast_share", "", "load", "numbers copied into all of a vector, likewise"),
    Feature("load_share", "", "load", "vector moves from memory, likewise"),
    Feature("store_share", "", "store", "vector moves to memory, likewise"),
    Feature("spill_share", "", "", "vector moves to and from the stack, likewise"),
    Feature("wide_share", "", "", "those on the widest registers in use, likewise"),
    Feature("instructions", "", "", "in the text of the functions that compute"),
    Feature("branches", "", "", "jumps and calls in the text"),
    Feature("spills", "", "", "vector moves to and from the stack in the text"),
    Feature("stack_bytes", "", "", "of the functions' frames"),
    Feature("code_bytes", "", "", "of the library"),
)
COLUMNS = (*STORE_COLUMNS, *CODE_COLUMNS)
"""None has a meaning that models sum up: counts in a program's text are not counts of what runs,
and sums over stores leave out what the caches do. Models see each column by itself."""


def hidden_features(
    function: Any, target: Any, assembly: str, code_bytes: int
) -> tuple[float, ...]:
    """A number a column of `COLUMNS`, from the scheduled TensorIR function and LLVM's assembly."""
    mix = mix_of(assembly)
    vectors = max(mix.vectors, 1)
    shares = (mix.fused, mix.broadcasts, mix.vector_loads, mix.vector_stores, mix.spills, mix.wide)
    code = (mix.total, mix.branches, mix.spills, mix.stack_bytes, code_bytes)
    return (
        *store_features(function, target),
        *(share / vectors for share in shares),
        *map(float, code),
    )
