"""Hidden features: what a program reveals once it is lowered, before anything runs."""

from __future__ import annotations

from targets.features import Feature, Meaning, Unit
from targets.vta.lowering import emit

_HIDDEN: tuple[tuple[str, int, Meaning, Unit, str], ...] = (
    ("instructions", emit.COUNT, "instructions", "", "instructions, FINISH included"),
    ("uops", emit.UOPS, "", "compute", "micro-ops of all kernels"),
    ("inp_loads", emit.INP_LOADS, "", "load", "DMA instructions that load inputs"),
    ("wgt_loads", emit.WGT_LOADS, "", "load", "DMA instructions that load weights"),
    ("acc_loads", emit.ACC_LOADS, "", "compute", "DMA instructions that load bias or residual"),
    ("uop_loads", emit.UOP_LOADS, "", "compute", "DMA instructions that load micro-ops"),
    ("stores", emit.STORES, "", "store", "DMA instructions that store outputs"),
    ("gemms", emit.GEMMS, "", "compute", "GEMM instructions, resets included"),
    ("alus", emit.ALUS, "", "compute", "ALU instructions"),
    ("nops", emit.NOPS, "", "compute", "instructions that only pass tokens"),
    ("tokens", emit.TOKENS, "", "", "dependency tokens pushed"),
    (
        "inp_bytes",
        emit.INP_BYTES,
        "bytes",
        "load",
        "input bytes read from DRAM, padding not counted",
    ),
    ("wgt_bytes", emit.WGT_BYTES, "bytes", "load", "weight bytes read from DRAM"),
    ("acc_bytes", emit.ACC_BYTES, "bytes", "compute", "bias and residual bytes read from DRAM"),
    ("out_bytes", emit.OUT_BYTES, "bytes", "store", "output bytes written to DRAM"),
    (
        "gemm_iterations",
        emit.GEMM_ITERATIONS,
        "work",
        "compute",
        "micro-ops executed by GEMM, resets not counted",
    ),
    ("reset_iterations", emit.RESET_ITERATIONS, "work", "compute", "accumulator elements reset"),
    ("alu_iterations", emit.ALU_ITERATIONS, "work", "compute", "micro-ops executed by the ALU"),
    ("inp_rows", emit.INP_ROWS, "", "load", "DMA rows of all input loads"),
    ("out_rows", emit.OUT_ROWS, "", "store", "DMA rows of all stores (each starts a burst)"),
    ("padded", emit.PADDED, "padding", "load", "zero elements written by input loads"),
    ("tiles", emit.TILES, "", "", "output tiles"),
    ("steps", emit.STEPS, "", "", "reduction steps of all tiles"),
    ("inp_used", emit.INP_USED, "", "", "input scratchpad elements occupied"),
    ("wgt_used", emit.WGT_USED, "", "", "weight scratchpad elements occupied"),
    ("acc_used", emit.ACC_USED, "", "", "accumulator elements occupied"),
    (
        "first_exposed",
        emit.FIRST_LOADED,
        "waiting",
        "",
        "bytes loaded before the first GEMM can start",
    ),
    (
        "load_exposed",
        emit.EXPOSED_LOADS,
        "waiting",
        "",
        "later bytes loaded that compute cannot hide",
    ),
    ("store_exposed", emit.EXPOSED_STORES, "waiting", "", "bytes stored that compute cannot hide"),
    (
        "last_exposed",
        emit.LAST_STORED,
        "waiting",
        "",
        "bytes stored after the last ALU instruction",
    ),
    ("last_work", emit.LAST_ITERATIONS, "last work", "", "micro-ops executed after the last load"),
)
"""Name, place in the emitter's state, meaning, unit kept busy, text with unit. All are counts."""

HIDDEN = tuple(Feature(name, meaning, unit, text) for name, _, meaning, unit, text in _HIDDEN)
HIDDEN_SLOTS = tuple(slot for _, slot, _, _, _ in _HIDDEN)
