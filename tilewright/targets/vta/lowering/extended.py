"""Lowers schedules of the extended space, which the stock compiler cannot express.

A program is a sequence of output tiles, and a tile is a sequence of reduction steps. A step loads
the operands that are not in the scratchpads yet, and then runs one GEMM. The slots of a scratchpad
form a ring, so that loads run ahead of the GEMMs, also across tiles, until no slot is free. A slot
that still holds the wanted operands is not loaded again (residency). The accumulator tiles form a
ring, too, so that a store overlaps with the next tile. The first step can be split so that the
first GEMM starts early, and the last epilogue can be split so that the last store is short. Tiles
need not divide the image evenly.

All tiles of the same shape share their micro-ops. The two hardware loops iterate over the pixels of
a tile, so that a smaller tile uses the same micro-ops with fewer iterations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.instruction_format import ACC, LOAD, UOP, Layout, pack_uop
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.fused_avg_pool import average_uops, end_averaged, write_average
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import OK, UOP_CAPACITY
from tilewright.targets.vta.lowering.output_tiles import (
    FULL,
    GemmProgram,
    begin_tile,
    end_tile,
    tile_at,
)
from tilewright.targets.vta.lowering.reduction_steps import (
    MAX_KERNELS,
    Cursor,
    Rings,
    take_step,
    with_uops,
)
from tilewright.targets.vta.lowering.residual import add_residual
from tilewright.targets.vta.lowering.tile_and_buffer_plan import (
    CHANNELS_OUTER,
    PIXELS_OUTER,
    RESIDENT,
    LoweringPlan,
    plan_of,
    slots_failure,
)
from tilewright.targets.vta.lowering.tile_instructions import finish
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, stage, unowned
from tilewright.targets.vta.spec import Machine

EXTENDED_KNOBS = (
    "tile_h", "tile_w", "tile_co", "tile_ci", "order", "inp_slots", "wgt_slots", "acc_slots",
    "head", "ramp", "tail",
)  # fmt: skip


def balanced(n: int, most: int = 1 << 30) -> tuple[int, ...]:
    """Return the distinct part sizes when `n` is divided into 1 to `most` nearly equal parts.

    The sizes are in ascending order.

    Args:
        n: the number to divide.
        most: maximum number of parts.
    """
    return tuple(sorted({-(-n // parts) for parts in range(1, min(n, most) + 1)}))


def extended_space(geo: Geometry) -> Space:
    """Create the extended schedule space of a workload.

    The knobs are:

    - `tile_h`, `tile_w`, `tile_co`, `tile_ci`: tile sizes in output rows, output columns, output
      blocks and input blocks. The last tile takes the remainder. A batched dense layer has
      `tile_b`, batch rows of the tile in blocks, instead of `tile_h`.
    - `order`: order of the two loops over tiles. With 0, the outer loop iterates over output
      channels and the inner loop over pixels; with 1, the other way round.
    - `inp_slots`, `wgt_slots`, `acc_slots`: number of slots in each scratchpad's ring. For inputs
      and weights, 0 means as many slots as are needed to load nothing twice. Weights that are read
      only once and do not fit are then streamed through the scratchpad, if loads are slower than
      GEMMs.
    - `head`: the first tile has 1/head of the rows.
    - `ramp`: number of first steps whose weights are loaded in growing parts. If loads are slower
      than GEMMs, the last weights are loaded in shrinking parts instead.
    - `tail`: number of pieces of the last epilogue and store.

    If the results are averaged, each tile contains whole images and is written in one piece.
    """
    powers = tuple(v for v in (1, 2, 4) if v < geo.ci)
    # The pieces of an image are whole rows, which keeps them from becoming tiny. A column has no
    # rows, so it is divided as requested.
    tails = (1, 2, 8) if geo.column else (1, 8)
    values = {
        "tile_h": balanced(geo.oh), "tile_w": balanced(geo.ow, 3), "tile_co": balanced(geo.co),
        "tile_ci": (*powers, geo.ci), "order": (CHANNELS_OUTER, PIXELS_OUTER),
        "inp_slots": (RESIDENT, 2, 3), "wgt_slots": (RESIDENT, 2, 3), "acc_slots": (1, 2),
        "head": (1, 4), "ramp": (0, 2), "tail": tails,
    }  # fmt: skip
    if geo.average_taps:
        values |= {"tile_h": (geo.oh,), "tile_w": (geo.ow,), "head": (1,), "tail": (1,)}
    names = ("tile_b", *EXTENDED_KNOBS[1:]) if geo.column else EXTENDED_KNOBS
    return Space(
        "extended", tuple(Knob(n, values[k]) for n, k in zip(names, EXTENDED_KNOBS, strict=True))
    )  # fmt: skip


@allocating_helper
def lower_extended(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one schedule of the extended space.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        knobs: knob values (not indices), shape (knobs,).
        out: filled with instructions, uint64, shape (instructions, 2).
        uops: filled with micro-ops, uint64, shape (micro-ops,).
        state: filled with the program's counts, such as the numbers of instructions.
        options: unused.

    Returns:
        The failure code; OK if the program was written.
    """
    instruction_writer.start(state)
    plan = plan_of(geo, m, lay, unowned(epilogue), knobs)
    slots = plan.slots
    failure = slots_failure(m, plan.tiling, plan.operations, slots)
    if failure != OK:
        return failure
    # Lent with their owners: an array whose last use is `unowned` is freed before the call.
    inp_ring = np.full((slots.inp, 2), -1, np.int64)
    wgt_ring = np.full((slots.wgt, 2), -1, np.int64)
    reader = np.full(slots.wgt_places if slots.streamed else 1, -1, np.int64)
    residual = np.full(max(1, slots.res), -1, np.int64)
    store_of = np.full(slots.acc, -1, np.int64)
    kernel_keys = np.empty((MAX_KERNELS, 5), np.int64)
    kernel_at = np.empty(MAX_KERNELS, np.int64)
    return _write(
        plan, state, out, uops, store_of, inp_ring, wgt_ring, reader, residual, kernel_keys,
        kernel_at,
    )  # fmt: skip


@helper
def _write(
    plan: LoweringPlan, state: ProgramState, out: NDArray[np.uint64], uops: NDArray[np.uint64],
    store_of: NDArray[np.int64], inp_ring: NDArray[np.int64], wgt_ring: NDArray[np.int64],
    reader: NDArray[np.int64], residual: NDArray[np.int64], kernel_keys: NDArray[np.int64],
    kernel_at: NDArray[np.int64],
) -> int:  # fmt: skip
    """Write the program of a plan, tile by tile and step by step.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        state: counts of the program; changed in place.
        out: filled with instructions, shape (instructions, 2).
        uops: filled with micro-ops, shape (micro-ops,).
        store_of: filled with the last STORE that reads each accumulator slot.
        inp_ring: filled with the content and the last reader of each input slot.
        wgt_ring: filled with the content and the last reader of each weight slot.
        reader: filled with the last GEMM that reads each weight of a stream.
        residual: filled with the last GEMM that reads each slot of the residual.
        kernel_keys: filled with the slots and sizes of each micro-op kernel.
        kernel_at: filled with the first micro-op of each kernel.

    Returns:
        The failure code; OK if the program was written.
    """
    program = GemmProgram(state, out, uops, store_of)
    rings = Rings(inp_ring, wgt_ring, reader, residual, kernel_keys, kernel_at)
    n_uops = plan.slots.acc + average_uops(plan)
    if n_uops > min(plan.m.uop_built, uops.shape[0]):
        return UOP_CAPACITY
    cursor = Cursor(0, 0, 0, 0, -1, 0, 0, 0, n_uops)
    tiles = plan.geo.groups * plan.tiling.places * plan.tiling.co_tiles
    prepare(plan, program, tiles)
    for number in range(tiles):
        tile = tile_at(plan, number, tiles)
        n_uops = begin_tile(plan, program, tile, cursor.n_uops)
        if n_uops == FULL:
            return UOP_CAPACITY
        cursor = with_uops(cursor, cursor.freed, n_uops)
        fits = True
        if plan.operations.shift:
            fits, cursor = add_residual(plan, program, rings, cursor, tile)
        for k in range(plan.tiling.nk):
            kernel, cursor = take_step(plan, program, rings, cursor, tile, k)
            if kernel == FULL:
                return UOP_CAPACITY
        if plan.operations.residual and not plan.operations.shift:
            fits, cursor = add_residual(plan, program, rings, cursor, tile)
        if not fits:
            return UOP_CAPACITY
        if plan.geo.average_taps:
            n_uops = end_averaged(plan, program, tile, cursor.n_uops)
        else:
            n_uops = end_tile(plan, program, tile, cursor.n_uops)
        if n_uops == FULL:
            return UOP_CAPACITY
        cursor = with_uops(cursor, cursor.freed, n_uops)
        if state.problem:
            break
    return finish(state, out, cursor.n_uops, plan.m.uop_bytes)


@stage
def prepare(plan: LoweringPlan, program: GemmProgram, tiles: int) -> None:
    """Write the instructions before the first tile.

    They load the micro-ops and, if it stays in the scratchpad, the bias, and reset all
    accumulators.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        tiles: number of tiles of the program.
    """
    geo, m, slots, state, out = plan.geo, plan.m, plan.slots, program.state, program.out
    state.inp_used = slots.inp * slots.inp_size + slots.res * slots.res_size
    state.wgt_used = slots.wgt * slots.wgt_size + m.wgt_built - slots.wgt_places
    state.acc_used = slots.bias_at
    # All micro-ops are loaded by the first instruction; its size is filled in at the end.
    instruction_writer.memory(
        state, out, LOAD, UOP, 0, geo.uop_base, 1, 1, 1, 0, 0, 0, 0, m.uop_bytes
    )
    # Each accumulator slot needs one micro-op, for its reset and its ALU operations with an
    # immediate.
    for a in range(slots.acc):
        if a < program.uops.shape[0]:
            program.uops[a] = pack_uop(plan.lay, a * slots.acc_size, a * slots.acc_size, 0)
    write_average(plan, program)
    if slots.bias_resident:
        elements = plan.operations.vectors * geo.groups * geo.co
        instruction_writer.memory(
            state, out, LOAD, ACC, slots.bias_at, geo.bias_base, 1, elements, elements,
            0, 0, 0, 0, m.acc_bytes,
        )  # fmt: skip
    if not plan.operations.starts_with_tensor:
        # The compute module would otherwise wait for the first weights, so it resets all slots now.
        count = min(slots.acc, tiles) * slots.acc_size
        instruction_writer.gemm(
            state, out, plan.lay, 1, 0, 1, 1, count, 0, 1 if count > 1 else 0, 0, 0, 0, 0
        )  # fmt: skip
