"""Constants and working memory of the cycle simulator for one specification, and its result codes.

The module also defines the indices and columns of the result arrays. numba compiles these constants
into the kernels.
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

# Results of a simulation that are not a number of cycles
MISSING_FINISH, DEADLOCK, UNDECODABLE, ENDLESS, OVERTAKEN = -1, -2, -3, -4, -5

# Indices into `Simulator.outcome`
CODE, CULPRIT = 0, 1  # the negative result, and the instruction that caused it
# for a deadlock, by module: instruction at the head of the queue, and its missing tokens
HEAD, MISSING = 2, 5
RD_BEATS, RD_BURSTS, WR_BEATS, WR_BURSTS = 8, 9, 10, 11
FINISHED_AT = 12  # index of the first FINISH
AHEAD_LOADS = 13  # number of LOADs that ended before their data arrived
OUTCOME_FIELDS = 16

# Columns of `times`: the cycle in which the module first sees the instruction, the first cycle of
# its execution, and the cycle after the last one
VISIBLE, START, STOP = 0, 1, 2
TIMES_COLUMNS = 3

ACTIVITIES = (
    "executing",  # executes a GEMM, ALU, STORE or no-op
    "transferring",  # data of a LOAD arrive
    "memory",  # rest of a LOAD: memory latency, other users of the port, padding
    "instruction",  # waits for the fetch unit
    *QUEUE_NAMES,  # waits for a token from this queue
    "deciding",  # the idle cycle in which an instruction is taken
    "done",  # has executed its last instruction
)
"""Activities of a unit, of which it has exactly one in each cycle. They are the columns of a cycle
breakdown."""

EXECUTING, TRANSFERRING, WAITING_MEMORY, WAITING_INSTRUCTION, WAITING_TOKEN = 0, 1, 2, 3, 4
DECIDING, DONE = 8, 9
BREAKDOWN_COLUMNS = 10


# Table of the durations of transfers. A row has two key words, the cycles, and the traffic as
# packed by `transfer_table.packed`. It is half a cache line.
LOG_TABLE_ROWS = 12
TABLE_FIELDS = 4


class Simulator(NamedTuple):
    """Constants and working memory of the compiled simulator.

    A simulator must not be shared between threads, because each run overwrites its arrays.
    """

    machine: Machine
    layout: Layout
    bus: Bus
    element_bytes: NDArray[np.int64]  # element size in bytes, by read client
    # by read client: number of outstanding beats that overflows its counter
    flight_limits: NDArray[np.int64]
    table: NDArray[np.uint64]  # shape (1 << LOG_TABLE_ROWS, TABLE_FIELDS)
    # shape (3, power of two ≥ entries, 2): instruction, and first cycle in which it is visible
    queues: NDArray[np.int64]
    clients: NDArray[np.int64]  # see `load_cycles`
    port: NDArray[np.int64]
    bursts: NDArray[np.int64]
    fetch: NDArray[np.int64]  # see `instruction_fetch`
    tails: NDArray[np.int64]  # number of enqueued instructions by module, shape (3,)
    outcome: NDArray[np.int64]  # see the indices above


def simulator_of(spec: VtaSpec | Mapping[str, object]) -> Simulator:
    """Allocate a simulator for one thread. It uses a few hundred KiB of memory.

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
    """A specification whose instructions keep the default field widths, like the stock RTL."""

    def model_post_init(self, context: Any) -> None:
        """Perform all checks except whether the fields suffice to address the scratchpads."""
        powers = (self.bus_bits, self.max_burst_beats)
        sound = (
            all(value & (value - 1) == 0 for value in powers)
            and all(bits % 8 == 0 for bits in self._element_bits().values())
            and all(1 <= log_depth <= 16 for log_depth in self._depth_logs())
        )
        if not sound:
            super().model_post_init(context)


def machine_of(spec: VtaSpec | Mapping[str, object]) -> tuple[Machine, Layout]:
    """Return the machine of a specification and its instruction layout.

    A mapping may also describe a machine whose scratchpads the instructions cannot address
    completely. The layout is then the default one, because the stock RTL decodes the default field
    widths whatever the size of its scratchpads.

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
    """Return the number of outstanding beats that overflows the counter of each load engine.

    The width of the counter depends on the size of the scratchpad. It can count all bus words of
    the scratchpad if an element is wider than the bus (TensorLoadNarrowVME), and otherwise twice
    the number of bus-wide lines (TensorLoadWideVME).

    Args:
        machine: the machine.
        element_bytes: size of an element per read client, in bytes.

    Returns:
        For each read client, the smallest number of beats that the counter cannot hold; 0 for the
        fetch unit.
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
