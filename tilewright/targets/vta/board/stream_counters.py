"""Counts what a stream of instructions moves and computes, without running it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.board.instruction_fields import Words, field, memories, moves, opcodes
from tilewright.targets.vta.isa import ACC, ALU, GEMM, INP, OUT, UOP, WGT, fields_of, layout_of
from tilewright.targets.vta.spec import VtaSpec


def counters_of(words: Words, spec: VtaSpec) -> dict[str, NDArray[np.int64]]:
    """Of instructions (n, 2) together, each of shape (1,), named as the counters of a measurement:
    bytes without padding, iterations without those that reset accumulators."""
    m, moved = spec.machine, words[moves(words)]
    elements = field(moved, 64, 16) * field(moved, 80, 16)
    memory = memories(moved)
    sizes = {
        "inp_load_bytes": (INP, m.inp_bytes), "wgt_load_bytes": (WGT, m.wgt_bytes),
        "acc_load_bytes": (ACC, m.acc_bytes), "uop_load_bytes": (UOP, m.uop_bytes),
        "out_store_bytes": (OUT, m.out_bytes),
    }  # fmt: skip
    found = {name: elements[memory == kind].sum() * size for name, (kind, size) in sizes.items()}
    found |= {
        "gemm_iterations": _iterations(words, GEMM, spec),
        "alu_iterations": _iterations(words, ALU, spec),
        "instructions": np.int64(len(words)),
    }
    return {name: np.array([value], np.int64) for name, value in found.items()}


def _iterations(words: Words, opcode: int, spec: VtaSpec) -> np.int64:
    """Micro-ops that instructions of an opcode execute."""
    own = words[opcodes(words) == opcode]
    values = {
        each.name: field(own, each.offset, each.width)
        for each in fields_of(opcode, layout_of(spec))[:5]
    }
    each = (values["uop_end"] - values["uop_bgn"]) * values["iter_out"] * values["iter_in"]
    return np.int64(each[values["reset_reg"] == 0].sum())
