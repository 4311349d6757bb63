"""What an estimate consists of."""

ESTIMATES = (
    "cycles", "load_cycles", "compute_cycles", "store_cycles", "instructions",
    "inp_bytes", "wgt_bytes", "inp_share", "wgt_share", "acc_share",
)  # fmt: skip
"""Columns: module cycles, instruction count, DRAM bytes read, needed share of each scratchpad."""

FETCH_BEATS = 2  # bus beats an instruction on a 64-bit bus
START_CYCLES = 60  # first fetch, micro-op loads, final synchronisation
