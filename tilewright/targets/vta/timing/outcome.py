"""Names what a simulation says besides its number of cycles: codes, counters, columns.

numba compiles these constants into the kernels.
"""

from tilewright.targets.vta.isa import QUEUE_NAMES

# Results other than a number of cycles
MISSING_FINISH, DEADLOCK, UNDECODABLE, ENDLESS, OVERTAKEN = -1, -2, -3, -4, -5

# `Simulator.outcome`
CODE, CULPRIT = 0, 1  # the negative result and the instruction to look at
HEAD, MISSING = 2, 5  # of a deadlock, by module: the instruction at the head, its missing tokens
RD_BEATS, RD_BURSTS, WR_BEATS, WR_BURSTS = 8, 9, 10, 11
FINISHED_AT = 12  # the instruction that was the first FINISH
AHEAD_LOADS = 13  # loads that ended before their data arrived
OUTCOME_FIELDS = 16

# Columns of `times`: the first cycle in which its module sees the instruction, in which it
# executes, and in which it no longer does
VISIBLE, START, STOP = 0, 1, 2
TIMES_COLUMNS = 3

ACTIVITIES = (
    "executing",  # GEMM, ALU, STORE, no-ops
    "transferring",  # a load's data beats
    "memory",  # the rest of a load: latency, other clients, padding
    "instruction",  # waiting for the fetch unit
    *QUEUE_NAMES,  # waiting for a token
    "deciding",  # the idle cycle in which an instruction is taken
    "done",  # after the last instruction
)
"""What a unit can do in a cycle: the columns of a breakdown."""

EXECUTING, TRANSFERRING, WAITING_MEMORY, WAITING_INSTRUCTION, WAITING_TOKEN = 0, 1, 2, 3, 4
DECIDING, DONE = 8, 9
BREAKDOWN_COLUMNS = 10
