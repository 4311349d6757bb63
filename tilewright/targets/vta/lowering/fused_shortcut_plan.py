"""Plans how a convolution and its shortcut share tiles, scratchpads and accumulators.

A tile's reduction has the shortcut's steps first and the convolution's own behind them. Both walk
through the same rings, whose slots are as large as the larger of the two needs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import Layout
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.plan import (
    BufferSlots,
    GemmTiling,
    LoweringPlan,
    Operations,
    average_steps,
    hardware_loops,
    operations_of,
    own_steps,
    slots_of,
    tiling_of,
)
from tilewright.targets.vta.njit_args import helper, view_stage
from tilewright.targets.vta.spec import Machine


class SummedPlan(NamedTuple):
    """An extended schedule of a convolution with a shortcut: a plan of each, with the same tiles
    and slots, but for where their vectors lie; and the vectors of both."""

    own: LoweringPlan
    beside: LoweringPlan
    vectors: int


@helper
def beside_of(geo: Geometry) -> Geometry:
    """The shortcut of a convolution by itself, in the memory that the two share. Sizes in bytes,
    which no lowering asks for, are left out."""
    return Geometry(
        geo.batches, geo.groups, geo.beside_ci, geo.co, geo.beside_h, geo.beside_w, geo.oh, geo.ow,
        1, 1, geo.beside_sh, geo.beside_sw, 1, 1, 0, 0, 0, 0, geo.res_base, geo.beside_wgt_base,
        geo.beside_bias_base, geo.add_base, geo.out_base, geo.uop_base, False, geo.beside_lift,
        geo.beside_lowest, geo.insn_bytes_at, 0, 0, 0, 0, 0, geo.res_base, 0, -1, geo.oh, geo.ow,
        1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, geo.beside_ci, geo.out_blocks,
        0,
    )  # fmt: skip


@helper
def reduction_of(t: GemmTiling, steps: int, first: int) -> GemmTiling:
    """The same tiles with so many steps, of which the own ones begin at `first`."""
    return GemmTiling(
        t.th, t.tw, t.tco, t.tci, t.order, t.first_rows, t.row_tiles, t.col_tiles, t.co_tiles,
        t.places, steps, first, t.gather, t.ih, t.iw,
    )  # fmt: skip


@helper
def shared_slots(
    own: Geometry, m: Machine, t: GemmTiling, beside: GemmTiling, operations: Operations,
    knobs: NDArray[np.int64],
) -> BufferSlots:  # fmt: skip
    """The division of the scratchpads, whether or not it fits; `operations` have the vectors of
    both, `knobs` (knobs,) are the knob values. Weights never pass as a stream: two tensors do not
    lie in the order in which a tile reads them."""
    s = slots_of(own, m, t, operations, knobs[5], knobs[6], knobs[7])
    return BufferSlots(
        s.inp, max(s.inp_size, beside.tci * beside.ih * beside.iw), s.wgt, s.wgt_size, s.acc,
        s.acc_size, s.bias_at, s.bias_resident, False, s.compute_bound, s.wgt_places, 0, 0, 1, 1,
    )  # fmt: skip


@helper
def vectors_behind(s: BufferSlots, places: int) -> BufferSlots:
    """The same, but for vectors that lie so many places further on."""
    return BufferSlots(
        s.inp, s.inp_size, s.wgt, s.wgt_size, s.acc, s.acc_size, s.bias_at + places,
        s.bias_resident, s.streamed, s.compute_bound, s.wgt_places, s.res, s.res_size,
        s.res_blocks, s.res_rows,
    )  # fmt: skip


@helper
def with_vectors(o: Operations, vectors: int) -> Operations:
    """The same with so many vectors."""
    return Operations(
        vectors, o.starts_with_tensor, o.tensors, o.in_place, o.residual, o.shift, o.lifted
    )


@view_stage
def summed_plan_of(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64]
) -> SummedPlan:
    """The schedule of a config's knob values, (knobs,), with the steps of both epilogues,
    (steps, 3), the shortcut's first."""
    beside = beside_of(geo)
    first, second = epilogue[: geo.beside_steps], own_steps(geo, epilogue)
    before, behind = operations_of(beside, first), operations_of(geo, second)
    vectors = before.vectors + behind.vectors
    t, other = tiling_of(geo, knobs), tiling_of(beside, knobs)
    steps = other.nk + t.nk
    t, other = reduction_of(t, steps, other.nk), reduction_of(other, steps, 0)
    slots = shared_slots(geo, m, t, other, with_vectors(behind, vectors), knobs)
    places = behind.vectors * (geo.groups * geo.co if slots.bias_resident else t.tco)
    return SummedPlan(
        LoweringPlan(
            geo, m, lay, second, t, behind, slots, hardware_loops(geo, t, False), knobs[9],
            knobs[10], average_steps(geo, epilogue),
        ),
        LoweringPlan(
            beside, m, lay, first, other, before, vectors_behind(slots, places),
            hardware_loops(beside, other, False), knobs[9], knobs[10], first[:0],
        ),
        vectors,
    )  # fmt: skip
