"""Estimates of convolutions without groups (`targets.cpu.kernels.conv2d`), direct and Winograd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.targets.cpu.bounds import NUMBER_BYTES
from tilewright.targets.cpu.estimates.cost_model import (
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
    moved_bytes,
    of_vector,
    step_cycles,
)
from tilewright.targets.cpu.kernels.conv2d_int8 import must_copy
from tilewright.targets.cpu.kernels.conv2d_shapes import MAX_UNROLLED, pixels
from tilewright.targets.cpu.kernels.int8_dot_product import TWOS, dot_product
from tilewright.targets.cpu.kernels.padding import is_padded
from tilewright.targets.cpu.kernels.tile_arithmetic import divisors
from tilewright.targets.cpu.kernels.winograd import WINOGRAD_SIZES, transforms_weights
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class Tilings:
    """Tile sizes of several configs of a convolution, as arrays with one value per config.

    A register tile is a block of the output whose accumulators are held in vector registers.
    `targets.cpu.kernels.conv2d_shapes.CpuTiling` holds the same values for a single config.

    Attributes:
        ib: input channels per block.
        ob: output channels per block.
        tile: channel blocks, rows and columns of a register tile, shape (configs,) each.
        accumulators: number of accumulator vectors of a register tile, shape (configs,).
        tiles: number of register tiles that cover the output, along the axes of `tile`.
        chunk: number of register tiles per parallel chunk, along the same axes.
        channels: number of blocks of input channels that are added before partial sums are stored,
            shape (configs,).
    """

    ib: int
    ob: int
    tile: tuple[Array, Array, Array]
    accumulators: Array
    tiles: tuple[Array, Array, Array]
    chunk: tuple[Array, Array, Array]
    channels: Array

    @classmethod
    def for_configs(
        cls, w: Workload, spec: CpuSpec, knobs: Knobs, size: tuple[Array, Array]
    ) -> Tilings:
        """Derive the tile sizes from configs.

        Args:
            w: the workload.
            spec: the processor.
            knobs: values of each knob, shape (configs,), by the knob's name.
            size: rows and columns of the output, shape (configs,) each.
        """
        ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
        room = (spec.registers - 2) // knobs["tile_oc"]
        columns = _even_parts(size[1], np.maximum(1, np.minimum(knobs["tile_ow"], room)))
        rows = _even_parts(size[0], np.maximum(1, np.minimum(knobs["tile_oh"], room // columns)))
        tile = (knobs["tile_oc"], rows, columns)
        sizes = (np.full_like(rows, w.out_channels // ob), *size)
        tiles = tuple(np.ceil(length / extent) for length, extent in zip(sizes, tile, strict=True))
        parts = (knobs["parts_oc"], knobs["parts_oh"], knobs["parts_ow"])
        chunk = tuple(
            nearest_divisors(count, np.maximum(1, np.ceil(length / (part_count * extent))))
            for count, length, part_count, extent in zip(tiles, sizes, parts, tile, strict=True)
        )
        blocks = np.full_like(rows, w.in_channels // ib)
        channels = nearest_divisors(blocks, np.maximum(1, blocks // knobs["parts_ic"]))
        return cls(ib, ob, tile, knobs["tile_oc"] * rows * columns, tiles, chunk, channels)  # type: ignore[arg-type]

    @property
    def chunks(self) -> tuple[Array, Array, Array]:
        """Number of chunks along channel blocks, rows and columns, shape (configs,) each."""
        blocks, rows, columns = (a / b for a, b in zip(self.tiles, self.chunk, strict=True))
        return blocks, rows, columns


def nearest_divisors(numbers: Array, wanted: Array) -> Array:
    """Return the divisor of each number that is nearest, in ratio, to a wanted divisor.

    This is the version of `targets.cpu.kernels.tile_arithmetic.nearest_divisor` for arrays.

    Args:
        numbers: the numbers to divide, shape (configs,).
        wanted: the wanted divisors, shape (configs,).

    Returns:
        The divisors, shape (configs,).
    """
    nearest = np.empty_like(numbers)
    for number in np.unique(numbers):
        rows = numbers == number
        all_divisors = np.array(divisors(int(number), int(number)), np.float64)
        ratios = all_divisors / wanted[rows, None]
        nearest[rows] = all_divisors[np.argmin(np.maximum(ratios, 1 / ratios), axis=1)]
    return nearest


def _even_parts(lengths: Array, at_most: Array) -> Array:
    return np.asarray(np.ceil(lengths / np.ceil(lengths / at_most)))


# -- direct ------------------------------------------------------------------------------------


COPY = 3.0
"""Cycles to copy one vector of data into a padded buffer: a test whether the vector lies in the
padding, a load and a store (fitted)."""
FLATTENED = 150
"""Maximum number of multiply-adds in a loop over the channels of a block that LLVM unrolls
completely without being told to (fitted)."""


def estimate_direct(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Estimate the latency of the direct convolution algorithm.

    Args:
        w: the workload.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name. `algorithm` is ignored.

    Returns:
        Parts of the latency, such as cycles of multiply-adds and bytes moved, shape (configs,)
        each.
    """
    spec = machine.spec
    ones = np.ones_like(knobs["tile_ow"])
    rows, columns = pixels(w)
    t = Tilings.for_configs(w, spec, knobs, (rows * ones, columns * ones))
    blocks, high, wide = t.tile
    count = w.batch * np.prod(t.tiles, axis=0)
    rounds = w.in_channels // t.ib / t.channels
    several = rounds > 1
    operands = blocks, high * wide
    kept = kept_operands(*operands, blocks, knobs["pixels_first"] > 0)
    copied, launches = _copies(w, machine, t, knobs, several)
    vector_cost = of_vector(t.ob)
    flips = np.zeros_like(rounds)
    if w.dtype == "int8":  # operands in registers, whole vectors; data are flipped if not copied
        kept, vector_cost = kept + 1, 1.0
        flips = np.where(copied > 0, 0.0, high * wide / MULTIPLIES)
        if dot_product(spec) is TWOS:  # a second instruction adds the products
            flips = flips + t.accumulators / (2 * MULTIPLIES)
    step = step_cycles(t.accumulators, operands, kept, spec.registers) + flips
    step = (step + SPILL / 2 * _reloaded_values(w, spec, t, knobs)) * vector_cost
    steps = w.in_channels // t.ib * _steps(w, spec, t) * w.kernel_h * w.kernel_w
    body = knobs["unroll_channels"]
    multiply = count * (steps * step + _loops(w, spec, t, knobs) + rounds * TILE)
    epilogue_kinds = [op.kind for op in w.epilogue]
    finish = count * finish_cycles(t.accumulators, epilogue_kinds) * vector_cost
    sums = count * t.accumulators * (rounds * 2 + 2) / STORES
    code = t.accumulators * body * np.where(knobs["unroll_kernel"] > 0, w.kernel_w, 1)
    code = code * np.where(knobs["unroll_kernel"] > 1, w.kernel_h, 1) / MAX_UNROLLED
    chunks = w.batch * np.prod(t.chunks, axis=0)
    busiest_share = np.where(knobs["parallel"] > 0, busiest(chunks, spec.threads), 1.0)
    return Parts(
        multiply,
        finish + np.where(several, sums, 0.0) + copied,
        _moved_direct(w, spec, t, knobs, rounds, machine.l1),
        _moved_direct(w, spec, t, knobs, rounds, machine.l2),
        (t.accumulators + kept + 1) / spec.registers,
        busiest_share,
        knobs["parallel"] * (1 + launches),
        code,
    )


def _steps(w: Workload, spec: CpuSpec, t: Tilings) -> int:
    """Return the instructions per accumulator, kernel position and block of input channels.

    An instruction is a multiply-add in float32, and a dot product of several channels in int8.

    Args:
        w: the workload.
        spec: the processor.
        t: the tile sizes.
    """
    return dot_product(spec).steps(t.ib) if w.dtype == "int8" else t.ib


def _loops(w: Workload, spec: CpuSpec, t: Tilings, knobs: Knobs) -> Array:
    """Return the cycles per register tile for loop control: counters and branches.

    Args:
        w: the workload.
        spec: the processor.
        t: the tile sizes.
        knobs: values of each knob, shape (configs,), by the knob's name. `unroll_channels` and
            `unroll_kernel` select the loops that are unrolled.

    Returns:
        Cycles, shape (configs,).
    """
    taps = w.kernel_h * w.kernel_w
    blocks = w.in_channels // t.ib
    trips = _steps(w, spec, t) / knobs["unroll_channels"]
    columns = np.where(knobs["unroll_kernel"] > 0, 1, w.kernel_w)
    kernel_trips = blocks * np.where(knobs["unroll_kernel"] > 1, 1, w.kernel_h) * columns
    return np.where(
        trips > 1,
        blocks * taps * (trips * LOOP + ENTRY),
        kernel_trips * LOOP + kernel_trips / columns * ENTRY,
    )


def _reloaded_values(w: Workload, spec: CpuSpec, t: Tilings, knobs: Knobs) -> Array:
    """Return the number of data values that LLVM spills to the stack per multiply-add.

    If kernel positions are unrolled and neighbouring pixels read the same data, LLVM keeps data
    values for the next kernel positions, even if it has no registers for them. About half of the
    data that the tile reads is needed at a time (fitted).

    Args:
        w: the workload.
        spec: the processor.
        t: the tile sizes.
        knobs: values of each knob, shape (configs,), by the knob's name.

    Returns:
        Data values per multiply-add (or dot product, for int8) of an accumulator, shape (configs,).
    """
    unroll = knobs["unroll_kernel"]
    steps = _steps(w, spec, t)
    is_flat = (steps * t.accumulators <= FLATTENED) | (knobs["unroll_channels"] == steps)
    _, high, wide = t.tile
    rows = np.where(unroll > 1, (high - 1) * w.stride_h + w.kernel_h, high)
    window = rows * ((wide - 1) * w.stride_w + w.kernel_w)
    excess = t.accumulators + t.tile[0] + window / 2 - spec.registers
    overlaps = (unroll > 0) & (w.kernel_w > w.stride_w)
    return np.where(is_flat & overlaps, np.clip(excess, 0.0, high * wide), 0.0)


def _copies(
    w: Workload, machine: CpuMachine, t: Tilings, knobs: Knobs, several: Mask
) -> tuple[Array, Array]:
    """Return the cost of copying the data to a padded buffer before the convolution.

    Args:
        w: the workload.
        machine: properties of a core.
        t: the tile sizes.
        knobs: values of each knob, shape (configs,), by the knob's name.
        several: whether the input channels are divided into parts, between which partial sums are
            stored, shape (configs,).

    Returns:
        The cycles of the copy, summed over all cores, and the number of parallel loops that the
        copy adds (0 or 1), shape (configs,) each.
    """
    reach = (w.dilation_h * (w.kernel_h - 1), w.dilation_w * (w.kernel_w - 1))
    covered = (t.tiles[1] * t.tile[1], t.tiles[2] * t.tile[2])
    rows, columns = pixels(w)
    needed = is_padded(w) | (covered[0] != rows) | (covered[1] != columns)
    vector_cycles = of_vector(t.ib) * COPY
    if w.dtype == "int8":
        dot = dot_product(machine.spec)
        needed = np.full_like(needed, must_copy(t.ib, w, dot))
        vector_cycles = COPY * (
            t.ib if t.ib % dot.numbers else dot.steps(t.ib) / machine.spec.lanes
        )
    copies = needed | (knobs["copy"] > 0)
    chunk_area = np.ones_like(covered[0])
    whole_area = np.ones_like(covered[0])
    strides = (w.stride_h, w.stride_w)
    for axis in (0, 1):
        chunk = t.chunk[axis + 1] * t.tile[axis + 1]
        chunk_area *= ((chunk - 1) * strides[axis] + 1 + reach[axis]) * t.chunks[axis + 1]
        whole_area *= (covered[axis] - 1) * strides[axis] + 1 + reach[axis]
    in_chunks = (knobs["copy"] == 1) | ((knobs["copy"] == 2) & several)
    area = np.where(in_chunks, chunk_area * t.chunks[0], whole_area)
    cycles = w.batch * (w.in_channels // t.ib) * area * vector_cycles
    return np.where(copies, cycles, 0.0), np.where(copies & ~in_chunks, 1.0, 0.0)


def _moved_direct(
    w: Workload, spec: CpuSpec, t: Tilings, knobs: Knobs, rounds: Array, cache: float
) -> Array:
    """Return the bytes that the direct convolution algorithm moves into a cache, shape (configs,).

    Args:
        w: the workload.
        spec: the processor.
        t: the tile sizes.
        knobs: values of each knob, shape (configs,), by the knob's name.
        rounds: number of parts into which the input channels are divided, shape (configs,).
        cache: size of the cache in bytes.
    """
    reach = (w.dilation_h * (w.kernel_h - 1) + 1, w.dilation_w * (w.kernel_w - 1) + 1)
    out_tensors = 1 + sum(step.kind in ("residual", "add_dequantised") for step in w.epilogue)
    steps = _steps(w, spec, t)

    def bodies(size: Mapping[str, Array]) -> dict[str, Array]:
        high = (size["y"] - 1) * w.stride_h + reach[0]
        wide = (size["x"] - 1) * w.stride_w + reach[1]
        return {
            "data": NUMBER * steps * size["c"] * high * wide,
            "weights": NUMBER * steps * size["c"] * w.kernel_h * w.kernel_w * size["o"] * t.ob,
            "out": NUMBER_BYTES[w.out_dtype]
            * out_tensors
            * size["o"]
            * t.ob
            * size["y"]
            * size["x"],
        }

    extents = {"o": t.tile[0], "y": t.tile[1], "x": t.tile[2], "c": t.channels}
    loops = [
        *ordered(t.chunk, knobs["tiles_first"] > 0),
        {"c": rounds},
        *ordered(t.chunks, knobs["chunks_first"] > 0),
    ]
    return w.batch * moved_bytes(bodies, extents, loops, cache)


def ordered(trips: tuple[Array, Array, Array], first: Mask) -> list[dict[str, Array]]:
    """Return the loops over channel blocks, rows and columns, as a list for `moved_bytes`.

    Args:
        trips: number of iterations over channel blocks, rows and columns, shape (configs,) each.
        first: whether loops over pixels are outside the loop over channels, shape (configs,).

    Returns:
        One mapping per loop, innermost loop first. It maps the axis (`o`, `y` or `x`) to the factor
        by which the loop multiplies the extent along this axis, shape (configs,).
    """
    blocks, rows, columns = trips
    ones = np.ones_like(rows)
    return [
        {"o": np.where(first, blocks, ones)},
        {"x": columns},
        {"y": rows},
        {"o": np.where(first, ones, blocks)},
    ]


# -- Winograd's algorithm ----------------------------------------------------------------------


INPUT = {2: 60.0, 4: 220.0}
"""Cycles to transform one tile of data for one vector of channels, by the number of output pixels
per side of the tile. A transform consists of 32 or 264 additions, of loads and stores of 16 or 36
values each, and of register spills (fitted)."""
INVERSE = {2: 30.0, 4: 180.0}
"""Cycles of the inverse transform of one tile for one vector of channels, without the epilogue, by
the number of output pixels per side of the tile. The transform consists of 36 or 180 additions
(fitted)."""
TAPS = 9
"""Number of weights of a 3×3 filter."""
FILTER = {2: 60.0, 4: 150.0}
"""Cycles to transform one vector of filters, by the number of output pixels per side of a tile.
They count only if the kernel transforms the filters itself (fitted)."""
BORDER = 4.0
"""Cycles to test whether one vector of data lies in the padding, if the data are read without a
padded copy (fitted)."""


def estimate_winograd(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Estimate the latency of Winograd's convolution algorithm.

    Args:
        w: the workload.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name. An `algorithm` of 0 is
            treated as 2, which is the tile size m.

    Returns:
        Parts of the latency, such as cycles of multiply-adds and bytes moved, shape (configs,)
        each.
    """
    spec = machine.spec
    m = np.maximum(knobs["algorithm"], 2)
    area = (m + 2) ** 2
    t = Tilings.for_configs(w, spec, knobs, (np.ceil(w.out_height / m), np.ceil(w.out_width / m)))
    blocks, high, wide = t.tile
    tiles = w.batch * area * np.prod(t.tiles, axis=0)
    operands = blocks, high * wide
    kept = kept_operands(*operands, blocks, knobs["pixels_first"] > 0)
    step = step_cycles(t.accumulators, operands, kept, spec.registers) * of_vector(t.ob)
    trips = w.in_channels // t.ib * t.ib / knobs["unroll_channels"]
    loop_entries = w.in_channels // t.ib
    tile_cycles = w.in_channels * step + trips * LOOP + loop_entries * ENTRY + TILE
    transforms = (
        _of_size({size: float(transforms_weights(w, size)) for size in WINOGRAD_SIZES}, m) > 0
    )
    rounds = np.where(transforms, np.ceil(w.in_channels / t.ib / t.channels), 1.0)
    store = t.accumulators * 2 / STORES * rounds
    points = w.batch * t.tiles[1] * high * t.tiles[2] * wide
    repetitions = np.where(knobs["stages"] > 0, 1.0, t.chunks[0])
    data_vectors = points * (w.in_channels // t.ib) * of_vector(t.ib)
    inverse = points * (w.out_channels // t.ob) * of_vector(t.ob)
    epilogue_kinds = [op.kind for op in w.epilogue]
    other = (
        tiles * store
        + data_vectors
        * repetitions
        * (_of_size(INPUT, m) + np.where(knobs["copy"] == 0, area * BORDER, 0.0))
        + inverse * (_of_size(INVERSE, m) + finish_cycles(m**2, epilogue_kinds))
    )
    filters = w.batch * t.chunks[1] * t.chunks[2] * w.in_channels * (w.out_channels // t.ob)
    filters = filters * of_vector(t.ob) * _of_size(FILTER, m)
    other = other + np.where(transforms, filters, 0.0)
    copied = (
        np.where(knobs["copy"] == 1, (m + 2) / m * repetitions, 1.0) * data_vectors * m**2 * COPY
    )
    other = other + np.where(knobs["copy"] > 0, copied, 0.0)
    weight_share = np.where(transforms, TAPS / area, 1.0)
    chunks = w.batch * np.prod(t.chunks, axis=0)
    launches = 1 + (knobs["stages"] > 0) + (knobs["copy"] == 2)
    return Parts(
        tiles * tile_cycles,
        other,
        _moved_winograd(w, t, knobs, area, np.ones_like(area), machine.l1),
        _moved_winograd(w, t, knobs, area, weight_share, machine.l2),
        (t.accumulators + kept + 1) / spec.registers,
        np.where(knobs["parallel"] > 0, busiest(chunks, spec.threads), 1.0),
        knobs["parallel"] * launches,
        t.accumulators * knobs["unroll_channels"] / MAX_UNROLLED,
    )


def _of_size(figures: Mapping[int, float], m: Array) -> Array:
    return np.where(m > 2, figures[4], figures[2])


def _moved_winograd(
    w: Workload, t: Tilings, knobs: Knobs, area: Array, read: Array, cache: float
) -> Array:
    """Return the bytes that Winograd's algorithm moves into a cache, shape (configs,).

    Args:
        w: the workload.
        t: the tile sizes.
        knobs: values of each knob, shape (configs,), by the knob's name.
        area: transformed values per patch of the data, (m + 2)², shape (configs,).
        read: values that are read per transformed weight, shape (configs,); below 1 if the kernel
            transforms the weights itself.
        cache: size of the cache in bytes.
    """

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
    return w.batch * moved_bytes(bodies, extents, loops, cache)
