"""Estimates what an average of results costs behind a tile's epilogue, in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.tile_codegen import COMPUTE_LATENCY


def average_cycles(geo: Geometry, blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cycles of compute of tiles with so many output blocks, (n,), in which whole images are
    averaged: additions take two, what a bit of the smaller tap takes are two operations; 0 where
    nothing is averaged."""
    if not geo.average_taps:
        return np.zeros_like(blocks)
    pixels = geo.oh * geo.ow
    tap, apart = divmod(geo.average_taps, pixels)
    bits = tap.bit_count() if apart else 0
    each = 2 * pixels + 2 + 3 * bits + geo.average_steps
    return blocks * each + COMPUTE_LATENCY * (3.0 + 2 * bits + geo.average_steps)
