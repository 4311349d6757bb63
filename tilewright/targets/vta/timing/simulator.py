"""The simulator of a specification: the machine's numbers, working memory, and result codes.

It also defines the counters and columns of the results. numba compiles the constants into the
kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import SpecError
from tilewright.targets.vta.instruction_format import QUEUE_NAMES, Layout, layout_of
from tilewright.targets.vta.spec import Machine, VtaSpec
from tilewright.targets.vta.timing.instruction_fetch import FETCH_FIELDS
from tilewright.targets.vta.timing.load_cycles import CLIENT_FIELDS, CLIENTS, PORT_FIELDS, Bus

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


# Lengths of transfers; one row, half a line of the cache: two key words, cycles, traffic as packed
# by `transfer_table.packed`
LOG_TABLE_ROWS = 12
TABLE_FIELDS = 4


class Simulator(NamedTuple):
    """Argument of the compiled code. It must not be shared between threads."""

    machine: Machine
    layout: Layout
    bus: Bus
    element_bytes: NDArray[np.int64]  # by read client
    flight_limits: NDArray[np.int64]  # by read client: outstanding beats its counter cannot hold
    table: NDArray[np.uint64]  # (1 << LOG_TABLE_ROWS, TABLE_FIELDS)
    queues: NDArray[np.int64]  # (3, power of two ≥ entries, 2): instruction, cycle it is visible
    clients: NDArray[np.int64]  # see `load_cycles`
    port: NDArray[np.int64]
    bursts: NDArray[np.int64]
    fetch: NDArray[np.int64]  # see `instruction_fetch`
    tails: NDArray[np.int64]  # (3,), instructions enqueued, by module
    outcome: NDArray[np.int64]  # see the fields above


def simulator_of(spec: VtaSpec | Mapping[str, object]) -> Simulator:
    """Return a simulator for one thread. It uses a few hundred KiB of memory.

    Raises:
        SpecError: the specification is invalid.
    """
    machine, layout = machine_of(spec)
    bus_bytes = machine.bus_bytes
    element_bytes = [
        8, machine.uop_bytes, machine.inp_bytes, machine.wgt_bytes, machine.acc_bytes
    ]  # fmt: skip
    return Simulator(
        machine=machine,
        layout=layout,
        bus=Bus(
            bytes=bus_bytes,
            log_bytes=bus_bytes.bit_length() - 1,
            window=bus_bytes * machine.max_burst_beats,
            latency=machine.memory_latency_cycles,
            tags=machine.read_tags,
        ),
        element_bytes=np.array(element_bytes, np.int64),
        flight_limits=np.array(_flight_limits(machine, element_bytes), np.int64),
        table=np.zeros((1 << LOG_TABLE_ROWS, TABLE_FIELDS), np.uint64),
        queues=np.zeros((3, _power_of_two(machine.queue_entries), 2), np.int64),
        clients=np.zeros((CLIENTS, CLIENT_FIELDS), np.int64),
        port=np.zeros(PORT_FIELDS, np.int64),
        bursts=np.zeros((_power_of_two(machine.read_tags + 2), 3), np.int64),
        fetch=np.zeros(FETCH_FIELDS, np.int64),
        tails=np.zeros(3, np.int64),
        outcome=np.zeros(OUTCOME_FIELDS, np.int64),
    )


class _FixedFields(VtaSpec):
    """A specification whose instructions keep the default field widths, as those of the RTL do."""

    def model_post_init(self, context: Any) -> None:
        """Perform all checks except that the fields suffice for the scratchpads."""
        powers = (self.bus_bits, self.max_burst_beats)
        sound = (
            all(value & (value - 1) == 0 for value in powers)
            and all(bits % 8 == 0 for bits in self._element_bits().values())
            and all(1 <= log_depth <= 16 for log_depth in self._depth_logs())
        )
        if not sound:
            super().model_post_init(context)


def machine_of(spec: VtaSpec | Mapping[str, object]) -> tuple[Machine, Layout]:
    """Return the machine and its instruction layout.

    A mapping may also describe a machine that no program can address completely: the stock RTL
    decodes the default field widths whatever the size of its scratchpads.

    Raises:
        SpecError: the specification is invalid.
    """
    if isinstance(spec, VtaSpec):
        return spec.machine, layout_of(spec)
    try:
        checked = VtaSpec.from_mapping(dict(spec))
    except SpecError:
        return _FixedFields.from_mapping(dict(spec)).machine, layout_of(VtaSpec.from_mapping({}))
    return checked.machine, layout_of(checked)


def _flight_limits(machine: Machine, element_bytes: list[int]) -> list[int]:
    """Return the smallest number of outstanding beats that a load engine's counter cannot hold.

    There is one number per read client. The width of the counter follows the scratchpad: all its
    bus words for an element wider than the bus (TensorLoadNarrowVME), otherwise twice its lines
    (TensorLoadWideVME).
    """
    depths = [machine.uop_built, machine.inp_built, machine.wgt_built, machine.acc_built]
    limits = [0]
    for depth, element in zip(depths, element_bytes[1:], strict=True):
        if machine.bus_bytes < element:
            limits.append(_power_of_two(depth * (element // machine.bus_bytes)))
        else:
            limits.append(2 * _power_of_two(max(1, depth // (machine.bus_bytes // element))))
    return limits


def _power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()
