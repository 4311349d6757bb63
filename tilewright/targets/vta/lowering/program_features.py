"""Hidden features: what a program reveals once it is lowered, before anything runs."""

from __future__ import annotations

from tilewright.targets.features import Feature, Meaning, Unit

_HIDDEN: tuple[tuple[str, str, Meaning, Unit, str], ...] = (
    ("instructions", "instructions", "instructions", "", "instructions, FINISH included"),
    ("uops", "uops", "", "compute", "micro-ops of all kernels"),
    ("inp_loads", "inp_loads", "", "load", "DMA instructions that load inputs"),
    ("wgt_loads", "wgt_loads", "", "load", "DMA instructions that load weights"),
    ("acc_loads", "acc_loads", "", "compute", "DMA instructions that load bias or residual"),
    ("uop_loads", "uop_loads", "", "compute", "DMA instructions that load micro-ops"),
    ("stores", "stores", "", "store", "DMA instructions that store outputs"),
    ("gemms", "gemms", "", "compute", "GEMM instructions, resets included"),
    ("alus", "alus", "", "compute", "ALU instructions"),
    ("nops", "nops", "", "compute", "instructions that only pass tokens"),
    ("tokens", "tokens", "", "", "dependency tokens pushed"),
    ("inp_bytes", "inp_bytes", "bytes", "load", "input bytes read from DRAM, padding not counted"),
    ("wgt_bytes", "wgt_bytes", "bytes", "load", "weight bytes read from DRAM"),
    ("acc_bytes", "acc_bytes", "bytes", "compute", "bias and residual bytes read from DRAM"),
    ("out_bytes", "out_bytes", "bytes", "store", "output bytes written to DRAM"),
    (
        "gemm_iterations",
        "gemm_iterations",
        "work",
        "compute",
        "micro-ops executed by GEMM, resets not counted",
    ),
    ("reset_iterations", "reset_iterations", "work", "compute", "accumulator elements reset"),
    ("alu_iterations", "alu_iterations", "work", "compute", "micro-ops executed by the ALU"),
    ("inp_rows", "inp_rows", "", "load", "DMA rows of all input loads"),
    ("out_rows", "out_rows", "", "store", "DMA rows of all stores (each starts a burst)"),
    ("padded", "padded", "padding", "load", "zero elements written by input loads"),
    ("tiles", "tiles", "", "", "output tiles"),
    ("steps", "steps", "", "", "reduction steps of all tiles"),
    ("inp_used", "inp_used", "", "", "input scratchpad elements occupied"),
    ("wgt_used", "wgt_used", "", "", "weight scratchpad elements occupied"),
    ("acc_used", "acc_used", "", "", "accumulator elements occupied"),
    (
        "first_exposed",
        "first_loaded",
        "waiting",
        "",
        "bytes loaded before the first GEMM can start",
    ),
    ("load_exposed", "exposed_loads", "waiting", "", "later bytes loaded that compute cannot hide"),
    ("store_exposed", "exposed_stores", "waiting", "", "bytes stored that compute cannot hide"),
    ("last_exposed", "last_stored", "waiting", "", "bytes stored after the last ALU instruction"),
    ("last_work", "last_iterations", "last work", "", "micro-ops executed after the last load"),
)
"""Name, field of `ProgramState`, meaning, unit kept busy, text with unit. All are counts."""

HIDDEN = tuple(Feature(name, meaning, unit, text) for name, _, meaning, unit, text in _HIDDEN)
HIDDEN_FIELDS = tuple(field for _, field, _, _, _ in _HIDDEN)
