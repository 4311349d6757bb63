"""Estimates direct convolutions (`targets.cpu.kernels.direct`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.targets.cpu.bounds import SIZES
from tilewright.targets.cpu.estimates.machine import (
    ENTRY,
    LOOP,
    MULTIPLIES,
    NUMBER,
    SPILL,
    STORES,
    TILE,
    Array,
    CpuMachine,
    Knobs,
    Mask,
    Parts,
    busiest,
    finish_cycles,
    kept_operands,
    moved,
    of_vector,
    step_cycles,
)
from tilewright.targets.cpu.estimates.tiles import Tilings
from tilewright.targets.cpu.kernels.direct_dots import must_copy
from tilewright.targets.cpu.kernels.int8_dot_product import TWOS, dot_product
from tilewright.targets.cpu.kernels.padding import is_padded
from tilewright.targets.cpu.kernels.tiling import MAX_UNROLLED, pixels
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

COPY = 3.0
"""Cycles a vector that is copied between a border: a test, a load and a store (fitted)."""
FLATTENED = 150
"""Multiply-adds of a loop over a block's channels that LLVM writes out itself (fitted)."""


def estimate(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Of configs with these values, shape (configs,) a knob; `algorithm` is not looked at."""
    spec = machine.spec
    ones = np.ones_like(knobs["tile_ow"])
    rows, columns = pixels(w)
    t = Tilings.of(w, spec, knobs, (rows * ones, columns * ones))
    blocks, high, wide = t.tile
    count = w.batch * np.prod(t.tiles, axis=0)
    rounds = w.in_channels // t.ib / t.channels
    several = rounds > 1
    operands = blocks, high * wide
    kept = kept_operands(*operands, blocks, knobs["pixels_first"] > 0)
    copied, launches = _copies(w, machine, t, knobs, several)
    whole = of_vector(t.ob)
    flips = np.zeros_like(rounds)
    if w.dtype == "int8":  # multiplied from registers, in whole vectors; flipped where they lie
        kept, whole = kept + 1, 1.0
        flips = np.where(copied > 0, 0.0, high * wide / MULTIPLIES)
        if dot_product(spec) is TWOS:  # whose sums are a second instruction
            flips = flips + t.accumulators / (2 * MULTIPLIES)
    step = step_cycles(t.accumulators, operands, kept, spec.registers) + flips
    step = (step + SPILL / 2 * _reloaded(w, spec, t, knobs)) * whole
    steps = w.in_channels // t.ib * _steps(w, spec, t) * w.kernel_h * w.kernel_w
    body = knobs["unroll_channels"]
    multiply = count * (steps * step + _loops(w, spec, t, knobs) + rounds * TILE)
    kinds = [op.kind for op in w.epilogue]
    finish = count * finish_cycles(t.accumulators, kinds) * whole
    sums = count * t.accumulators * (rounds * 2 + 2) / STORES
    code = t.accumulators * body * np.where(knobs["unroll_kernel"] > 0, w.kernel_w, 1)
    code = code * np.where(knobs["unroll_kernel"] > 1, w.kernel_h, 1) / MAX_UNROLLED
    chunks = w.batch * np.prod(t.chunks, axis=0)
    alone = np.where(knobs["parallel"] > 0, busiest(chunks, spec.threads), 1.0)
    return Parts(
        multiply,
        finish + np.where(several, sums, 0.0) + copied,
        _moved(w, spec, t, knobs, rounds, machine.l1),
        _moved(w, spec, t, knobs, rounds, machine.l2),
        (t.accumulators + kept + 1) / spec.registers,
        alone,
        knobs["parallel"] * (1 + launches),
        code,
    )


def _steps(w: Workload, spec: CpuSpec, t: Tilings) -> int:
    """Of a register tile, over a block of input channels: in int8 a step is a dot product."""
    return dot_product(spec).steps(t.ib) if w.dtype == "int8" else t.ib


def _loops(w: Workload, spec: CpuSpec, t: Tilings, knobs: Knobs) -> Array:
    """Cycles a tile spends on the loops around its steps."""
    taps = w.kernel_h * w.kernel_w
    blocks = w.in_channels // t.ib
    trips = _steps(w, spec, t) / knobs["unroll_channels"]
    columns = np.where(knobs["unroll_kernel"] > 0, 1, w.kernel_w)
    whole = blocks * np.where(knobs["unroll_kernel"] > 1, 1, w.kernel_h) * columns
    return np.where(
        trips > 1, blocks * taps * (trips * LOOP + ENTRY), whole * LOOP + whole / columns * ENTRY
    )


def _reloaded(w: Workload, spec: CpuSpec, t: Tilings, knobs: Knobs) -> Array:
    """Numbers a step that LLVM keeps for the next taps but for which no register is left, where
    taps are written out behind each other and neighbours read the same: about half of what the tile
    reads in them is needed at a time (fitted)."""
    unroll = knobs["unroll_kernel"]
    steps = _steps(w, spec, t)
    flat = (steps * t.accumulators <= FLATTENED) | (knobs["unroll_channels"] == steps)
    _, high, wide = t.tile
    rows = np.where(unroll > 1, (high - 1) * w.stride_h + w.kernel_h, high)
    window = rows * ((wide - 1) * w.stride_w + w.kernel_w)
    over = t.accumulators + t.tile[0] + window / 2 - spec.registers
    overlaps = (unroll > 0) & (w.kernel_w > w.stride_w)
    return np.where(flat & overlaps, np.clip(over, 0.0, high * wide), 0.0)


def _copies(
    w: Workload, machine: CpuMachine, t: Tilings, knobs: Knobs, several: Mask
) -> tuple[Array, Array]:
    """Cycles of copying the data between a border, and further parallel loops."""
    reach = (w.dilation_h * (w.kernel_h - 1), w.dilation_w * (w.kernel_w - 1))
    covered = (t.tiles[1] * t.tile[1], t.tiles[2] * t.tile[2])
    rows, columns = pixels(w)
    needed = is_padded(w) | (covered[0] != rows) | (covered[1] != columns)
    each = of_vector(t.ib) * COPY
    if w.dtype == "int8":
        dot = dot_product(machine.spec)
        needed = np.full_like(needed, must_copy(t.ib, w, dot))
        each = COPY * (t.ib if t.ib % dot.numbers else dot.steps(t.ib) / machine.spec.lanes)
    copies = needed | (knobs["copy"] > 0)
    of_chunk = np.ones_like(covered[0])
    whole = np.ones_like(covered[0])
    strides = (w.stride_h, w.stride_w)
    for axis in (0, 1):
        chunk = t.chunk[axis + 1] * t.tile[axis + 1]
        of_chunk *= ((chunk - 1) * strides[axis] + 1 + reach[axis]) * t.chunks[axis + 1]
        whole *= (covered[axis] - 1) * strides[axis] + 1 + reach[axis]
    in_chunks = (knobs["copy"] == 1) | ((knobs["copy"] == 2) & several)
    area = np.where(in_chunks, of_chunk * t.chunks[0], whole)
    cycles = w.batch * (w.in_channels // t.ib) * area * each
    return np.where(copies, cycles, 0.0), np.where(copies & ~in_chunks, 1.0, 0.0)


def _moved(
    w: Workload, spec: CpuSpec, t: Tilings, knobs: Knobs, rounds: Array, cache: float
) -> Array:
    reach = (w.dilation_h * (w.kernel_h - 1) + 1, w.dilation_w * (w.kernel_w - 1) + 1)
    outs = 1 + sum(step.kind in ("residual", "add_dequantised") for step in w.epilogue)
    steps = _steps(w, spec, t)

    def bodies(size: Mapping[str, Array]) -> dict[str, Array]:
        high = (size["y"] - 1) * w.stride_h + reach[0]
        wide = (size["x"] - 1) * w.stride_w + reach[1]
        return {
            "data": NUMBER * steps * size["c"] * high * wide,
            "weights": NUMBER * steps * size["c"] * w.kernel_h * w.kernel_w * size["o"] * t.ob,
            "out": SIZES[w.out_dtype] * outs * size["o"] * t.ob * size["y"] * size["x"],
        }

    extents = {"o": t.tile[0], "y": t.tile[1], "x": t.tile[2], "c": t.channels}
    loops = [
        *ordered(t.chunk, knobs["tiles_first"] > 0),
        {"c": rounds},
        *ordered(t.chunks, knobs["chunks_first"] > 0),
    ]
    return w.batch * moved(bodies, extents, loops, cache)


def ordered(trips: tuple[Array, Array, Array], first: Mask) -> list[dict[str, Array]]:
    """Loops over channel blocks, rows and columns, the innermost first: pixels outside where
    `first`, else channels; all of shape (configs,)."""
    blocks, rows, columns = trips
    ones = np.ones_like(rows)
    return [
        {"o": np.where(first, blocks, ones)},
        {"x": columns},
        {"y": rows},
        {"o": np.where(first, ones, blocks)},
    ]
