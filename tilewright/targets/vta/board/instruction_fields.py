"""Reads and writes fields of many instructions at once: words (n, 2), low and high."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import (
    GEMM,
    INP,
    LOAD,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    OUT,
    STORE,
    UOP,
    WGT,
)
from tilewright.targets.vta.spec import Machine

Words = NDArray[np.uint64]
Rows = NDArray[np.int64]

POPS, PUSHES = 8 | 16, 32 | 64
"""The flags by which an instruction takes tokens, and those by which it gives some."""
_DRAM_AT, _DRAM_BITS = 26, 32


def field(words: Words, offset: int, width: int) -> Rows:
    """The unsigned field of `width` bits at bit `offset` of instructions, words (n, 2); (n,)."""
    word = words[:, offset >> 6] >> np.uint64(offset & 63)
    return (word & np.uint64((1 << width) - 1)).astype(np.int64)


def opcodes(words: Words) -> Rows:
    """Of instructions, words (n, 2); (n,)."""
    return field(words, 0, 3)


def memories(words: Words) -> Rows:
    """The memory types of LOADs and STOREs, words (n, 2); (n,). A STORE's is always OUT."""
    return np.where(opcodes(words) == STORE, OUT, field(words, 7, 3))


def modules(words: Words) -> Rows:
    """The module that executes each instruction, words (n, 2); (n,)."""
    memory, opcode = field(words, 7, 3), opcodes(words)
    loads = (opcode == LOAD) & ((memory == INP) | (memory == WGT))
    return np.where(opcode == STORE, MODULE_STORE, np.where(loads, MODULE_LOAD, MODULE_COMPUTE))


def moves(words: Words) -> NDArray[np.bool_]:
    """Which instructions, words (n, 2), move data between memory and a scratchpad; (n,)."""
    opcode = opcodes(words)
    return ((opcode == LOAD) | (opcode == STORE)) & (field(words, 80, 16) > 0)


def multiplies(words: Words) -> NDArray[np.bool_]:
    """Which instructions, words (n, 2), are GEMMs that read inputs and weights; (n,)."""
    return (opcodes(words) == GEMM) & (field(words, 7, 1) == 0)


def dram_bases(words: Words) -> Rows:
    """Where in memory transfers begin, in elements of their memory type; words (n, 2); (n,)."""
    return field(words, _DRAM_AT, _DRAM_BITS)


def with_dram_bases(words: Words, bases: Rows) -> Words:
    """The transfers, words (n, 2), with other begins, (n,), each at least 0 and below 2^32."""
    mask = np.uint64(((1 << _DRAM_BITS) - 1) << _DRAM_AT)
    changed = words.copy()
    changed[:, 0] &= ~mask
    changed[:, 0] |= bases.astype(np.uint64) << np.uint64(_DRAM_AT)
    return changed


def extents(words: Words) -> Rows:
    """From a transfer's first to behind its last element in memory; words (n, 2); (n,)."""
    rows, columns, pitch = (field(words, at, 16) for at in (64, 80, 96))
    return np.where(rows > 0, (rows - 1) * pitch + columns, 0)


def element_bytes(m: Machine) -> Rows:
    """Bytes of an element by memory type, shape (5,)."""
    return np.array([m.uop_bytes, m.wgt_bytes, m.inp_bytes, m.acc_bytes, m.out_bytes], np.int64)


def no_op(module: int, flags: int) -> Words:
    """One instruction, (1, 2), that only passes tokens."""
    opcode, memory = (STORE, UOP) if module == MODULE_STORE else (LOAD, UOP)
    if module == MODULE_LOAD:
        memory = INP
    return np.array([[opcode | flags | memory << 7, 0]], np.uint64)


__all__ = [
    "POPS", "PUSHES", "WGT", "Rows", "Words", "dram_bases", "element_bytes", "extents", "field",
    "memories", "modules", "moves", "multiplies", "no_op", "opcodes", "with_dram_bases",
]  # fmt: skip
