"""Closed-form estimates of schedules: cycles, transferred bytes and scratchpad use.

The estimates need no compilation. The modules of this package compute the columns `ESTIMATES`;
`schedule_estimate` selects the right module for a workload. The estimates do not tell whether a
schedule compiles. An estimated share of a scratchpad above 1 only means that the schedule probably
does not.
"""

from tilewright.targets.features import Feature

ESTIMATES = (
    Feature("cycles", "latency", "", "cycles from launch to FINISH"),
    Feature("load_cycles", "", "load", "cycles the load module is busy"),
    Feature("compute_cycles", "", "compute", "cycles the compute module is busy"),
    Feature("store_cycles", "", "store", "cycles the store module is busy"),
    Feature("instructions", "instructions", "", "instructions, FINISH included"),
    Feature("inp_bytes", "bytes", "load", "input bytes read from DRAM"),
    Feature("wgt_bytes", "bytes", "load", "weight bytes read from DRAM"),
    Feature("inp_share", "share", "", "share of the input scratchpad that is needed"),
    Feature("wgt_share", "share", "", "share of the weight scratchpad that is needed"),
    Feature("acc_share", "share", "", "share of the accumulators that is needed"),
)
"""Columns of an estimate, in the order of its values."""

CYCLES = 0
"""Index of the column with the estimated cycles."""
SHARES = slice(7, 10)
"""Indices of the columns with the occupied shares of the scratchpads."""

FETCH_BEATS = 2  # bus beats per instruction of 16 bytes on a 64-bit bus
# approximate cycles of the first fetch, the micro-op loads and the final synchronisation
START_CYCLES = 60
