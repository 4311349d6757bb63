"""Computes how extended schedules cut a layer and divide the scratchpads, vectorised over a batch:
for `schedule_bound`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.plan import CHANNELS_OUTER, RESIDENT, Operations
from tilewright.targets.vta.lowering.template_tiling import window
from tilewright.targets.vta.lowering.tile_codegen import load_bound, weights_stream
from tilewright.targets.vta.spec import Machine

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Knobs = dict[str, Array]
"""Knob values by name, shape (n,) each."""


@dataclass(frozen=True)
class Tiles:
    """How schedules cut a layer; sizes of tiles are those of the largest."""

    rows: Array
    cols: Array
    blocks: Array
    first_rows: Array
    last_rows: Array
    last_cols: Array
    last_blocks: Array
    row_tiles: Array
    col_tiles: Array
    co_tiles: Array
    steps: Array  # of a tile
    places: Array
    count: Array

    @property
    def size(self) -> Array:
        """Accumulators, shape (n,)."""
        return self.rows * self.cols * self.blocks


def tiles_of(geo: Geometry, knob: Knobs) -> Tiles:
    """The tiles of knob values (n,)."""
    th, tw, tco = knob["tile_h"], knob["tile_w"], knob["tile_co"]
    first = np.ceil(th / knob["head"])
    behind = np.maximum(geo.oh - first, 0)
    row_tiles = 1 + np.ceil(behind / th)
    col_tiles, co_tiles = np.ceil(geo.ow / tw), np.ceil(geo.co / tco)
    steps = np.ceil(geo.ci / knob["tile_ci"])
    places = geo.batches * row_tiles * col_tiles
    last_rows = np.where(row_tiles == 1, geo.oh, behind - (row_tiles - 2) * th)
    return Tiles(
        th, tw, tco, first, last_rows, geo.ow - (col_tiles - 1) * tw,
        geo.co - (co_tiles - 1) * tco, row_tiles, col_tiles, co_tiles, steps, places,
        geo.groups * places * co_tiles,
    )  # fmt: skip


class Inputs:
    """What all tiles of pixels of a group read once: `bytes` and LOADs, and the bytes of the first
    step of the first tile. By rows and by columns of tiles apart, of which there are few kinds."""

    def __init__(self, geo: Geometry, m: Machine, knob: Knobs, t: Tiles) -> None:
        gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
        tci = np.minimum(knob["tile_ci"], geo.ci)
        rows = np.array([knob["tile_h"], t.first_rows]).T
        cols = np.array([knob["tile_w"], knob["tile_w"]]).T
        high = _kinds(rows, geo.oh, geo.h, geo.sh, geo.kh, geo.dh, geo.pad_top, gather)
        wide = _kinds(cols, geo.ow, geo.w, geo.sw, geo.kw, geo.dw, geo.pad_left, False)
        images = float(geo.batches)
        self.bytes = images * geo.ci * high.read * wide.read * m.inp_bytes
        # Whole tiles within the image load all blocks of a step at once, others one by one.
        inside = high.inside * wide.cols_inside
        others = t.row_tiles * t.col_tiles - inside
        self.loads = images * (inside * t.steps + others * geo.ci)
        self.first = tci * high.first * wide.first * m.inp_bytes


@dataclass(frozen=True)
class _Axis:
    """Of tiles along an axis: rows (columns) read, of the first tile too, and how many tiles lie
    within the image, whole ones, and with smaller ones."""

    read: Array
    first: Array
    inside: Array
    cols_inside: Array


def _kinds(
    sizes: Array, outputs: int, size: int, stride: int, kernel: int, dilation: int, pad: int,
    gather: bool,
) -> _Axis:  # fmt: skip
    """Of tiles of so many rows and a first one of other height, `sizes` (n, 2)."""
    most = outputs + 1  # a tile that is cut evenly is no larger than the output
    keys = (sizes[:, 0] * most + sizes[:, 1]).astype(np.int64)
    found = np.zeros((most * most, 4))
    seen = np.zeros(len(found), np.bool_)
    seen[keys] = True
    for row in np.flatnonzero(seen).tolist():
        tile, first = divmod(row, most)
        begin = 0
        while begin < outputs:
            count = min(first if begin == 0 else tile, outputs - begin)
            low = begin * stride - pad
            high = low + window(count, stride, kernel, dilation)
            read = count if gather else min(high, size) - max(low, 0)
            whole = low >= 0 and high <= size
            found[row, 0] += read
            found[row, 1] += read * (begin == 0)
            found[row, 2] += whole and count == tile
            found[row, 3] += whole
            begin += count
    return _Axis(*found[keys].T)


def held(knob: Knobs, t: Tiles) -> tuple[Flags, Flags]:
    """Whether inputs, and weights, are loaded once, shape (n,) each: rings hold all that is walked
    through before it is read again."""
    outside = knob["order"] == CHANNELS_OUTER
    inp_round = np.where(outside, t.places * t.steps, t.steps)
    wgt_round = np.where(outside, t.steps, t.co_tiles * t.steps)
    return (
        (knob["inp_slots"] == RESIDENT) | (knob["inp_slots"] >= inp_round),
        (knob["wgt_slots"] == RESIDENT) | (knob["wgt_slots"] >= wgt_round),
    )


def slow_loads(geo: Geometry, m: Machine, knob: Knobs) -> Flags:
    """Whether weights may come in parts of any size, shape (n,). More schedules than do: it counts
    no epilogue."""
    return np.asarray(load_bound(geo, m, 0, knob["tile_h"] * knob["tile_w"]))


def may_stream(geo: Geometry, m: Machine, knob: Knobs, t: Tiles) -> Flags:
    """Whether weights may pass through the scratchpad as a stream, shape (n,)."""
    return slow_loads(geo, m, knob) & np.asarray(
        weights_stream(
            geo, m, knob["wgt_slots"] == RESIDENT, _wgt_used(geo, knob, t), knob["tile_h"],
            knob["tile_w"], t.steps, t.places,
        )
    )  # fmt: skip


def _wgt_used(geo: Geometry, knob: Knobs, t: Tiles) -> Array:
    outside = knob["order"] == CHANNELS_OUTER
    resident = np.where(outside, t.steps, t.co_tiles * t.steps)
    slots = np.where(knob["wgt_slots"] == RESIDENT, resident, knob["wgt_slots"])
    return np.asarray(slots * t.blocks * knob["tile_ci"] * geo.kh * geo.kw)


def fits(geo: Geometry, m: Machine, ops: Operations, knob: Knobs, t: Tiles) -> Flags:
    """Whether buffers may fit, shape (n,); where they do not, nothing is lowered."""
    gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
    high = t.rows if gather else window(t.rows, geo.sh, geo.kh, geo.dh)
    wide = window(t.cols, geo.sw, geo.kw, geo.dw)
    outside = knob["order"] == CHANNELS_OUTER
    resident = np.where(outside, t.places * t.steps, t.steps)
    slots = np.where(knob["inp_slots"] == RESIDENT, resident, knob["inp_slots"])
    inp = slots * knob["tile_ci"] * high * wide
    if ops.residual:
        inp = inp + t.cols
    wgt = (_wgt_used(geo, knob, t) <= m.wgt_built) | may_stream(geo, m, knob, t)
    acc = knob["acc_slots"] * t.size * (1 + ops.tensors) + ops.vectors * t.blocks
    return np.asarray((inp <= m.inp_built) & wgt & (acc <= m.acc_built))
