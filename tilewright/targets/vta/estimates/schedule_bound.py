"""Lower bounds on the cycles of extended schedules.

The bounds are computed without lowering and are vectorised over a batch of schedules. They contain
only costs that neither the lowering nor the machine can avoid: the number of instructions is never
overestimated, no instruction waits without need, and everything that can overlap does.

A program has to be fetched, load the operands of its first GEMM, compute until the end of the last
epilogue, and store the last piece. The bound is the maximum of three times: the time of this chain,
the time of loading without a pause, and the time of storing without a pause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates import FETCH_BEATS
from tilewright.targets.vta.lowering.extended import EXTENDED_KNOBS
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_BIAS,
    EPILOGUE_IMMEDIATE,
    EPILOGUE_TENSOR,
    Geometry,
    window,
)
from tilewright.targets.vta.lowering.tile_and_buffer_plan import (
    CHANNELS_OUTER,
    RESIDENT,
    Operations,
    operations_of,
)
from tilewright.targets.vta.lowering.tile_instructions import (
    COMPUTE_LATENCY,
    load_bound,
    weights_stream,
)
from tilewright.targets.vta.spec import Machine

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Knobs = dict[str, Array]
"""Values of each knob, shape (n,), by the name of the knob."""


@dataclass(frozen=True)
class Tiles:
    """Sizes and numbers of the tiles of n schedules; all arrays have shape (n,).

    Attributes:
        rows: output rows of the largest tile.
        cols: output columns of the largest tile.
        blocks: output blocks of the largest tile.
        first_rows: output rows of the first tile.
        last_rows: output rows of the last tile.
        last_cols: output columns of the last tile.
        last_blocks: output blocks of the last tile.
        row_tiles: number of tiles along rows.
        col_tiles: number of tiles along columns.
        co_tiles: number of tiles along output blocks.
        steps: number of reduction steps per tile.
        places: number of tiles of pixels, which is tiles along rows × tiles along columns ×
            batches.
        count: number of tiles.
    """

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
    steps: Array  # reduction steps per tile
    places: Array
    count: Array

    @property
    def size(self) -> Array:
        """Number of accumulators of the largest tile, shape (n,)."""
        return self.rows * self.cols * self.blocks


def tiles_of(geo: Geometry, knob: Knobs) -> Tiles:
    """Compute the sizes and numbers of the tiles from knob values.

    Args:
        geo: geometry of the workload.
        knob: knob values by knob name, shape (n,) each.
    """
    th, tw, tco = knob["tile_h"], knob["tile_w"], knob["tile_co"]
    first = np.ceil(th / knob["head"])
    remaining_rows = np.maximum(geo.oh - first, 0)
    row_tiles = 1 + np.ceil(remaining_rows / th)
    col_tiles, co_tiles = np.ceil(geo.ow / tw), np.ceil(geo.co / tco)
    steps = np.ceil(geo.ci / knob["tile_ci"])
    places = geo.batches * row_tiles * col_tiles
    last_rows = np.where(row_tiles == 1, geo.oh, remaining_rows - (row_tiles - 2) * th)
    return Tiles(
        th, tw, tco, first, last_rows, geo.ow - (col_tiles - 1) * tw,
        geo.co - (co_tiles - 1) * tco, row_tiles, col_tiles, co_tiles, steps, places,
        geo.groups * places * co_tiles,
    )  # fmt: skip


class Inputs:
    """Input data that the tiles of a channel group read, if each tile loads its inputs once.

    Rows and columns are computed separately, because there are only a few distinct tile sizes along
    each axis.

    Attributes:
        bytes: number of bytes, shape (n,).
        loads: number of LOAD instructions, shape (n,).
        first: number of bytes for the first reduction step of the first tile, shape (n,).
    """

    def __init__(self, geo: Geometry, m: Machine, knob: Knobs, t: Tiles) -> None:
        gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
        tci = np.minimum(knob["tile_ci"], geo.ci)
        rows = np.array([knob["tile_h"], t.first_rows]).T
        cols = np.array([knob["tile_w"], knob["tile_w"]]).T
        high = _kinds(rows, geo.oh, geo.h, geo.sh, geo.kh, geo.dh, geo.pad_top, gather)
        wide = _kinds(cols, geo.ow, geo.w, geo.sw, geo.kw, geo.dw, geo.pad_left, False)
        images = float(geo.batches)
        self.bytes = images * geo.ci * high.read * wide.read * m.inp_bytes
        # Whole tiles that lie inside the image load all blocks of a step at once. Other tiles load
        # them one by one.
        inside = high.inside * wide.cols_inside
        others = t.row_tiles * t.col_tiles - inside
        self.loads = images * (inside * t.steps + others * geo.ci)
        self.first = tci * high.first * wide.first * m.inp_bytes


@dataclass(frozen=True)
class _Axis:
    """Totals over the tiles of n schedules along one axis (rows or columns), shape (n,) each.

    Attributes:
        read: number of input rows (or columns) that the tiles read.
        first: number of input rows (or columns) that the first tile reads.
        inside: number of tiles of full size whose input is inside the image.
        cols_inside: number of tiles of any size whose input is inside the image.
    """

    read: Array
    first: Array
    inside: Array
    cols_inside: Array


def _kinds(
    sizes: Array, outputs: int, size: int, stride: int, kernel: int, dilation: int, pad: int,
    gather: bool,
) -> _Axis:  # fmt: skip
    """Sum up the input rows (or columns) that all tiles along one axis of the image read.

    Args:
        sizes: size of a tile and of the first tile of each schedule, in outputs, shape (n, 2).
        outputs: number of outputs along the axis.
        size: image size in pixels.
        stride: stride of the windows.
        kernel: kernel size.
        dilation: dilation of the kernel.
        pad: padding before the image, in pixels.
        gather: whether LOADs skip rows that no output reads.

    Returns:
        Totals for each of the n schedules.
    """
    most = outputs + 1  # a tile that divides the output evenly is no larger than the output
    keys = (sizes[:, 0] * most + sizes[:, 1]).astype(np.int64)
    totals = np.zeros((most * most, 4))
    seen = np.zeros(len(totals), np.bool_)
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
            totals[row, 0] += read
            totals[row, 1] += read * (begin == 0)
            totals[row, 2] += whole and count == tile
            totals[row, 3] += whole
            begin += count
    return _Axis(*totals[keys].T)


def held(knob: Knobs, t: Tiles) -> tuple[Flags, Flags]:
    """Return which schedules load each input only once, and which load each weight only once.

    A scratchpad is divided into slots, which are reused in turn. A schedule loads nothing twice if
    the slots hold all data that is used before the first part is needed again.

    Args:
        knob: knob values by knob name, shape (n,) each.
        t: tiles of the schedules.

    Returns:
        The mask for inputs and the mask for weights, shape (n,) each.
    """
    outside = knob["order"] == CHANNELS_OUTER
    inp_round = np.where(outside, t.places * t.steps, t.steps)
    wgt_round = np.where(outside, t.steps, t.co_tiles * t.steps)
    return (
        (knob["inp_slots"] == RESIDENT) | (knob["inp_slots"] >= inp_round),
        (knob["wgt_slots"] == RESIDENT) | (knob["wgt_slots"] >= wgt_round),
    )


def slow_loads(geo: Geometry, m: Machine, knob: Knobs) -> Flags:
    """Return a mask of the schedules whose weights may take longer to load than to use, shape (n,).

    These schedules may load weights in parts of any size. The epilogue is ignored, so the mask may
    include schedules whose loads are in fact fast enough.

    Args:
        geo: geometry of the workload.
        m: the machine.
        knob: knob values by knob name, shape (n,) each.
    """
    return np.asarray(load_bound(geo, m, 0, knob["tile_h"] * knob["tile_w"]))


def may_stream(geo: Geometry, m: Machine, knob: Knobs, t: Tiles) -> Flags:
    """Return a mask of the schedules whose weights may be streamed, shape (n,).

    Streamed weights pass through the scratchpad, which need not be large enough for all of them.

    Args:
        geo: geometry of the workload.
        m: the machine.
        knob: knob values by knob name, shape (n,) each.
        t: tiles of the schedules.
    """
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
    """Return a mask of the schedules whose buffers may fit the scratchpads, shape (n,).

    All other schedules certainly do not compile.

    Args:
        geo: geometry of the workload.
        m: the machine.
        ops: operations of the epilogue.
        knob: knob values by knob name, shape (n,) each.
        t: tiles of the schedules.
    """
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


# cycles until the first instruction of a batch executes, in addition to the beats of the batch
_FETCHED = 23.0
# cycles between two instructions of a module, or of two modules that wait for each other
_TOKEN = 1.0
_LOAD = 5.0 + _TOKEN
"""Cycles of a LOAD in addition to its beats and the memory latency. A lower bound may add the
latency only for the first LOAD. Later LOADs can overlap with reads of other modules, so their
latency may be hidden."""
# cycles per burst of a STORE in addition to its beats: command (1), address (2) and response (1)
_BURST = 4.0


def bound_extended(
    geo: Geometry, m: Machine, epilogue: NDArray[np.int64], values: NDArray[np.int64]
) -> Array:
    """Return a lower bound on the cycles of each schedule in the extended space.

    Args:
        geo: geometry of the workload.
        m: the machine.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        values: knob values, shape (n, knobs).

    Returns:
        Cycles, float64, shape (n,); infinite if the buffers certainly do not fit.
    """
    geo, ops = _without_surplus(geo), operations_of(geo, epilogue)
    every = {name: values[:, k].astype(np.float64) for k, name in enumerate(EXTENDED_KNOBS)}
    rows = np.flatnonzero(fits(geo, m, ops, every, tiles_of(geo, every)))
    knob = {name: column[rows] for name, column in every.items()}
    layer = _Layer(
        geo, m, ops, knob, tiles_of(geo, knob), _epilogue_iterations(ops, epilogue),
        float(geo.batches * geo.groups * geo.co * geo.oh * geo.ow),
    )  # fmt: skip
    total = np.full(len(values), np.inf)
    total[rows] = _cycles(layer)
    return total


def _without_surplus(geo: Geometry) -> Geometry:
    """Return the geometry without the last channel group, if that group has fewer blocks.

    The last group can only add cycles, so a lower bound stays valid without it.

    Args:
        geo: geometry of the workload.
    """
    if geo.groups * geo.co == geo.out_blocks and geo.groups * geo.ci == geo.inp_blocks:
        return geo
    return geo._replace(groups=geo.groups - 1)


@dataclass(frozen=True)
class _Layer:
    """A batch of schedules of one workload that may fit the scratchpads, for lower bounds.

    Attributes:
        geo: geometry of the workload.
        m: the machine.
        ops: operations of the epilogue.
        knob: knob values by knob name, shape (n,) each.
        tiles: tiles of the schedules.
        each: ALU cycles of the epilogue per accumulator.
        outputs: number of accumulators of the workload.
    """

    geo: Geometry
    m: Machine
    ops: Operations
    knob: Knobs
    tiles: Tiles
    each: float
    outputs: float


def _cycles(layer: _Layer) -> Array:
    """Return a lower bound on the cycles of each schedule from launch to FINISH, shape (n,).

    Args:
        layer: the schedules.
    """
    geo, m, ops, knob, t = layer.geo, layer.m, layer.ops, layer.knob, layer.tiles
    inputs = Inputs(geo, m, knob, t)
    loads, load = _loads(layer, inputs)
    instructions = t.count * (t.steps + ops.in_place + ops.residual + 1) + loads + 3.0
    bursts = _bursts(geo, t)
    # With a single accumulator slot, the compute module waits for the STORE of every tile but the
    # last.
    waits = _stored(m, np.maximum(layer.outputs - t.size, 0), t.count - 1)
    waits = np.where(knob["acc_slots"] == 1, waits, 0.0)
    last = np.where(knob["tail"] == 1, t.last_rows * t.last_cols * t.last_blocks, 1.0)
    drain = _stored(m, last, np.ones_like(last)) + _TOKEN
    some = np.minimum(t.blocks, geo.co) * np.minimum(knob["tile_ci"], geo.ci) * geo.kh * geo.kw
    parts = (knob["ramp"] > 0) | slow_loads(geo, m, knob)
    fill = m.memory_latency_cycles + 2 * _LOAD + inputs.first / m.bus_bytes
    fill = fill + np.where(parts, 1.0, some) * m.wgt_bytes / m.bus_bytes
    last_epilogue = 1 + COMPUTE_LATENCY * (1 + ops.in_place) + last * layer.each
    total = np.maximum(fill + _compute(layer) + waits, load + last_epilogue) + drain
    total = np.maximum(total, fill + _stored(m, layer.outputs, bursts))
    return np.asarray(_fetch(m, instructions) + total)


def _loads(layer: _Layer, inputs: Inputs) -> tuple[Array, Array]:
    """Return a lower bound on the work of the load module for each schedule.

    Args:
        layer: the schedules.
        inputs: input data that the tiles read.

    Returns:
        The number of LOAD instructions, and the cycles that they take one after another, shape (n,)
        each.
    """
    geo, m, t = layer.geo, layer.m, layer.tiles
    inp_held, wgt_held = held(layer.knob, t)
    again, wgt_again = np.where(inp_held, 1.0, t.co_tiles), np.where(wgt_held, 1.0, t.places)
    wgt_loads = geo.groups * t.co_tiles * t.steps * wgt_again
    wgt_loads = np.where(may_stream(geo, m, layer.knob, t), 1.0, wgt_loads)
    loads = geo.groups * inputs.loads * again + wgt_loads
    wgt_bytes = geo.co * geo.ci * geo.kh * geo.kw * m.wgt_bytes
    beats = geo.groups * (inputs.bytes * again + wgt_bytes * wgt_again) / m.bus_bytes
    if layer.ops.residual:
        loads, beats = loads + t.count + 1, beats + (geo.res_bytes + m.wgt_bytes) / m.bus_bytes
    return loads, np.asarray(beats + _LOAD * loads + m.memory_latency_cycles)


def _compute(layer: _Layer) -> Array:
    """Return a lower bound on the cycles from the first GEMM to the end of compute, shape (n,).

    Args:
        layer: the schedules.
    """
    geo, m, ops, t, outputs = layer.geo, layer.m, layer.ops, layer.tiles, layer.outputs
    slots, first_tile = layer.knob["acc_slots"], t.first_rows * t.cols * t.blocks
    iterations = outputs * (geo.ci * geo.kh * geo.kw + ops.residual + layer.each)
    busy = iterations + COMPUTE_LATENCY * t.count * (t.steps + ops.residual + ops.in_place)
    if ops.lifted:  # for the first tile, this may precede the first LOAD
        busy = busy + 2 * (outputs - first_tile) + COMPUTE_LATENCY * (t.count - 1)
    elif ops.starts_with_tensor:
        later = (outputs - first_tile) * m.acc_bytes / m.bus_bytes
        busy = busy + later + _LOAD * (t.count - 1)
    else:  # the first instruction resets every slot
        busy = busy + np.maximum(outputs - slots * t.size, 0)
        busy = busy + COMPUTE_LATENCY * np.maximum(t.count - slots, 0)
    if ops.shift:  # the shift precedes the GEMMs of the first tile
        busy = busy + outputs - 2 * first_tile * (ops.residual + 1)
        busy = busy - COMPUTE_LATENCY * 2 * (ops.residual + 1)
    if ops.tensors:  # these tensors are loaded into the accumulators, too
        busy = busy + outputs * m.acc_bytes / m.bus_bytes + _LOAD * t.count
    return np.asarray(busy)


def _epilogue_iterations(ops: Operations, epilogue: NDArray[np.int64]) -> float:
    """Return the number of ALU cycles per accumulator that the epilogue takes.

    An operation with an immediate takes one cycle; an operation with a tensor or a vector takes
    two.

    Args:
        ops: operations of the epilogue. Operands that initialise the accumulators are not counted.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
    """
    kinds = epilogue[:, 0]
    tensors = int((kinds == EPILOGUE_TENSOR).sum()) - int(ops.starts_with_tensor)
    vectors = int((kinds == EPILOGUE_BIAS).sum()) - int(ops.lifted)
    return float((kinds == EPILOGUE_IMMEDIATE).sum() + 2 * (tensors + vectors))


def _bursts(geo: Geometry, t: Tiles) -> Array:
    """Return a lower bound on the number of memory bursts of all STORE instructions, shape (n,).

    If a tile covers only a part of each row, it needs one burst per row. Otherwise, adjacent rows
    of a tile form one burst.

    Args:
        geo: geometry of the workload.
        t: tiles of n schedules.
    """
    planes = float(geo.batches * geo.groups * geo.co)
    runs = np.where(t.row_tiles > 1, planes * t.row_tiles, t.count)
    return np.where(t.col_tiles > 1, planes * geo.oh * t.col_tiles, runs)


def _stored(m: Machine, elements: Array | float, bursts: Array) -> Array:
    """Return a lower bound on the cycles of STORE instructions.

    Args:
        m: the machine.
        elements: number of stored elements.
        bursts: lower bound on the number of bursts, shape (n,).
    """
    beats = elements * m.out_bytes / m.bus_bytes
    if m.bus_bytes >= m.out_bytes:
        return np.asarray(beats + _BURST * bursts)
    row = max(1, m.block_out * m.inp_bits // 8 // m.bus_bytes)
    return np.asarray(beats + beats / row + (_BURST - 1) * bursts)


def _fetch(m: Machine, instructions: Array) -> Array:
    """Return the cycles from the launch of a program until its first instruction runs, shape (n,).

    Args:
        m: the machine.
        instructions: lower bound on the number of instructions, shape (n,).
    """
    if m.bus_bytes == 8:
        return _FETCHED + FETCH_BEATS * np.minimum(instructions, m.max_burst_beats / 2)
    beats = np.minimum(instructions, m.max_burst_beats) * 16.0 / m.bus_bytes
    return _FETCHED + 3 + np.floor(beats)
