"""Bounds what an extended schedule takes: cycles that no program of it beats, vectorised over a
batch, without lowering it.

Every term is one that the lowering and the machine cannot avoid. Instructions are counted no higher
than they are, none waits for another without need, and what may overlap does. A program is fetched,
loads the operands of its first GEMM, then computes to the end of the last epilogue, and stores the
last piece. Or it loads without a pause, or it stores without one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates.bound_tiles import (
    Array,
    Inputs,
    Knobs,
    Tiles,
    fits,
    held,
    may_stream,
    slow_loads,
    tiles_of,
)
from tilewright.targets.vta.estimates.columns import FETCH_BEATS
from tilewright.targets.vta.lowering.extended import KNOBS
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_BIAS,
    EPILOGUE_IMMEDIATE,
    EPILOGUE_TENSOR,
    Geometry,
)
from tilewright.targets.vta.lowering.plan import Operations, operations_of
from tilewright.targets.vta.lowering.tile_codegen import COMPUTE_LATENCY
from tilewright.targets.vta.spec import Machine

_FETCHED = 23.0  # cycles until the first of a batch of instructions runs, besides the batch's beats
_TOKEN = 1.0  # between two instructions of a module, or of two that wait for each other
_LOAD = 5.0 + _TOKEN
"""Of a LOAD besides its beats and the memory's latency. That is paid by who finds the memory idle,
and other modules' reads may keep it busy: only the first LOAD must pay."""
_BURST = 4.0  # of a STORE besides its beats: command, address, response


def bound_extended(
    geo: Geometry, m: Machine, epilogue: NDArray[np.int64], values: NDArray[np.int64]
) -> Array:
    """Cycles that programs of knob values (n, knobs) take at least, shape (n,), infinite where
    buffers surely do not fit; `epilogue` (steps, 3) is that of the lowering."""
    geo, ops = _without_surplus(geo), operations_of(geo, epilogue)
    every = {name: values[:, k].astype(np.float64) for k, name in enumerate(KNOBS)}
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
    """Without the last group where that has fewer blocks than the others: what it takes comes on
    top."""
    if geo.groups * geo.co == geo.out_blocks and geo.groups * geo.ci == geo.inp_blocks:
        return geo
    return geo._replace(groups=geo.groups - 1)


@dataclass(frozen=True)
class _Layer:
    """Schedules of a layer that may fit; the epilogue takes `each` cycles of the ALU an
    accumulator, of which there are `outputs`."""

    geo: Geometry
    m: Machine
    ops: Operations
    knob: Knobs
    tiles: Tiles
    each: float
    outputs: float


def _cycles(layer: _Layer) -> Array:
    """From launch to FINISH."""
    geo, m, ops, knob, t = layer.geo, layer.m, layer.ops, layer.knob, layer.tiles
    inputs = Inputs(geo, m, knob, t)
    loads, load = _loads(layer, inputs)
    instructions = t.count * (t.steps + ops.in_place + ops.residual + 1) + loads + 3.0
    bursts = _bursts(geo, t)
    # With one slot of accumulators compute waits for the STORE of every tile but the last.
    waits = _stored(m, np.maximum(layer.outputs - t.size, 0), t.count - 1)
    waits = np.where(knob["acc_slots"] == 1, waits, 0.0)
    last = np.where(knob["tail"] == 1, t.last_rows * t.last_cols * t.last_blocks, 1.0)
    drain = _stored(m, last, np.ones_like(last)) + _TOKEN
    some = np.minimum(t.blocks, geo.co) * np.minimum(knob["tile_ci"], geo.ci) * geo.kh * geo.kw
    parts = (knob["ramp"] > 0) | slow_loads(geo, m, knob)
    fill = m.memory_latency_cycles + 2 * _LOAD + inputs.first / m.bus_bytes
    fill = fill + np.where(parts, 1.0, some) * m.wgt_bytes / m.bus_bytes
    behind = 1 + COMPUTE_LATENCY * (1 + ops.in_place) + last * layer.each
    total = np.maximum(fill + _compute(layer) + waits, load + behind) + drain
    total = np.maximum(total, fill + _stored(m, layer.outputs, bursts))
    return np.asarray(_fetch(m, instructions) + total)


def _loads(layer: _Layer, inputs: Inputs) -> tuple[Array, Array]:
    """LOADs of the load module, and the cycles they take one after the other."""
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
    """Cycles of the compute module from the first GEMM on."""
    geo, m, ops, t, outputs = layer.geo, layer.m, layer.ops, layer.tiles, layer.outputs
    slots, first_tile = layer.knob["acc_slots"], t.first_rows * t.cols * t.blocks
    iterations = outputs * (geo.ci * geo.kh * geo.kw + ops.residual + layer.each)
    busy = iterations + COMPUTE_LATENCY * t.count * (t.steps + ops.residual + ops.in_place)
    if ops.lifted:  # of the first tile it may come before
        busy = busy + 2 * (outputs - first_tile) + COMPUTE_LATENCY * (t.count - 1)
    elif ops.starts_with_tensor:
        later = (outputs - first_tile) * m.acc_bytes / m.bus_bytes
        busy = busy + later + _LOAD * (t.count - 1)
    else:  # the first instruction resets every slot
        busy = busy + np.maximum(outputs - slots * t.size, 0)
        busy = busy + COMPUTE_LATENCY * np.maximum(t.count - slots, 0)
    if ops.shift:  # what comes before the first tile's GEMMs
        busy = busy + outputs - 2 * first_tile * (ops.residual + 1)
        busy = busy - COMPUTE_LATENCY * 2 * (ops.residual + 1)
    if ops.tensors:  # loaded into the accumulators, too
        busy = busy + outputs * m.acc_bytes / m.bus_bytes + _LOAD * t.count
    return np.asarray(busy)


def _epilogue_iterations(ops: Operations, epilogue: NDArray[np.int64]) -> float:
    """Cycles of the ALU an accumulator: one an immediate, two a tensor."""
    kinds = epilogue[:, 0]
    tensors = int((kinds == EPILOGUE_TENSOR).sum()) - int(ops.starts_with_tensor)
    vectors = int((kinds == EPILOGUE_BIAS).sum()) - int(ops.lifted)
    return float((kinds == EPILOGUE_IMMEDIATE).sum() + 2 * (tensors + vectors))


def _bursts(geo: Geometry, t: Tiles) -> Array:
    """Bursts of all STOREs: a row each, where a tile has a part of each row, else a run of rows."""
    planes = float(geo.batches * geo.groups * geo.co)
    runs = np.where(t.row_tiles > 1, planes * t.row_tiles, t.count)
    return np.where(t.col_tiles > 1, planes * geo.oh * t.col_tiles, runs)


def _stored(m: Machine, elements: Array | float, bursts: Array) -> Array:
    """Cycles of STOREs of so many elements in at least so many bursts."""
    beats = elements * m.out_bytes / m.bus_bytes
    if m.bus_bytes >= m.out_bytes:
        return np.asarray(beats + _BURST * bursts)
    row = max(1, m.block_out * m.inp_bits // 8 // m.bus_bytes)
    return np.asarray(beats + beats / row + (_BURST - 1) * bursts)


def _fetch(m: Machine, instructions: Array) -> Array:
    """Cycles until the first instruction runs, of so many at least."""
    if m.bus_bytes == 8:
        return _FETCHED + FETCH_BEATS * np.minimum(instructions, m.max_burst_beats / 2)
    beats = np.minimum(instructions, m.max_burst_beats) * 16.0 / m.bus_bytes
    return _FETCHED + 3 + np.floor(beats)
