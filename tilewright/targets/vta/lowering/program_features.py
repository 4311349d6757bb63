"""Computes hidden features: what a program reveals once it is lowered, before anything runs."""

from __future__ import annotations

from tilewright.targets.features import Feature, Meaning, Unit

_HIDDEN: tuple[tuple[str, Meaning, Unit, str], ...] = (
    ("instructions", "instructions", "", "instructions, FINISH included"),
    ("uops", "", "compute", "micro-ops of all kernels"),
    ("inp_loads", "", "load", "DMA instructions that load inputs"),
    ("wgt_loads", "", "load", "DMA instructions that load weights"),
    ("acc_loads", "", "compute", "DMA instructions that load bias or residual"),
    ("uop_loads", "", "compute", "DMA instructions that load micro-ops"),
    ("stores", "", "store", "DMA instructions that store outputs"),
    ("gemms", "", "compute", "GEMM instructions, resets included"),
    ("alus", "", "compute", "ALU instructions"),
    ("nops", "", "compute", "instructions that only pass tokens"),
    ("tokens", "", "", "dependency tokens pushed"),
    ("inp_bytes", "bytes", "load", "input bytes read from DRAM, padding not counted"),
    ("wgt_bytes", "bytes", "load", "weight bytes read from DRAM"),
    ("acc_bytes", "bytes", "compute", "bias and residual bytes read from DRAM"),
    ("out_bytes", "bytes", "store", "output bytes written to DRAM"),
    ("gemm_iterations", "work", "compute", "micro-ops executed by GEMM, resets not counted"),
    ("reset_iterations", "work", "compute", "accumulator elements reset"),
    ("alu_iterations", "work", "compute", "micro-ops executed by the ALU"),
    ("inp_rows", "", "load", "DMA rows of all input loads"),
    ("out_rows", "", "store", "DMA rows of all stores (each starts a burst)"),
    ("padded", "padding", "load", "zero elements written by input loads"),
    ("tiles", "", "", "output tiles"),
    ("steps", "", "", "reduction steps of all tiles"),
    ("inp_used", "", "", "input scratchpad elements occupied"),
    ("wgt_used", "", "", "weight scratchpad elements occupied"),
    ("acc_used", "", "", "accumulator elements occupied"),
    ("first_exposed", "waiting", "", "bytes loaded before the first GEMM can start"),
    ("load_exposed", "waiting", "", "later bytes loaded that compute cannot hide"),
    ("store_exposed", "waiting", "", "bytes stored that compute cannot hide"),
    ("last_exposed", "waiting", "", "bytes stored after the last ALU instruction"),
    ("last_work", "last work", "", "micro-ops executed after the last load"),
)
"""Name, meaning, unit kept busy, text with unit. All are counts."""
_FIELD = {
    "first_exposed": "first_loaded",
    "load_exposed": "exposed_loads",
    "store_exposed": "exposed_stores",
    "last_exposed": "last_stored",
    "last_work": "last_iterations",
}
"""The fields of `ProgramState` that have another name than the feature."""

HIDDEN = tuple(Feature(*row) for row in _HIDDEN)
HIDDEN_FIELDS = tuple(_FIELD.get(name, name) for name, *_ in _HIDDEN)
