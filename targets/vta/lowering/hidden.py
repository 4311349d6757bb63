"""Hidden features: what a program reveals once it is lowered, before anything runs."""

from __future__ import annotations

from targets.vta.lowering import emit

HIDDEN: tuple[tuple[str, int, str], ...] = (
    ("instructions", emit.COUNT, "instructions, FINISH included"),
    ("uops", emit.UOPS, "micro-ops of all kernels"),
    ("inp_loads", emit.INP_LOADS, "DMA instructions that load inputs"),
    ("wgt_loads", emit.WGT_LOADS, "DMA instructions that load weights"),
    ("acc_loads", emit.ACC_LOADS, "DMA instructions that load bias or residual"),
    ("uop_loads", emit.UOP_LOADS, "DMA instructions that load micro-ops"),
    ("stores", emit.STORES, "DMA instructions that store outputs"),
    ("gemms", emit.GEMMS, "GEMM instructions, resets included"),
    ("alus", emit.ALUS, "ALU instructions"),
    ("nops", emit.NOPS, "instructions that only pass tokens"),
    ("tokens", emit.TOKENS, "dependency tokens pushed"),
    ("inp_bytes", emit.INP_BYTES, "input bytes read from DRAM, padding not counted"),
    ("wgt_bytes", emit.WGT_BYTES, "weight bytes read from DRAM"),
    ("acc_bytes", emit.ACC_BYTES, "bias and residual bytes read from DRAM"),
    ("out_bytes", emit.OUT_BYTES, "output bytes written to DRAM"),
    ("gemm_iterations", emit.GEMM_ITERATIONS, "micro-ops executed by GEMM, resets not counted"),
    ("reset_iterations", emit.RESET_ITERATIONS, "accumulator elements reset"),
    ("alu_iterations", emit.ALU_ITERATIONS, "micro-ops executed by the ALU"),
    ("inp_rows", emit.INP_ROWS, "DMA rows of all input loads"),
    ("out_rows", emit.OUT_ROWS, "DMA rows of all stores (each starts a burst)"),
    ("padded", emit.PADDED, "zero elements written by input loads"),
    ("tiles", emit.TILES, "output tiles"),
    ("steps", emit.STEPS, "reduction steps of all tiles"),
    ("inp_used", emit.INP_USED, "input scratchpad elements occupied"),
    ("wgt_used", emit.WGT_USED, "weight scratchpad elements occupied"),
    ("acc_used", emit.ACC_USED, "accumulator elements occupied"),
    ("first_exposed", emit.FIRST_LOADED, "bytes loaded before the first GEMM can start"),
    ("load_exposed", emit.EXPOSED_LOADS, "later bytes loaded that compute cannot hide"),
    ("store_exposed", emit.EXPOSED_STORES, "bytes stored that compute cannot hide"),
    ("last_exposed", emit.LAST_STORED, "bytes stored after the last ALU instruction"),
    ("last_work", emit.LAST_ITERATIONS, "micro-ops executed after the last load"),
)
"""Name, place in the emitter's state, meaning with unit. All are counts."""

HIDDEN_NAMES = tuple(name for name, _, _ in HIDDEN)
HIDDEN_SLOTS = tuple(slot for _, slot, _ in HIDDEN)
