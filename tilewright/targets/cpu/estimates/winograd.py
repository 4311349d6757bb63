"""Estimates Winograd's convolutions (`targets.cpu.kernels.winograd`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.targets.cpu.estimates.direct import COPY, ordered
from tilewright.targets.cpu.estimates.machine import (
    ENTRY,
    LOOP,
    NUMBER,
    STORES,
    TILE,
    Array,
    CpuMachine,
    Knobs,
    Parts,
    busiest,
    finish_cycles,
    kept_operands,
    moved,
    of_vector,
    step_cycles,
)
from tilewright.targets.cpu.estimates.tiles import Tilings
from tilewright.targets.cpu.kernels.tiling import MAX_UNROLLED
from tilewright.targets.cpu.kernels.winograd import transforms_weights
from tilewright.targets.cpu.kernels.winograd_transforms import SIZES
from tilewright.targets.workload import Workload

INPUT = {2: 60.0, 4: 220.0}
"""Cycles of the data's transform of a tile and vector of channels: 32 and 264 additions, loads and
stores of 16 and 36 numbers each, and what does not fit the registers (fitted)."""
INVERSE = {2: 30.0, 4: 180.0}
"""The same of the inverse transform, epilogue not counted: 36 and 180 additions (fitted)."""
TAPS = 9
"""Weights of a filter."""
FILTER = {2: 60.0, 4: 150.0}
"""The same of a vector of filters, where the kernel transforms them (fitted)."""
BORDER = 4.0
"""Cycles a vector whose place in the border is tested where it is read (fitted)."""


def estimate(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Of configs with these values, shape (configs,) a knob; an `algorithm` of 0 is taken for 2."""
    spec = machine.spec
    m = np.maximum(knobs["algorithm"], 2)
    area = (m + 2) ** 2
    t = Tilings.of(w, spec, knobs, (np.ceil(w.out_height / m), np.ceil(w.out_width / m)))
    blocks, high, wide = t.tile
    tiles = w.batch * area * np.prod(t.tiles, axis=0)
    operands = blocks, high * wide
    kept = kept_operands(*operands, blocks, knobs["pixels_first"] > 0)
    step = step_cycles(t.accumulators, operands, kept, spec.registers) * of_vector(t.ob)
    trips = w.in_channels // t.ib * t.ib / knobs["unroll_channels"]
    begins = w.in_channels // t.ib
    each = w.in_channels * step + trips * LOOP + begins * ENTRY + TILE
    transforms = _of({size: float(transforms_weights(w, size)) for size in SIZES}, m) > 0
    rounds = np.where(transforms, np.ceil(w.in_channels / t.ib / t.channels), 1.0)
    store = t.accumulators * 2 / STORES * rounds
    points = w.batch * t.tiles[1] * high * t.tiles[2] * wide
    again = np.where(knobs["stages"] > 0, 1.0, t.chunks[0])
    into = points * (w.in_channels // t.ib) * of_vector(t.ib)
    inverse = points * (w.out_channels // t.ob) * of_vector(t.ob)
    kinds = [each.kind for each in w.epilogue]
    other = (
        tiles * store
        + into * again * (_of(INPUT, m) + np.where(knobs["copy"] == 0, area * BORDER, 0.0))
        + inverse * (_of(INVERSE, m) + finish_cycles(m**2, kinds))
    )
    filters = w.batch * t.chunks[1] * t.chunks[2] * w.in_channels * (w.out_channels // t.ob)
    filters = filters * of_vector(t.ob) * _of(FILTER, m)
    other = other + np.where(transforms, filters, 0.0)
    copied = np.where(knobs["copy"] == 1, (m + 2) / m * again, 1.0) * into * m**2 * COPY
    other = other + np.where(knobs["copy"] > 0, copied, 0.0)
    read = np.where(transforms, TAPS / area, 1.0)
    chunks = w.batch * np.prod(t.chunks, axis=0)
    launches = 1 + (knobs["stages"] > 0) + (knobs["copy"] == 2)
    return Parts(
        tiles * each,
        other,
        _moved(w, t, knobs, area, np.ones_like(area), machine.l1),
        _moved(w, t, knobs, area, read, machine.l2),
        (t.accumulators + kept + 1) / spec.registers,
        np.where(knobs["parallel"] > 0, busiest(chunks, spec.threads), 1.0),
        knobs["parallel"] * launches,
        t.accumulators * knobs["unroll_channels"] / MAX_UNROLLED,
    )


def _of(figures: Mapping[int, float], m: Array) -> Array:
    return np.where(m > 2, figures[4], figures[2])


def _moved(w: Workload, t: Tilings, knobs: Knobs, area: Array, read: Array, cache: float) -> Array:
    """Bytes that come into a `cache`, shape (configs,), where `read` of each transformed weight
    does."""

    def bodies(size: Mapping[str, Array]) -> dict[str, Array]:
        points = size["y"] * size["x"] * size["p"]
        return {
            "data": NUMBER * w.in_channels * points,
            "weights": NUMBER * w.in_channels * size["o"] * t.ob * size["p"] * read,
            "products": NUMBER * size["o"] * t.ob * points,
        }

    ones = np.ones_like(area)
    first = knobs["tiles_first"] > 0
    extents = {"o": t.tile[0], "y": t.tile[1], "x": t.tile[2], "p": ones}
    loops = [
        {"p": np.where(first, area, ones)},
        {"x": t.chunk[2]},
        {"y": t.chunk[1]},
        {"p": np.where(first, ones, area)},
        {"o": t.chunk[0]},
        *ordered(t.chunks, knobs["chunks_first"] > 0),
    ]
    return w.batch * moved(bodies, extents, loops, cache)
