"""Plans an extended schedule before its first instruction: tiles, slots and hardware loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import ALU_ADD, Layout
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_BIAS,
    EPILOGUE_RESIDUAL,
    EPILOGUE_TAKE,
    EPILOGUE_TENSOR,
    IDENTITY_BITS,
    Geometry,
    window,
)
from tilewright.targets.vta.lowering.invalid_configs import ALLOC_ACC, ALLOC_INP, ALLOC_WGT, OK
from tilewright.targets.vta.lowering.tile_instructions import (
    MAX_SLOTS,
    load_bound,
    weights_stream,
    wgt_places,
)
from tilewright.targets.vta.numba_decorators import helper, stage, view_stage
from tilewright.targets.vta.spec import Machine

CHANNELS_OUTER, PIXELS_OUTER = 0, 1
RESIDENT = 0  # value of inp_slots and wgt_slots: as many slots as are needed to load nothing twice

# Numbers of the loops of a reduction step, for `hardware_loops` and
# `tile_instructions.coefficients`
ROWS, COLUMNS, OUTPUT_BLOCKS, INPUT_BLOCKS, KERNEL_ROWS, KERNEL_COLUMNS = range(6)


class GemmTiling(NamedTuple):
    """Sizes and numbers of a schedule's output tiles, and of a tile's reduction steps."""

    th: int  # size of a tile: output rows, output columns, output blocks and input blocks
    tw: int
    tco: int
    tci: int
    order: int  # CHANNELS_OUTER or PIXELS_OUTER
    first_rows: int  # rows of the first tile of an image; the other tiles have `th`
    row_tiles: int  # number of tiles along rows, columns and output blocks
    col_tiles: int
    co_tiles: int
    places: int  # number of tiles of pixels, of all images
    nk: int  # reduction steps per tile
    # the first of these steps that belongs to this convolution and not to its shortcut
    first_step: int
    gather: bool  # whether LOADs skip the rows that no output reads, by their row stride
    ih: int  # input rows of a tile; `iw`: input columns
    iw: int


class Operations(NamedTuple):
    """Numbers and properties of the operations in an epilogue."""

    vectors: int  # steps with one value per channel, which are the bias and shifts
    starts_with_tensor: bool  # whether a residual initialises the accumulators
    # other tensors in the accumulators; a copy of the accumulators that steps work on is the last
    tensors: int
    in_place: int  # ALU operations per tile
    residual: int  # GEMMs with the identity matrix that add the residual, 0 without residual
    shift: int  # left shift after these GEMMs, before anything else is added to the residual
    lifted: bool  # whether the bias initialises the accumulators


class BufferSlots(NamedTuple):
    """Division of the scratchpads into slots, with sizes in elements.

    A slot holds the inputs or weights of one reduction step, or the accumulators of one tile.
    """

    inp: int  # number of slots; `inp_size`: elements per slot; likewise for `wgt` and `acc`
    inp_size: int
    wgt: int
    wgt_size: int
    acc: int
    acc_size: int
    bias_at: int  # first accumulator of the vectors (biases and shift amounts)
    bias_resident: bool  # whether the vectors of all channels stay in the accumulators
    streamed: bool  # whether weights are loaded as a stream, without slots
    compute_bound: bool  # whether GEMMs take longer than loads
    wgt_places: int  # elements of the weight scratchpad that are not used by the identity matrix
    res: int  # number of slots for the residual, at the end of the input scratchpad
    res_size: int
    res_blocks: int  # output blocks of one piece of the residual; `res_rows`: its rows
    res_rows: int


class LoopPlan(NamedTuple):
    """Choice of the two loops of a GEMM that run in hardware.

    The loops are given by their indices; -1 means that a hardware loop is not used.
    """

    hw0: int  # outer hardware loop; `hw1`: inner hardware loop
    hw1: int
    co_unrolled: bool  # whether micro-ops iterate over the output blocks
    # whether the hardware loops run over pixels only, so that micro-ops run over weights
    unrolled: bool


class LoweringPlan(NamedTuple):
    """Plan of an extended schedule for one workload on one machine.

    It consists of the geometry, the tiles, the slots of the scratchpads and the hardware loops.
    """

    geo: Geometry
    m: Machine
    lay: Layout
    epilogue: NDArray[np.int64]  # rows of `epilogue_steps`, shape (steps, 3)
    tiling: GemmTiling
    operations: Operations
    slots: BufferSlots
    loops: LoopPlan
    ramp: int  # values of the knobs `ramp` and `tail`
    tail: int
    behind: NDArray[np.int64]  # epilogue steps of an average, shape (steps, 3)


@helper
def tiling_of(geo: Geometry, knobs: NDArray[np.int64]) -> GemmTiling:
    """Compute the tile sizes of a schedule from its knob values.

    Args:
        geo: geometry of the workload.
        knobs: knob values, shape (knobs,).
    """
    th, tw, tco, tci, head = knobs[0], knobs[1], knobs[2], knobs[3], knobs[8]
    first_rows = -(-th // head)
    row_tiles = 1 if first_rows >= geo.oh else 1 + -(-(geo.oh - first_rows) // th)
    col_tiles = -(-geo.ow // tw)
    # A 1×1 kernel with stride sh reads only every sh-th row, so the row stride of the LOAD skips
    # the others.
    gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
    return GemmTiling(
        th, tw, tco, tci, knobs[4], first_rows, row_tiles, col_tiles, -(-geo.co // tco),
        geo.batches * row_tiles * col_tiles, -(-geo.ci // tci), 0, gather,
        th if gather else window(th, geo.sh, geo.kh, geo.dh), window(tw, geo.sw, geo.kw, geo.dw),
    )  # fmt: skip


@view_stage
def own_steps(geo: Geometry, epilogue: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the epilogue steps of the convolution, without those of a shortcut or an average.

    Args:
        geo: geometry of the workload.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
    """
    return epilogue[geo.beside_steps : epilogue.shape[0] - geo.average_steps]


@view_stage
def average_steps(geo: Geometry, epilogue: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the epilogue steps that belong to a fused average.

    Args:
        geo: geometry of the workload.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
    """
    return epilogue[epilogue.shape[0] - geo.average_steps :]


@helper
def operations_of(geo: Geometry, epilogue: NDArray[np.int64]) -> Operations:
    """Count and classify the operations of an epilogue.

    Args:
        geo: geometry of the workload.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
    """
    vectors = 0
    starts_with_tensor = False
    tensors = 0
    in_place = 0
    residual, shift, copies = 0, 0, 0
    for e in range(epilogue.shape[0]):
        if epilogue[e, 0] == EPILOGUE_RESIDUAL:
            residual, shift = gemms_of_residual(epilogue[e, 2])
    lifted = geo.bias_lift > 0
    first = True  # whether all steps so far commute with an addition
    for e in range(epilogue.shape[0]):
        in_place += 1
        if epilogue[e, 0] == EPILOGUE_BIAS:
            vectors += 1
            if epilogue[e, 1] == ALU_ADD:
                in_place -= lifted
            else:
                first = False
        elif epilogue[e, 0] == EPILOGUE_RESIDUAL:
            in_place -= 1
        else:
            if epilogue[e, 0] == EPILOGUE_TAKE:
                in_place += 1
                copies = 1
            if epilogue[e, 0] == EPILOGUE_TENSOR:
                # A shift of the residual would also shift the initial value of the accumulators.
                starts_with_tensor = first and shift == 0
                if starts_with_tensor:
                    in_place -= 1
                else:
                    tensors += 1
            first = False
    return Operations(
        vectors, starts_with_tensor, tensors + copies, in_place, residual, shift, lifted
    )


@helper
def gemms_of_residual(scale: int) -> tuple[int, int]:
    """Return the number of GEMMs and the left shift that add a residual, scaled by 2^scale.

    The GEMMs multiply by the identity matrix, scaled by a power of two that fits into a weight. For
    a scale that is one bit larger than that, the result is two GEMMs. They take as long as one GEMM
    and a shift, but need not precede all other additions.

    Args:
        scale: base-2 logarithm of the residual's factor.
    """
    if scale <= IDENTITY_BITS:
        return 1, 0
    if scale == IDENTITY_BITS + 1:
        return 2, 0
    return 1, scale - IDENTITY_BITS


@stage
def extra_iterations(operations: Operations) -> int:
    """Return the compute iterations per accumulator for the epilogue and a residual.

    The iterations of the reset and of the reduction are not counted.

    Args:
        operations: operations of the epilogue.
    """
    # initialising with the bias takes as long as one more reset
    first = 1 if operations.lifted else 0
    return operations.in_place + operations.residual + (operations.shift > 0) + first


@helper
def slots_of(
    geo: Geometry, m: Machine, t: GemmTiling, operations: Operations, inp_slots: int,
    wgt_slots: int, acc_slots: int,
) -> BufferSlots:  # fmt: skip
    """Divide the scratchpads into slots, even if the slots do not fit.

    `slots_failure` checks whether they fit.

    Args:
        geo: geometry of the workload.
        m: the machine.
        t: the tiles.
        operations: operations of the epilogue.
        inp_slots: value of the knob `inp_slots`.
        wgt_slots: value of the knob `wgt_slots`.
        acc_slots: value of the knob `acc_slots`.
    """
    kk = geo.kh * geo.kw
    inp_size, wgt_size = t.tci * t.ih * t.iw, t.tco * t.tci * kk
    acc_size = t.tco * (t.th * t.tw + (2 if geo.average_taps else 0))
    resident = wgt_slots == RESIDENT
    if inp_slots == RESIDENT:
        inp_slots = t.nk if t.order == PIXELS_OUTER else t.places * t.nk
    if resident:
        wgt_slots = t.nk if t.order == CHANNELS_OUTER else t.co_tiles * t.nk
    places = wgt_places(geo, m)
    compute_bound = not load_bound(geo, m, extra_iterations(operations), t.th * t.tw)
    streamed = not compute_bound and weights_stream(
        geo, m, resident, wgt_slots * wgt_size, t.th, t.tw, t.nk, t.places
    )
    if streamed:
        wgt_slots, wgt_size = 1, places
    bias_at = acc_slots * acc_size * (1 + operations.tensors)
    bias_resident = (
        operations.vectors > 0 and bias_at + operations.vectors * geo.groups * geo.co <= m.acc_built
    )
    room = m.inp_built - inp_slots * inp_size
    res, res_blocks, res_rows = residual_slots(t, room if operations.residual else 0)
    return BufferSlots(
        inp_slots, inp_size, wgt_slots, wgt_size, acc_slots, acc_size, bias_at, bias_resident,
        streamed, compute_bound, places, res, res_blocks * res_rows * t.tw, res_blocks, res_rows,
    )  # fmt: skip


@helper
def residual_slots(t: GemmTiling, room: int) -> tuple[int, int, int]:
    """Divide a part of the input scratchpad into slots for pieces of a residual.

    A piece is a whole tile if that fits. Smaller pieces have to wait for a slot more often, and the
    loads of the next tile's inputs queue up behind them.

    Args:
        t: the tiles.
        room: number of elements of the part.

    Returns:
        The number of slots, and the number of output blocks and of rows per piece.
    """
    whole = t.tco * t.th * t.tw
    if room >= whole:
        return min(2, room // whole), t.tco, t.th
    block = t.th * t.tw
    if room >= 2 * block:
        return room // block, 1, t.th
    if room >= 2 * t.tw:
        return 2, 1, room // (2 * t.tw)
    return 0, 1, 1


@helper
def slots_failure(m: Machine, t: GemmTiling, operations: Operations, slots: BufferSlots) -> int:
    """Return the failure code of a scratchpad that is too small, or OK if all slots fit.

    Args:
        m: the machine.
        t: sizes and numbers of the tiles.
        operations: operations of the epilogue.
        slots: the slots.
    """
    if slots.inp > MAX_SLOTS or slots.inp * slots.inp_size > m.inp_built:
        return ALLOC_INP
    if operations.residual and slots.res == 0:
        return ALLOC_INP
    if slots.wgt > MAX_SLOTS or slots.wgt * slots.wgt_size > slots.wgt_places:
        return ALLOC_WGT
    if slots.bias_at + operations.vectors * t.tco > m.acc_built:
        return ALLOC_ACC
    return OK


@helper
def hardware_loops(geo: Geometry, t: GemmTiling, only_pixels: bool) -> LoopPlan:
    """Choose the two loops that run in hardware: loops over pixels first, then the longest others.

    Args:
        geo: geometry of the workload.
        t: sizes and numbers of the tiles.
        only_pixels: whether to use only loops over pixels.
    """
    extents = (t.th, t.tw, t.tco, t.tci, geo.kh, geo.kw)
    hw0, hw1 = -1, -1
    if t.th > 1:
        hw0 = ROWS
    if t.tw > 1:
        if hw0 < 0:
            hw0 = COLUMNS
        else:
            hw1 = COLUMNS
    while hw1 < 0 and not only_pixels:
        longest = -1
        for loop in range(OUTPUT_BLOCKS, 6):
            if loop != hw0 and extents[loop] > 1:  # noqa: SIM102
                if longest < 0 or extents[loop] > extents[longest]:
                    longest = loop
        if longest < 0:
            break
        if hw0 < 0:
            hw0 = longest
        else:
            hw1 = longest
    co_unrolled = hw0 != OUTPUT_BLOCKS and hw1 != OUTPUT_BLOCKS
    return LoopPlan(hw0, hw1, co_unrolled, hw0 < OUTPUT_BLOCKS and hw1 < OUTPUT_BLOCKS)


@view_stage
def plan_of(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64]
) -> LoweringPlan:
    """Plan an extended schedule: tiles, scratchpad slots, and hardware loops.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        knobs: knob values, shape (knobs,).
    """
    t = tiling_of(geo, knobs)
    own = own_steps(geo, epilogue)
    operations = operations_of(geo, own)
    slots = slots_of(geo, m, t, operations, knobs[5], knobs[6], knobs[7])
    ramp = knobs[9]
    # A column has only one loop over pixels. Weights that are loaded in parts need the other
    # hardware loop to be unused.
    loops = hardware_loops(geo, t, geo.column != 0 and (ramp > 0 or slots.streamed))
    return LoweringPlan(
        geo, m, lay, own, t, operations, slots, loops, ramp, knobs[10],
        average_steps(geo, epilogue),
    )  # fmt: skip


@stage
def micro_ops_of_block(plan: LoweringPlan, cis: int) -> int:
    """Return the number of micro-ops that a reduction step needs per output block.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        cis: number of input blocks of the step.
    """
    hw0, hw1 = plan.loops.hw0, plan.loops.hw1
    count = 1
    if hw0 != INPUT_BLOCKS and hw1 != INPUT_BLOCKS:
        count *= cis
    if hw0 != KERNEL_ROWS and hw1 != KERNEL_ROWS:
        count *= plan.geo.kh
    if hw0 != KERNEL_COLUMNS and hw1 != KERNEL_COLUMNS:
        count *= plan.geo.kw
    return count
