"""Computes `targets.cpu.kernels.tiling.CpuTiling` for many configs at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.targets.cpu.estimates.machine import Array, Knobs
from tilewright.targets.cpu.kernels.shared import divisors
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class Tilings:
    """As `Tiling`, arrays of shape (configs,) where that has numbers."""

    ib: int
    ob: int
    tile: tuple[Array, Array, Array]
    accumulators: Array
    tiles: tuple[Array, Array, Array]
    chunk: tuple[Array, Array, Array]
    channels: Array

    @classmethod
    def of(cls, w: Workload, spec: CpuSpec, knobs: Knobs, size: tuple[Array, Array]) -> Tilings:
        """For outputs of `size` (rows, columns), shape (configs,) each."""
        ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
        room = (spec.registers - 2) // knobs["tile_oc"]
        columns = _even_parts(size[1], np.maximum(1, np.minimum(knobs["tile_ow"], room)))
        rows = _even_parts(size[0], np.maximum(1, np.minimum(knobs["tile_oh"], room // columns)))
        tile = (knobs["tile_oc"], rows, columns)
        sizes = (np.full_like(rows, w.out_channels // ob), *size)
        tiles = tuple(np.ceil(length / each) for length, each in zip(sizes, tile, strict=True))
        parts = (knobs["parts_oc"], knobs["parts_oh"], knobs["parts_ow"])
        chunk = tuple(
            nearest_divisors(count, np.maximum(1, np.ceil(length / (cut * each))))
            for count, length, cut, each in zip(tiles, sizes, parts, tile, strict=True)
        )
        blocks = np.full_like(rows, w.in_channels // ib)
        channels = nearest_divisors(blocks, np.maximum(1, blocks // knobs["parts_ic"]))
        return cls(ib, ob, tile, knobs["tile_oc"] * rows * columns, tiles, chunk, channels)  # type: ignore[arg-type]

    @property
    def chunks(self) -> tuple[Array, Array, Array]:
        """How many chunks there are of channel blocks, rows and columns."""
        blocks, rows, columns = (a / b for a, b in zip(self.tiles, self.chunk, strict=True))
        return blocks, rows, columns


def nearest_divisors(numbers: Array, wanted: Array) -> Array:
    """`targets.cpu.kernels.shared.nearest_divisor` of each pair, shape (configs,)."""
    found = np.empty_like(numbers)
    for number in np.unique(numbers):
        rows = numbers == number
        known = np.array(divisors(int(number), int(number)), np.float64)
        apart = known / wanted[rows, None]
        found[rows] = known[np.argmin(np.maximum(apart, 1 / apart), axis=1)]
    return found


def _even_parts(lengths: Array, at_most: Array) -> Array:
    return np.asarray(np.ceil(lengths / np.ceil(lengths / at_most)))
