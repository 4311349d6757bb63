"""Tile sizes of convolutions without groups, in float32 and int8: knobs and rule schedule.

`direct_knobs` lists the possible sizes. `baseline_values` chooses among them without measuring,
which gives the rule schedule. `winograd.rule_size` decides whether the rule schedule uses
Winograd's algorithm.

Unless a comment says otherwise, the constants of the rule were chosen on the Xeon of
docs/evidence/cpu.md (Sapphire Rapids, 2 MiB of second-level cache per core), with vectors of 512
and of 256 bits. To check a change, compare the tables of two benchmarks before and after it:
`python -m benchmarks.cpu.peak` measures the rule schedule of each layer of ten networks on one
thread, and `python -m benchmarks.cpu.networks` measures whole networks.
"""

from __future__ import annotations

from itertools import product
from math import prod

from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import winograd
from tilewright.targets.cpu.kernels.conv2d_shapes import CpuTiling, pixels
from tilewright.targets.cpu.kernels.int8_dot_product import TWOS, dot_product
from tilewright.targets.cpu.kernels.padding import is_padded
from tilewright.targets.cpu.kernels.tile_arithmetic import divisors, even_parts
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

SIXTEEN = 16
"""Number of vector registers of AVX2. They are too few to hold the data values of three kernel
columns at once."""
CACHE = 1 << 19
"""Maximum size in bytes that the rule schedule allows for the weights or the data of one chunk:
half of a typical second-level cache."""
TRANSFORMED = 1 << 17
"""Maximum size in bytes that the rule schedule allows for the data of one chunk in Winograd's
algorithm. Larger chunks took up to 1.3 times as long (`python -m benchmarks.cpu.peak --networks
resnet18,vgg11`)."""
FEWEST_TILES = 14
"""Minimum number of Winograd tiles per chunk, if the weights do not fit into the cache. With fewer
tiles, reading the weights takes longer than multiplying (measured like `TRANSFORMED`)."""
NEAR = 1 << 15
"""Maximum size in bytes that the rule schedule allows for the weights of a register tile, if the
weights are large: the size of a first-level cache."""
LATENCY = 8
"""Number of multiply-adds that a core can start before the result of the first one is available:
two per cycle, with a latency of four cycles (Intel's and AMD's manuals)."""
COPY_CYCLES = 6.0
"""Assumed cycles to copy one vector of data. We chose twice the value that latency estimates use
(`targets.cpu.estimates.convolution.COPY`)."""
WASTED = 0.9
"""Relative worth of a register tile whose last pixels are computed and discarded, in Winograd's
algorithm. A tile without discarded pixels has worth 1. We chose the value."""


def direct_knobs(
    w: Workload, spec: CpuSpec, parts_ic: tuple[int, ...], steps: int
) -> tuple[Knob, ...]:
    """Return the knobs of a direct convolution.

    Args:
        w: the workload.
        spec: the processor.
        parts_ic: possible numbers of parts into which the input channels are cut.
        steps: number of multiply-adds (float32) or dot products (int8) per accumulator, block of
            input channels and kernel position.
    """
    rows, columns = pixels(w)
    out_blocks = w.out_channels // channel_block(w.out_channels, spec.lanes)
    room = spec.registers - 2
    return (
        Knob("tile_ow", _part_lengths(columns, room)),
        Knob(
            "tile_oh",
            tuple(rows_each for rows_each in (1, 2, 3, 4, 7) if rows_each <= min(rows, room)),
        ),
        Knob("tile_oc", divisors(out_blocks, min(8, room))),
        Knob("parts_oc", divisors(out_blocks, out_blocks)),
        Knob("parts_oh", _part_counts(rows)),
        Knob("parts_ow", _part_counts(columns if rows == 1 else min(columns, 4))),
        Knob("parts_ic", parts_ic),
        Knob("chunks_first", (0, 1)),
        Knob("tiles_first", (0, 1)),
        Knob("pixels_first", (0, 1)),
        Knob("unroll_kernel", (0, 1, 2) if w.kernel_h * w.kernel_w > 1 else (0,)),
        Knob("unroll_channels", divisors(steps, 8)),
        Knob("copy", (0, 1, 2)),
    )


def _part_lengths(length: int, at_most: int) -> tuple[int, ...]:
    """Return the possible lengths of equal parts that cover a dimension.

    Args:
        length: length of the dimension.
        at_most: largest length of a part.
    """
    return tuple(sorted({even_parts(length, most) for most in range(1, at_most + 1)}))


def _part_counts(length: int) -> tuple[int, ...]:
    """Return possible numbers of parts of a dimension: 1 to 4, powers of two, and its length.

    Args:
        length: length of the dimension.
    """
    doubled = (1 << power for power in range(3, length.bit_length()))
    return tuple(sorted({*range(1, min(length, 4) + 1), *doubled, length}))


def baseline_values(w: Workload, spec: CpuSpec, knobs: tuple[Knob, ...]) -> dict[str, int]:
    """Choose the rule schedule of a convolution without groups.

    The rule uses the register tile with the most multiply-adds per instruction, chunks whose
    weights and data stay in the cache, and Winograd's algorithm where its transforms pay off.

    Args:
        w: the workload.
        spec: the processor.
        knobs: knobs of the search space.

    Returns:
        The value of each knob, by its name.
    """
    m = winograd.rule_size(w, spec)
    rows, columns = pixels(w)
    if m:
        rows, columns = -(-w.out_height // m), -(-w.out_width // m)
    ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
    dots = w.dtype == "int8" and not m  # data are best copied, and tiles overlap
    partial_worth = WASTED if m else 1.0 if is_padded(w) or dots else _worth_with_copy(w)
    blocks, tile_h, tile_w = _tile(w.out_channels // ob, rows, columns, partial_worth, spec, dots)
    area = (m + 2) ** 2 if m else w.kernel_h * w.kernel_w
    number = 4 // dot_product(spec).numbers if dots else 4
    weights = number * w.out_channels * w.in_channels * area
    pixels_each = number * w.in_channels * (area if m else w.stride_h * w.stride_w)
    more_weights = rows * columns * pixels_each < weights
    three_columns = w.kernel_w == 3 and w.stride_w == 1
    wanted = {
        "algorithm": m,
        "tile_ow": tile_w,
        "tile_oh": tile_h,
        "tile_oc": blocks,
        "parts_oc": 1,
        "parts_oh": 1,
        "parts_ow": 1,
        "parts_ic": 1,
        "chunks_first": 1,
        "pixels_first": 1,
        "unroll_kernel": 1 if three_columns and spec.registers > SIXTEEN and not (m or dots) else 0,
        "unroll_channels": _unrolled_channels(w, spec, ib, dots),
        "copy": 1 if dots or (is_padded(w) and not m and not _chunks_overlap(w)) else 0,
        "stages": 1 if m and more_weights else 0,
        "parallel": 1 if spec.threads > 1 else 0,
    }
    fewest_chunks = 4 * spec.threads  # enough chunks that no thread waits long
    if more_weights:  # each thread reads its own weights, once
        wanted["parts_oc"] = max(fewest_chunks, weights // CACHE)
        if m and winograd.transforms_weights(w, m):
            wanted["parts_ic"] = number * blocks * ob * w.in_channels * area // (CACHE // 2)
        if not m:
            wanted["copy"] = 1 if dots else 0
            tile_bytes = number * blocks * ob * w.in_channels * area
            wanted["parts_ic"] = tile_bytes // NEAR if 2 * tile_bytes > CACHE else 1
    else:
        pieces = rows * columns * pixels_each // (TRANSFORMED if m else CACHE)
        # Each chunk reads more weights than the cache holds.
        limit_chunks = m and weights > 2 * CACHE
        if limit_chunks:
            pieces = min(pieces, rows * columns // FEWEST_TILES)
        pieces = max(fewest_chunks, pieces)
        high = wanted["parts_oh"] = min(rows, pieces)
        wanted["parts_ow"] = pieces // high if limit_chunks else -(-pieces // high)
        if not m:  # Winograd would transform a chunk's data per part
            wanted["parts_oc"] = weights // CACHE
    values = {knob.name: _nearest_value(knob, wanted.get(knob.name, 0)) for knob in knobs}
    return _cut_finer(w, spec, values, knobs, (rows, columns)) if spec.threads > 1 else values


def _cut_finer(
    w: Workload, spec: CpuSpec, values: dict[str, int], knobs: tuple[Knob, ...],
    size: tuple[int, int],
) -> dict[str, int]:  # fmt: skip
    """Cut the pixels into more chunks if there are too few chunks to occupy all threads.

    All chunks have the same number of whole register tiles. If the number of tiles is a prime such
    as 167, a request for eight parts therefore has no effect. The function increases the knobs
    `parts_oh` and `parts_ow` until there are at least two chunks per thread.

    Args:
        w: the workload.
        spec: the processor.
        values: the config so far, by knob name.
        knobs: knobs of the search space.
        size: rows and columns of the output as the kernel sees them.

    Returns:
        The config with more chunks; `values` unchanged if there are already enough chunks, or if no
        config has enough.
    """

    def chunks(values: dict[str, int]) -> int:
        t = CpuTiling.for_config(w, spec, values, size)
        return w.batch * prod(tiles // chunk for tiles, chunk in zip(t.tiles, t.chunk, strict=True))

    if chunks(values) >= 2 * spec.threads:
        return values
    parts = {knob.name: knob.values for knob in knobs if knob.name in ("parts_oh", "parts_ow")}
    finer = [
        values | {"parts_oh": high, "parts_ow": wide}
        for high, wide in product(parts["parts_oh"], parts["parts_ow"])
        if high >= values["parts_oh"] and wide >= values["parts_ow"]
    ]
    finer.sort(key=lambda candidate: candidate["parts_oh"] * candidate["parts_ow"])
    return next((candidate for candidate in finer if chunks(candidate) >= 2 * spec.threads), values)


def _worth_with_copy(w: Workload) -> float:
    """Return the weight, below 1, of a register tile that does not divide the image.

    The rule for tile sizes multiplies the score of the tile by this weight. The tile costs more,
    because the data have to be copied to a larger buffer first.
    """
    multiplies = w.out_channels * w.kernel_h * w.kernel_w / (2 * w.stride_h * w.stride_w)
    return 1 / (1 + COPY_CYCLES / multiplies)  # cycles per vector of the data


def _chunks_overlap(w: Workload) -> bool:
    """Return whether copies of the data per parallel chunk would copy many rows several times.

    This happens if a large dilation spreads the kernel rows over at least a third of the image. One
    copy of the whole image is then less work.
    """
    return 3 * (w.kernel_h - 1) * w.dilation_h >= w.height and w.dilation_h > 1


def _unrolled_channels(w: Workload, spec: CpuSpec, block: int, dots: bool) -> int:
    """Choose the number of input channels per block whose multiply-adds are unrolled.

    With the 32 registers of AVX-512, unrolling saves 3 to 5 % of the time (`python -m
    benchmarks.cpu.peak`), except in a convolution with a dilation.

    Args:
        w: the workload.
        spec: the processor.
        block: input channels per block.
        dots: whether the kernel uses int8 dot products.
    """
    one = w.kernel_h * w.kernel_w == 1
    if block < 5 or (dots and one):
        return block
    if dots or spec.registers == SIXTEEN:
        return 1
    return 4 if one or max(w.dilation_h, w.dilation_w) > 1 else 8


def _tile(
    blocks: int, rows: int, columns: int, copied: float, spec: CpuSpec, dots: bool
) -> tuple[int, int, int]:
    """Choose the register tile with the most multiply-adds per instruction.

    Args:
        blocks: number of blocks of output channels.
        rows: rows of the output.
        columns: columns of the output.
        copied: relative worth, at most 1, of a tile that does not divide the image and therefore
            needs a padded copy of the data. A tile that divides the image has worth 1.
        spec: the processor.
        dots: whether the kernel uses int8 dot products, which need other registers for operands.

    Returns:
        Channel blocks, rows and columns of the tile.
    """
    room = spec.registers - 2

    def fits(wide: int, pixels: int) -> bool:
        if dots:
            return wide * pixels <= room + dot_product(spec).numbers // 4 - wide
        return wide * pixels + wide + 1 <= spec.registers  # sums, weights and one number

    def worth(tile: tuple[int, int, int]) -> float:
        wide, high, long = tile
        adds, loads = wide * high * long, wide + high * long
        covered = -(-rows // high) * high * -(-columns // long) * long
        whole = 1.0 if covered == rows * columns else copied
        wait: float = max(loads, LATENCY)
        if dots and dot_product(spec) is TWOS:  # sums only wait for a short addition
            wait = loads * 2 / 3
        return adds / (max(adds, wait) + loads / 8 + 1) * rows * columns / covered * whole

    candidates = [
        (wide, even_parts(rows, high), even_parts(columns, long))
        for wide, high, long in product((1, 2, 3, 4, 5, 6, 8), range(1, 9), range(1, room + 1))
        if blocks % wide == 0 and fits(wide, high * long)
    ]
    return max(candidates, key=worth)


def _nearest_value(knob: Knob, wanted: int) -> int:
    """Return the knob's value that is nearest to `wanted` in ratio."""

    def apart(value: int) -> float:
        return max((value + 1) / (wanted + 1), (wanted + 1) / (value + 1))

    return min(knob.values, key=apart)
