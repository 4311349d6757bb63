"""Hidden features of a program: properties that are known after lowering, before it is measured.

Waiting times are estimated from the dependency tokens in program order, without simulating cycles.
A load may start when its scratchpad slot is released, and must be finished when compute takes its
token. The GEMM and ALU iterations in between are called the cover, because the load can hide behind
them. Bytes that exceed the cover are counted as exposed. To compare the two, a byte counts as the
program's average number of iterations per byte. Stores are treated likewise, between the token that
starts a store and the token that compute takes before it overwrites the stored accumulators.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.features import Feature, Meaning, Unit
from tilewright.targets.vta.instruction_format import (
    ALU,
    FLAG_QUEUES,
    GEMM,
    INP,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    Layout,
    get,
    module_of,
)
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.numba_decorators import allocating_helper
from tilewright.targets.vta.spec import LOOP_FIELD_BITS, Machine

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
"""Name, meaning, occupied hardware unit, and description of each hidden feature. All values are
counts."""
_FIELD = {
    "first_exposed": "first_loaded",
    "load_exposed": "exposed_loads",
    "store_exposed": "exposed_stores",
    "last_exposed": "last_stored",
    "last_work": "last_iterations",
}
"""Names of the fields of `ProgramState` that differ from the name of the feature, by the name of
the feature."""

HIDDEN = tuple(Feature(*row) for row in _HIDDEN)
HIDDEN_FIELDS = tuple(_FIELD.get(name, name) for name, *_ in _HIDDEN)


_RING = 512  # tokens per queue that are remembered; the hardware's counters hold 255
# queue of pop_prev, pop_next, push_prev and push_next, by module
_QUEUES = np.array(FLAG_QUEUES, np.int64)
_TO_COMPUTE, _FROM_STORE = 0, 3


@allocating_helper
def count_waits(program: NDArray[np.uint64], lay: Layout, m: Machine, state: ProgramState) -> None:
    """Estimate how many bytes of a program's loads and stores compute cannot hide.

    Args:
        program: instructions, uint64, shape (instructions, 2).
        lay: bit positions of the instruction fields.
        m: the machine.
        state: counts of the program; the counts of exposed bytes are filled in.
    """
    iterations = state.gemm_iterations + state.alu_iterations + state.reset_iterations
    loaded = state.inp_bytes + state.wgt_bytes + state.acc_bytes
    # bytes that are transferred during one iteration, on average
    read_cover = loaded / max(1, iterations)
    write_cover = state.out_bytes / max(1, iterations)

    # For every token in a queue: the iterations done when its transfer could start, and its bytes.
    begun = np.zeros((4, _RING), np.int64)
    moved = np.zeros((4, _RING), np.int64)
    head = np.zeros(4, np.int64)
    tail = np.zeros(4, np.int64)
    clock = 0  # number of iterations of all GEMM and ALU instructions so far
    # when each module's next transfer can start, in these iterations
    may_start = np.zeros(3, np.int64)
    bytes_since = np.zeros(3, np.int64)  # bytes that each module moved since its last push
    started = False
    arrived = 0
    exposed_loads = 0.0
    exposed_stores = 0.0
    for i in range(program.shape[0]):
        lo, hi = program[i, 0], program[i, 1]
        opcode = nb.int64(lo & nb.uint64(7))
        kind = get(lo, hi, 7, 3)
        module = module_of(opcode, kind)
        for flag in range(2):
            queue = _QUEUES[module, flag]
            if queue < 0 or not get(lo, hi, 3 + flag, 1) or head[queue] == tail[queue]:
                continue
            at = head[queue] % _RING
            head[queue] += 1
            if module != MODULE_COMPUTE:
                if begun[queue, at] > may_start[module]:
                    may_start[module] = begun[queue, at]
                    if module == MODULE_STORE:
                        state.last_stored = 0
                continue
            size, cover = moved[queue, at], clock - begun[queue, at]
            if queue == _TO_COMPUTE and size:
                arrived = clock
                if started:
                    exposed_loads += max(0.0, size - cover * read_cover)
                else:
                    state.first_loaded += size
            elif queue == _FROM_STORE:
                exposed_stores += max(0.0, size - cover * write_cover)
        if module != MODULE_COMPUTE:
            size = get(lo, hi, 64, 16) * get(lo, hi, 80, 16)
            if module == MODULE_LOAD:
                size *= m.inp_bytes if kind == INP else m.wgt_bytes
            else:
                size *= m.out_bytes
                state.last_stored += size
            bytes_since[module] += size
        elif opcode == GEMM or opcode == ALU:
            started = started or (opcode == GEMM and not get(lo, hi, 7, 1))
            width = lay.uop_index_bits
            uops = get(lo, hi, lay.uop_end, width + 1) - get(lo, hi, lay.uop_bgn, width)
            loops = get(lo, hi, lay.iter_out, LOOP_FIELD_BITS)
            clock += uops * loops * get(lo, hi, lay.iter_in, LOOP_FIELD_BITS)
        for flag in range(2, 4):
            queue = _QUEUES[module, flag]
            if queue < 0 or not get(lo, hi, 3 + flag, 1):
                continue
            at = tail[queue] % _RING
            tail[queue] += 1
            begun[queue, at] = clock if module == MODULE_COMPUTE else may_start[module]
            moved[queue, at] = bytes_since[module]
            bytes_since[module] = 0
    state.exposed_loads = round(exposed_loads)
    state.exposed_stores = round(exposed_stores)
    state.last_iterations = clock - arrived
