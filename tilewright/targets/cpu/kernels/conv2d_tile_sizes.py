"""Chooses the tile sizes of a convolution without groups, in float32 and int8.

`direct_knobs` lists the sizes that there are. `baseline_values` chooses among them without any
measurement, the rule schedule of this target. `winograd.rule_size` decides whether it is Winograd's
algorithm.

Where a comment names no other place, the constants of the rule were chosen on the Xeon (Sapphire
Rapids, 2 MiB of second-level cache a core) of docs/evidence/cpu.md, with vectors of 512 bits and of
256. `python -m benchmarks.cpu.peak` measures each layer of ten networks by the rule, alone on one
thread, and `python -m benchmarks.cpu.networks` whole networks. Compare their tables before and
after a change.
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
"""Vector registers of AVX2, too few for the numbers of three columns of a kernel at once."""
CACHE = 1 << 19
"""Bytes of weights and data that a chunk should stay below: half of a usual second-level cache."""
TRANSFORMED = 1 << 17
"""The same of Winograd's data: larger chunks took up to 1.3 times as long. `cpu_peak --networks
resnet18,vgg11` measures it again."""
FEWEST_TILES = 14
"""Tiles of Winograd's that a chunk has at least if it reads many weights: with fewer, reading takes
longer than multiplying (measured as `TRANSFORMED`)."""
NEAR = 1 << 15
"""The same of the first level, for the weights of a register tile, if they are many."""
LATENCY = 8
"""Multiply-adds that fit between one and the next on the same sum: two a cycle, and a latency of
four cycles (Intel's and AMD's manuals)."""
COPY_CYCLES = 6.0
"""Cycles of a vector of the data: our choice, twice what the estimate says
(`targets.cpu.estimates.convolution.COPY`)."""
WASTED = 0.9
"""What a tile of Winograd's products is worth whose last pixels are thrown away: our choice."""


def direct_knobs(
    w: Workload, spec: CpuSpec, parts_ic: tuple[int, ...], steps: int
) -> tuple[Knob, ...]:
    """The decisions of a direct convolution whose blocks of input channels are `steps` steps of a
    register tile."""
    rows, columns = pixels(w)
    out_blocks = w.out_channels // channel_block(w.out_channels, spec.lanes)
    room = spec.registers - 2
    return (
        Knob("tile_ow", _parts(columns, room)),
        Knob("tile_oh", tuple(each for each in (1, 2, 3, 4, 7) if each <= min(rows, room))),
        Knob("tile_oc", divisors(out_blocks, min(8, room))),
        Knob("parts_oc", divisors(out_blocks, out_blocks)),
        Knob("parts_oh", _counts(rows)),
        Knob("parts_ow", _counts(columns if rows == 1 else min(columns, 4))),
        Knob("parts_ic", parts_ic),
        Knob("chunks_first", (0, 1)),
        Knob("tiles_first", (0, 1)),
        Knob("pixels_first", (0, 1)),
        Knob("unroll_kernel", (0, 1, 2) if w.kernel_h * w.kernel_w > 1 else (0,)),
        Knob("unroll_channels", divisors(steps, 8)),
        Knob("copy", (0, 1, 2)),
    )


def _parts(length: int, at_most: int) -> tuple[int, ...]:
    """Lengths of equal parts that cover `length`, none above `at_most`."""
    return tuple(sorted({even_parts(length, most) for most in range(1, at_most + 1)}))


def _counts(length: int) -> tuple[int, ...]:
    """Into how many parts a length may be cut: up to four, then doubling."""
    doubled = (1 << power for power in range(3, length.bit_length()))
    return tuple(sorted({*range(1, min(length, 4) + 1), *doubled, length}))


def baseline_values(w: Workload, spec: CpuSpec, knobs: tuple[Knob, ...]) -> dict[str, int]:
    """Values by the names of `knobs`, the space of a convolution without groups: the register tile
    with the most multiply-adds an instruction, chunks that stay in the cache, and Winograd where
    its transforms pay."""
    m = winograd.rule_size(w, spec)
    rows, columns = pixels(w)
    if m:
        rows, columns = -(-w.out_height // m), -(-w.out_width // m)
    ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
    dots = w.dtype == "int8" and not m  # whose data are best copied, and whose tiles overlap
    copied = WASTED if m else 1.0 if is_padded(w) or dots else _copied(w)
    blocks, tile_h, tile_w = _tile(w.out_channels // ob, rows, columns, copied, spec, dots)
    area = (m + 2) ** 2 if m else w.kernel_h * w.kernel_w
    number = 4 // dot_product(spec).numbers if dots else 4
    weights = number * w.out_channels * w.in_channels * area
    pixels_each = number * w.in_channels * (area if m else w.stride_h * w.stride_w)
    few = rows * columns * pixels_each < weights
    three = w.kernel_w == 3 and w.stride_w == 1
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
        "unroll_kernel": 1 if three and spec.registers > SIXTEEN and not (m or dots) else 0,
        "unroll_channels": _unrolled(w, spec, ib, dots),
        "copy": 1 if dots or (is_padded(w) and not m and not _chunks_overlap(w)) else 0,
        "stages": 1 if m and few else 0,
        "parallel": 1 if spec.threads > 1 else 0,
    }
    grain = 4 * spec.threads  # chunks: enough that no thread waits long for the others
    if few:  # each thread its own weights, read once
        wanted["parts_oc"] = max(grain, weights // CACHE)
        if m and winograd.transforms_weights(w, m):
            wanted["parts_ic"] = number * blocks * ob * w.in_channels * area // (CACHE // 2)
        if not m:
            wanted["copy"] = 1 if dots else 0
            tile = number * blocks * ob * w.in_channels * area
            wanted["parts_ic"] = tile // NEAR if 2 * tile > CACHE else 1
    else:
        pieces = rows * columns * pixels_each // (TRANSFORMED if m else CACHE)
        many = m and weights > 2 * CACHE  # more than stays near, to be read by each chunk
        if many:
            pieces = min(pieces, rows * columns // FEWEST_TILES)
        pieces = max(grain, pieces)
        high = wanted["parts_oh"] = min(rows, pieces)
        wanted["parts_ow"] = pieces // high if many else -(-pieces // high)
        if not m:  # which would transform a chunk's data for each part of the channels
            wanted["parts_oc"] = weights // CACHE
    values = {knob.name: _nearest(knob, wanted.get(knob.name, 0)) for knob in knobs}
    return _cut(w, spec, values, knobs, (rows, columns)) if spec.threads > 1 else values


def _cut(
    w: Workload, spec: CpuSpec, values: dict[str, int], knobs: tuple[Knob, ...],
    size: tuple[int, int],
) -> dict[str, int]:  # fmt: skip
    """With more parts of the pixels where threads would have nothing to do: parts are whole tiles,
    as many each, and 167 tiles in eight parts are one."""

    def chunks(values: dict[str, int]) -> int:
        t = CpuTiling.of(w, spec, values, size)
        return w.batch * prod(tiles // chunk for tiles, chunk in zip(t.tiles, t.chunk, strict=True))

    if chunks(values) >= 2 * spec.threads:
        return values
    parts = {knob.name: knob.values for knob in knobs if knob.name in ("parts_oh", "parts_ow")}
    finer = [
        values | {"parts_oh": high, "parts_ow": wide}
        for high, wide in product(parts["parts_oh"], parts["parts_ow"])
        if high >= values["parts_oh"] and wide >= values["parts_ow"]
    ]
    finer.sort(key=lambda each: each["parts_oh"] * each["parts_ow"])
    return next((each for each in finer if chunks(each) >= 2 * spec.threads), values)


def _copied(w: Workload) -> float:
    """What a tile is worth that needs a copy of the data, as it does not divide the image."""
    multiplies = w.out_channels * w.kernel_h * w.kernel_w / (2 * w.stride_h * w.stride_w)
    return 1 / (1 + COPY_CYCLES / multiplies)  # of each vector of the data


def _chunks_overlap(w: Workload) -> bool:
    """Whether rows of taps are so far apart that each chunk would copy a third of the image beside
    its own rows. One copy of the whole is less."""
    return 3 * (w.kernel_h - 1) * w.dilation_h >= w.height and w.dilation_h > 1


def _unrolled(w: Workload, spec: CpuSpec, block: int, dots: bool) -> int:
    """Input channels, of blocks of so many, whose multiply-adds are written one after the other.
    With AVX-512's 32 registers, fewer turns of the loop save 3 to 5 % (`cpu_peak`), though not
    where taps stand apart."""
    one = w.kernel_h * w.kernel_w == 1
    if block < 5 or (dots and one):
        return block
    if dots or spec.registers == SIXTEEN:
        return 1
    return 4 if one or max(w.dilation_h, w.dilation_w) > 1 else 8


def _tile(
    blocks: int, rows: int, columns: int, copied: float, spec: CpuSpec, dots: bool
) -> tuple[int, int, int]:
    """Channel blocks, rows and columns of a register tile; one that does not divide the image is
    worth `copied`. The numbers that `dots` multiply lie in registers, too."""
    room = spec.registers - 2

    def fits(each: int, pixels: int) -> bool:
        if dots:
            return each * pixels <= room + dot_product(spec).numbers // 4 - each
        return each * pixels + each + 1 <= spec.registers  # sums, weights and a number

    def worth(tile: tuple[int, int, int]) -> float:
        each, high, long = tile
        adds, loads = each * high * long, each + high * long
        covered = -(-rows // high) * high * -(-columns // long) * long
        whole = 1.0 if covered == rows * columns else copied
        wait: float = max(loads, LATENCY)
        if dots and dot_product(spec) is TWOS:  # whose sums wait for a short addition alone
            wait = loads * 2 / 3
        return adds / (max(adds, wait) + loads / 8 + 1) * rows * columns / covered * whole

    found = [
        (each, even_parts(rows, high), even_parts(columns, long))
        for each, high, long in product((1, 2, 3, 4, 5, 6, 8), range(1, 9), range(1, room + 1))
        if blocks % each == 0 and fits(each, high * long)
    ]
    return max(found, key=worth)


def _nearest(knob: Knob, wanted: int) -> int:
    """The knob's value nearest to what is wanted, by factor."""

    def apart(value: int) -> float:
        return max((value + 1) / (wanted + 1), (wanted + 1) / (value + 1))

    return min(knob.values, key=apart)
