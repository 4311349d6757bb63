"""Lowers the stock compiler's conv2d template: its knobs, and which of their values it refuses.

Reproduces TVM's VTA schedule (vta_conv2d.py with its transform passes and runtime) exactly where
that compiler succeeds. Where it gives up, the same knob values are lowered all the same unless
`stock` is set; then they fail with the stock stack's class. It gives up on tiles that are no 2-D
DMA, on padding on an inner block, or on odd numbers of tiles for two threads.
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
    """All divisors in increasing order."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def template_space(geo: Geometry) -> Space:
    """The stock template's knobs for a packed workload; the flat index counts tile_b fastest."""
    values = (
        divisors(geo.batches), divisors(geo.oh), divisors(geo.ow), divisors(geo.ci),
        divisors(geo.co), (1, 2), (1, 2),
    )  # fmt: skip
    return Space("template", tuple(Knob(n, v) for n, v in zip(TEMPLATE_KNOBS, values, strict=True)))


@helper
def stock_failure(geo: Geometry, m: Machine, t: TemplateTiling) -> int:
    """The stock stack's verdict: the first class that applies, build errors before run errors."""
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
    """Whether the runtime's check sees one accumulator index twice within two consecutive uops."""
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
    """Write the program of one config; `knobs` (7,) are the knob *values*, `epilogue` (steps, 3) is
    of `epilogue_steps`. Returns a failure code.

    `out` (instructions, 2) and `uops` (micro-ops,) are filled; `state` holds the counts. The only
    option says whether to do as the stock compiler does.
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
