"""Hidden features: what a program reveals once it is lowered, before anything runs."""

from __future__ import annotations

from tilewright.targets.features import Feature, Meaning, Unit
from tilewright.targets.vta.lowering import instruction_writer

_HIDDEN: tuple[tuple[str, int, Meaning, Unit, str], ...] = (
    ("instructions", instruction_writer.COUNT, "instructions", "", "instructions, FINISH included"),
    ("uops", instruction_writer.UOPS, "", "compute", "micro-ops of all kernels"),
    ("inp_loads", instruction_writer.INP_LOADS, "", "load", "DMA instructions that load inputs"),
    ("wgt_loads", instruction_writer.WGT_LOADS, "", "load", "DMA instructions that load weights"),
    (
        "acc_loads",
        instruction_writer.ACC_LOADS,
        "",
        "compute",
        "DMA instructions that load bias or residual",
    ),
    (
        "uop_loads",
        instruction_writer.UOP_LOADS,
        "",
        "compute",
        "DMA instructions that load micro-ops",
    ),
    ("stores", instruction_writer.STORES, "", "store", "DMA instructions that store outputs"),
    ("gemms", instruction_writer.GEMMS, "", "compute", "GEMM instructions, resets included"),
    ("alus", instruction_writer.ALUS, "", "compute", "ALU instructions"),
    ("nops", instruction_writer.NOPS, "", "compute", "instructions that only pass tokens"),
    ("tokens", instruction_writer.TOKENS, "", "", "dependency tokens pushed"),
    (
        "inp_bytes",
        instruction_writer.INP_BYTES,
        "bytes",
        "load",
        "input bytes read from DRAM, padding not counted",
    ),
    ("wgt_bytes", instruction_writer.WGT_BYTES, "bytes", "load", "weight bytes read from DRAM"),
    (
        "acc_bytes",
        instruction_writer.ACC_BYTES,
        "bytes",
        "compute",
        "bias and residual bytes read from DRAM",
    ),
    ("out_bytes", instruction_writer.OUT_BYTES, "bytes", "store", "output bytes written to DRAM"),
    (
        "gemm_iterations",
        instruction_writer.GEMM_ITERATIONS,
        "work",
        "compute",
        "micro-ops executed by GEMM, resets not counted",
    ),
    (
        "reset_iterations",
        instruction_writer.RESET_ITERATIONS,
        "work",
        "compute",
        "accumulator elements reset",
    ),
    (
        "alu_iterations",
        instruction_writer.ALU_ITERATIONS,
        "work",
        "compute",
        "micro-ops executed by the ALU",
    ),
    ("inp_rows", instruction_writer.INP_ROWS, "", "load", "DMA rows of all input loads"),
    (
        "out_rows",
        instruction_writer.OUT_ROWS,
        "",
        "store",
        "DMA rows of all stores (each starts a burst)",
    ),
    (
        "padded",
        instruction_writer.PADDED,
        "padding",
        "load",
        "zero elements written by input loads",
    ),
    ("tiles", instruction_writer.TILES, "", "", "output tiles"),
    ("steps", instruction_writer.STEPS, "", "", "reduction steps of all tiles"),
    ("inp_used", instruction_writer.INP_USED, "", "", "input scratchpad elements occupied"),
    ("wgt_used", instruction_writer.WGT_USED, "", "", "weight scratchpad elements occupied"),
    ("acc_used", instruction_writer.ACC_USED, "", "", "accumulator elements occupied"),
    (
        "first_exposed",
        instruction_writer.FIRST_LOADED,
        "waiting",
        "",
        "bytes loaded before the first GEMM can start",
    ),
    (
        "load_exposed",
        instruction_writer.EXPOSED_LOADS,
        "waiting",
        "",
        "later bytes loaded that compute cannot hide",
    ),
    (
        "store_exposed",
        instruction_writer.EXPOSED_STORES,
        "waiting",
        "",
        "bytes stored that compute cannot hide",
    ),
    (
        "last_exposed",
        instruction_writer.LAST_STORED,
        "waiting",
        "",
        "bytes stored after the last ALU instruction",
    ),
    (
        "last_work",
        instruction_writer.LAST_ITERATIONS,
        "last work",
        "",
        "micro-ops executed after the last load",
    ),
)
"""Name, place in the emitter's state, meaning, unit kept busy, text with unit. All are counts."""

HIDDEN = tuple(Feature(name, meaning, unit, text) for name, _, meaning, unit, text in _HIDDEN)
HIDDEN_SLOTS = tuple(slot for _, slot, _, _, _ in _HIDDEN)
