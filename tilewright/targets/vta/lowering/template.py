"""Lowers the stock compiler's conv2d template, and finds knob values that the compiler rejects.

The lowering reproduces TVM's VTA schedule (vta_conv2d.py with its transform passes and the runtime)
exactly where that compiler succeeds. The compiler fails for tiles that are not two-dimensional DMA
regions, for padding on an inner block, and for odd numbers of tiles with two threads. If `stock` is
set, such knob values fail with the failure class that the stock stack reports. Otherwise they are
lowered as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.instruction_format import (
    Layout,
)
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.geometry import (
    Geometry,
)
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import (
    ALLOC_ACC,
    ALLOC_INP,
    ALLOC_WGT,
    LOAD2D,
    MATCH,
    NBYTES,
    OK,
    PADINNER,
    STORE2D,
    VERIFYDEP,
)
from tilewright.targets.vta.lowering.template_tiling import (
    LoopNest,
    TemplateTiling,
    gemm_nest,
    tiling_of,
)
from tilewright.targets.vta.lowering.virtual_threads import (
    EPILOGUE_KERNELS,
    MOST_THREADS,
    write_threads,
)
from tilewright.targets.vta.numba_decorators import allocating_helper, helper
from tilewright.targets.vta.spec import Machine

TEMPLATE_KNOBS = ("tile_b", "tile_h", "tile_w", "tile_ci", "tile_co", "oc_nthread", "h_nthread")


def divisors(n: int) -> tuple[int, ...]:
    """Return all divisors of `n` in ascending order."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def template_space(geo: Geometry) -> Space:
    """Create the space of the stock template's knobs for a packed workload.

    In the flat index, `tile_b` varies fastest.
    """
    values = (
        divisors(geo.batches), divisors(geo.oh), divisors(geo.ow), divisors(geo.ci),
        divisors(geo.co), (1, 2), (1, 2),
    )  # fmt: skip
    return Space("template", tuple(Knob(n, v) for n, v in zip(TEMPLATE_KNOBS, values, strict=True)))


@helper
def stock_failure(geo: Geometry, m: Machine, t: TemplateTiling) -> int:
    """Return the failure code that the stock stack reports for a schedule, or OK.

    If several failure classes apply, the first one is returned; build errors come before run
    errors.

    Args:
        geo: geometry of the workload.
        m: the machine.
        t: sizes and numbers of the tiles.
    """
    if (t.on == 2 and t.co_tiles % 2) or (t.hn == 2 and t.row_tiles % 2):
        return MATCH
    if t.padded and t.tci > 1:
        return PADINNER
    if not t.padded and t.tci > 1 and t.ih > 1 and t.iw != geo.w and t.ih != geo.h:
        return LOAD2D
    if t.tco > 1 and t.th > 1 and t.tw != geo.ow and t.th != geo.oh:
        return STORE2D
    if t.threads * t.inp > 1 << m.log_inp_depth:
        return ALLOC_INP
    if t.threads * t.wgt > 1 << m.log_wgt_depth:
        return ALLOC_WGT
    if t.threads * t.tile * ((4 if t.threads == 4 else 1) + t.operands) > 1 << m.log_acc_depth:
        return ALLOC_ACC
    if t.threads == 4:
        return NBYTES
    if _repeats_destination(gemm_nest(geo, t)):
        return VERIFYDEP
    return OK


@helper
def _repeats_destination(nest: LoopNest) -> bool:
    """Return whether two consecutive micro-ops of a kernel write the same accumulator.

    The stock runtime rejects such micro-op kernels.

    Args:
        nest: the loops of the kernel.
    """
    hardware = 0
    reduction_unrolled = False
    after = 1
    for loop in range(6):
        if nest.extents[loop] == 1:
            continue
        if hardware < 2:
            hardware += 1
        elif nest.dst[loop] == 0:
            reduction_unrolled = True
            after = 1
        else:
            after *= nest.extents[loop]
    return reduction_unrolled and after < 3


@allocating_helper
def lower_template(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one schedule of the template space.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        knobs: knob values (not indices), shape (7,).
        out: filled with instructions, uint64, shape (instructions, 2).
        uops: filled with micro-ops, uint64, shape (micro-ops,).
        state: filled with the program's counts, such as the numbers of instructions.
        options: whether to apply the restrictions of the stock compiler, shape (1,).

    Returns:
        The failure code; OK if the program was written.
    """
    stock = options[0]
    t = tiling_of(geo, epilogue, knobs, stock)
    instruction_writer.start(state)
    if stock:
        failure = stock_failure(geo, m, t)
        if failure != OK:
            return failure
    inp_used, wgt_used = t.threads * t.inp, t.threads * t.wgt
    acc_used = t.threads * t.tile * (1 + t.operands)
    if inp_used > m.inp_built:
        return ALLOC_INP
    if wgt_used > m.wgt_built:
        return ALLOC_WGT
    if acc_used > m.acc_built:
        return ALLOC_ACC
    state.inp_used, state.wgt_used, state.acc_used = inp_used, wgt_used, acc_used
    # Lent with its owner: an array whose last use is `unowned` is freed before the call.
    kernels = np.full((MOST_THREADS, EPILOGUE_KERNELS + epilogue.shape[0]), -1, np.int64)
    return write_threads(geo, m, lay, epilogue, t, kernels, out, uops, state)
