"""Winograd's convolution F(m×m, 3×3) with stride 1: fewer products, but transforms of tiles.

The kernel has three stages:

    input transform      patches of (m + 2)² pixels → left operands of (m + 2)² matrix products
    products             (m + 2)² matrix products, in register tiles like the direct algorithm's
    inverse transform    → m × m output pixels, with the epilogue

The knob `stages` selects whether all stages are computed for one chunk of image rows at a time (0),
or each stage for the whole image (1). If the transformed data of all images of a batch do not fit a
cache together, each image passes through the stages in turn, in the same buffers.

The transform turns nine weights into (m + 2)²: 1.8 times as many for m = 2 and 4 times as many for
m = 4. Weights are normally transformed when they are packed. If the transformed weights would take
too much memory, the kernel transforms the weights itself: it then reads fewer bytes, and takes
about 3 % longer. It transforms the weights of a part of the input channels at a time (knob
`parts_ic`), so that they stay in a cache.

Each transform is applied to the columns of a square, then to its rows. Common subexpressions are
written identically, so that LLVM computes them once. Source: Lavin and Gray, Fast Algorithms for
Convolutional Neural Networks (2016).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import (
    Array,
    Block,
    Expression,
    Loop,
    Place,
    PrimFunc,
    Schedule,
    Tensor,
)
from tilewright.targets.cpu.kernels.conv2d_shapes import CpuTiling, check_unrolled, packed_shape
from tilewright.targets.cpu.kernels.epilogue import epilogue_inputs, epilogue_value
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.padding import real_data
from tilewright.targets.cpu.kernels.tile_arithmetic import SECOND_CACHE
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
s_tir = lazy_module("tvm.s_tir")
tvm = lazy_module("tvm")

WINOGRAD_SIZES = (2, 4)
"""Numbers of output pixels per side that a tile may have (m)."""

_Matrix = tuple[tuple[float, ...], ...]

_FILTER: dict[int, _Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1),
    ),
}  # fmt: skip
"""Matrices of the filter transform, by the number m of output pixels per side of a tile."""
NUMBER = 4
"""Size of a float32 value in bytes."""
LINE = 16
"""Number of float32 values per cache line."""
MOST_STORED = 1 << 23
"""Maximum size in bytes of the transformed weights of a layer that are always stored. Larger
weights may be transformed by the kernel. We chose the value: storing larger weights made the
libraries of ResNet-34 and U-Net take more memory than onnxruntime (`tilewright benchmark`)."""
MUCH_MORE = 8
"""Ratio between the sizes of the transformed weights and of the transformed data above which the
kernel transforms the weights itself. Transforming them took 1.03 times as long as reading stored
weights at a ratio of 16, and 1.12 times as long at a ratio of 5 (`python -m benchmarks.cpu.peak
--networks resnet18,resnet50`, on the Xeon of docs/evidence/cpu.md)."""


def serves(workload: Workload) -> bool:
    """Return whether Winograd's algorithm can compute a workload: 3×3, stride 1, no dilation.

    Args:
        workload: the workload.
    """
    w = workload
    rest = (w.stride_h, w.stride_w, w.dilation_h, w.dilation_w)
    return (w.kernel_h, w.kernel_w) == (3, 3) and set(rest) == {1}


def rule_size(w: Workload, spec: CpuSpec) -> int:
    """Return the tile size m for the rule schedule, or 0 to use the direct algorithm.

    The algorithm pays off if there are enough channels, so that products outnumber transforms, and
    if the image is large enough: the transformed weights, which are up to four times as many, must
    not take longer to read than is saved.

    The rule was chosen on the Xeon of docs/evidence/cpu.md, with vectors of 512 and of 256 bits.
    `python -m benchmarks.cpu.peak --networks resnet18,vgg11,unet` measures the layers again.

    Args:
        w: the workload.
        spec: the processor.
    """
    integers = w.dtype == "int8"
    if not serves(w) or (integers and (spec.dots or not w.dequantises)):
        return 0
    fewest = 32 if integers else spec.lanes // 2  # with fewer channels, vectors are mostly empty
    if min(w.in_channels, w.out_channels) < fewest:
        return 0
    smaller = min(w.out_height, w.out_width)
    return 4 if smaller > 8 else 0


def transforms_weights(workload: Workload, m: int) -> bool:
    """Return whether the kernel reads untransformed weights and transforms them itself.

    This is the case if the transformed weights exceed a limit in bytes and are also much larger
    than the transformed data.

    Args:
        workload: the workload.
        m: output pixels per side of a tile.
    """
    w, area = workload, NUMBER * (m + 2) ** 2
    stored = w.out_channels * w.in_channels * area
    tiles = -(-w.out_height // m) * -(-w.out_width // m)
    return stored > max(MOST_STORED, MUCH_MORE * tiles * w.in_channels * area)


def _images_take_turns(w: Workload, t: CpuTiling, values: KnobValues) -> bool:
    """Return whether each image passes through all stages before the next image begins.

    The images then share the buffers of transformed data. This is done if the transformed data of
    all images together would not fit the second-level cache.
    """
    rows, columns = t.covered_size
    size = NUMBER * (values["algorithm"] + 2) ** 2 * w.in_channels * rows * columns
    return bool(values["stages"]) and w.batch > 1 and size * w.batch > SECOND_CACHE


def _rounds(w: Workload, t: CpuTiling, m: int) -> int:
    """Return the number of parts into which the input channels are divided.

    The parts are processed in turn. There are several parts only if the kernel transforms the
    weights: it then transforms the weights of one part at a time.

    Args:
        w: the workload.
        t: the tile sizes.
        m: output pixels per side of a tile.
    """
    return w.in_channels // t.ib // t.channels if transforms_weights(w, m) else 1


def _tiling(w: Workload, spec: CpuSpec, values: KnobValues) -> CpuTiling:
    m = values["algorithm"]
    return CpuTiling.for_config(w, spec, values, (-(-w.out_height // m), -(-w.out_width // m)))


def define(w: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
    """Define the convolution as an unscheduled TensorIR function.

    The function takes weights in the layout of `pack`.

    Args:
        w: the workload.
        spec: the processor.
        values: the config, by knob name.
    """
    m, t = values["algorithm"], _tiling(w, spec, values)
    a = m + 2
    blocks = t.tile[0]
    rows, columns = t.covered_size
    in_shape, out_shape = packed_shape(w, spec), packed_shape(w, spec, out=True)
    n, in_blocks = in_shape[:2]
    data = image = te.placeholder(in_shape, name="data")
    if w.dequantises:  # the kernel takes rows
        _, _, height, width, _ = in_shape
        data = te.placeholder((n, in_blocks, height, width * t.ib), w.data_dtype, name="data")
        image = te.compute(
            in_shape, lambda n, c, y, x, i: data[n, c, y, x * t.ib + i], name="image"
        )
    inputs = epilogue_inputs(w, out_shape, t.ob)
    weights_parameter, weights = _weights(w, t, values)
    source = real_data(w, image, inputs, (rows * m + 2, columns * m + 2))
    patch = te.compute(
        (n, in_blocks, rows, columns, a, a, t.ib),
        lambda n, c, y, x, p, q, i: source[n, c, y * m + p, x * m + q, i],
        name="patch",
    )
    half = te.compute(
        (n, in_blocks, rows, columns, a, a, t.ib),
        lambda n, c, y, x, p, q, i: select_row(
            p, data_row(m, [patch[n, c, y, x, k, q, i] for k in range(a)])
        ),
        name="half",
    )
    left = te.compute(
        (n, a, a, in_blocks, rows, columns, t.ib),
        lambda n, p, q, c, y, x, i: select_row(
            q, data_row(m, [half[n, c, y, x, p, k, i] for k in range(a)])
        ),
        name="left",
    )
    part = _products(t, _rounds(w, t, m), left, weights)
    back = te.compute(
        (n, t.tiles[0] * blocks, rows, columns, m, a, t.ob),
        lambda n, o, y, x, p, q, b: select_row(
            p, inverse_row(m, [part[n, k, q, o, y, x, b] for k in range(a)])
        ),
        name="back",
    )
    square = te.compute(
        (n, t.tiles[0] * blocks, rows, columns, m, m, t.ob),
        lambda n, o, y, x, p, q, b: select_row(
            q, inverse_row(m, [back[n, o, y, x, p, k, b] for k in range(a)])
        ),
        name="square",
    )

    def value(
        n: Expression, o: Expression, y: Expression, x: Expression, b: Expression
    ) -> Expression:
        div, mod = tirx.indexdiv, tirx.indexmod
        result = square[n, o, div(y, m), div(x, m), mod(y, m), mod(x, m), b]
        return epilogue_value(w, inputs, result, (n, o, y, x, b))

    out = te.compute(out_shape, value, name="out")
    return te.create_prim_func([data, weights_parameter, *inputs.values(), out])


def _weights(w: Workload, t: CpuTiling, values: KnobValues) -> tuple[Tensor, Tensor]:
    """Return the function's parameter for the weights, and the transformed weights.

    Both results are the same tensor unless the kernel transforms the weights itself.
    """
    m, tile = values["algorithm"], t.tile[0] * t.ob
    a, in_blocks = m + 2, w.in_channels // t.ib
    shape = (t.tiles[0], a, a, in_blocks, t.ib, tile)
    if not transforms_weights(w, m):
        weights = te.placeholder(shape, name="weights")
        return weights, weights
    shape_untransformed = (t.tiles[0], in_blocks, t.ib, 3, 3, tile)
    filters = te.placeholder(shape_untransformed, _filter_type(w), name="weights")

    def read(
        o: Expression, c: Expression, j: int, k: Expression, i: Expression, b: Expression
    ) -> Expression:
        return tirx.Cast("float32", filters[o, c, i, j, k, b])

    columns = te.compute(
        (t.tiles[0], in_blocks, t.ib, a, 3, tile),
        lambda o, c, i, p, k, b: select_row(
            p, filter_row(m, [read(o, c, j, k, i, b) for j in range(3)])
        ),
        name="columns",
    )
    squares = te.compute(
        shape,
        lambda o, p, q, c, i, b: select_row(
            q, filter_row(m, [columns[o, c, i, p, k, b] for k in range(3)])
        ),
        name="squares",
    )
    return filters, squares


def _filter_type(w: Workload) -> str:
    """Return the element type of untransformed weights, for kernels that transform them.

    Quantised weights need int16, because an int8 minus its zero point has nine bits.
    """
    return "int16" if w.dequantises else "float32"


def _products(t: CpuTiling, rounds: int, left: Tensor, weights: Tensor) -> Tensor:
    """Define the (m + 2)² matrix products as a tensor expression.

    Args:
        t: the tile sizes.
        rounds: number of parts of the input channels, which are summed one after the other.
        left: the transformed data.
        weights: the transformed weights.
    """
    n, a, _, in_blocks, rows, columns, _ = (int(size) for size in left.shape)
    blocks, blocks_each = t.tile[0], in_blocks // rounds
    shape = (n, a, a, t.tiles[0] * blocks, rows, columns, t.ob)
    c, i = te.reduce_axis((0, blocks_each), "c"), te.reduce_axis((0, t.ib), "i")

    def product(first: Expression, at: Place) -> Expression:
        n, p, q, o, y, x, b = at
        lane = tirx.indexmod(o, blocks) * t.ob + b
        weight = weights[tirx.indexdiv(o, blocks), p, q, first + c, i, lane]
        return te.sum(left[n, p, q, first + c, y, x, i] * weight, axis=[c, i])

    if rounds == 1:
        return te.compute(shape, lambda *at: product(0, at), name="part")
    r = te.reduce_axis((0, rounds), "r")
    partial = te.compute(
        (rounds, *shape), lambda r, *at: product(r * blocks_each, at), name="partial"
    )
    return te.compute(shape, lambda *at: te.sum(partial[(r, *at)], axis=r), name="part")


def schedule(function: PrimFunc, w: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
    """Apply the schedule of a config to the function of `define`.

    Args:
        function: the function.
        w: the workload.
        spec: the processor.
        values: the config, by knob name.

    Returns:
        The scheduled function.

    Raises:
        DoesNotApply: the config unrolls too much code.
    """
    t = _tiling(w, spec, values)
    check_unrolled(t, values, (1, 1))
    sch = s_tir.Schedule(tvm.IRModule({"main": function}))
    names = ("padded", "patch", "half", "left", "part", "back", "square", "out")
    if w.dequantises:
        # Integers are converted where the data are read, without a buffer.
        for name in ("image", "reals"):
            sch.compute_inline(sch.get_sblock(name))
    border, patch, half, left, part, back, square, out = map(sch.get_sblock, names)
    *_, o, y, x, p, q, b = sch.get_loops(square)
    sizes = [
        [None, t.chunk[0], t.tile[0]],
        *([None, count * tile] for count, tile in zip(t.chunk[1:], t.tile[1:], strict=True)),
    ]
    (oc, ot, oi), (yc, yt), (xc, xt) = (
        sch.split(loop, size) for loop, size in zip((o, y, x), sizes, strict=True)
    )
    chunks = [yc, xc, oc] if values["chunks_first"] else [oc, yc, xc]
    sch.reorder(*chunks, ot, yt, xt, oi, p, q, b)
    image, *loops = sch.get_loops(square)[:4]
    in_turns = _images_take_turns(w, t, values)
    chunk = sch.fuse(*loops) if in_turns else sch.fuse(image, *loops)
    if values["parallel"]:
        sch.parallel(chunk)
    sch.reverse_compute_at(out, oi, preserve_unit_loops=True)
    sch.compute_at(back, oi, preserve_unit_loops=True)
    for block in (back, square, out):
        _unroll_and_vectorise(sch, block, 2)
    for block in (back, square):
        sch.set_scope(block, 0, "local")
    sch.compute_at(part, ot, preserve_unit_loops=True)
    place = ot
    if _rounds(w, t, values["algorithm"]) == 1:
        _schedule_products(sch, part, t, values)
    else:
        place = _schedule_rounds(sch, part, t, values)
    if transforms_weights(w, values["algorithm"]):
        _schedule_weights(sch, place)
    data = border, patch, half, left
    _schedule_input(sch, values, chunk, data, image if in_turns else None)
    for block in (left, part):
        _align_planes(sch, block)
    return sch.mod["main"]


def _schedule_products(sch: Schedule, part: Block, t: CpuTiling, values: KnobValues) -> None:
    """Schedule the register tiles of a chunk's products.

    Args:
        sch: the schedule, which is changed.
        part: the block that computes the products.
        t: the tile sizes.
        values: the config, by knob name.
    """
    *spatial, b, c, i = sch.get_loops(part)[-8:]
    tiles, inner = _split_tiles(sch, spatial, t, values)
    sch.reorder(*tiles, c, i, *inner, b)
    copy = sch.cache_write(part, 0, "local")
    sch.reverse_compute_at(copy, tiles[-1], preserve_unit_loops=True)
    _unroll_and_vectorise(sch, copy, 3)
    _schedule_tile(sch, part, values, (c, i), inner, b)


def _schedule_rounds(sch: Schedule, part: Block, t: CpuTiling, values: KnobValues) -> Loop:
    """Schedule the products with an outer loop over parts of the input channels.

    Returns:
        The loop over the parts.
    """
    *spatial, b, rounds = sch.get_loops(part)[-7:]
    tiles, inner = _split_tiles(sch, spatial, t, values)
    sch.reorder(rounds, *tiles, *inner, b)
    partial = sch.get_sblock("partial")
    sch.compute_at(partial, tiles[-1], preserve_unit_loops=True)
    _unroll_and_vectorise(sch, part, 3)
    *_, o, y, x, b, c, i = sch.get_loops(partial)
    _schedule_tile(sch, partial, values, (c, i), _order_loops((o, y, x), values), b)
    sch.set_scope(partial, 0, "local")
    initial = sch.decompose_reduction(part, rounds)
    sch.vectorize(sch.get_loops(initial)[-1])
    return rounds


def _split_tiles(
    sch: Schedule, spatial: Sequence[Loop], t: CpuTiling, values: KnobValues
) -> tuple[list[Loop], list[Loop]]:
    """Split the loops over products into loops over register tiles and loops within a tile.

    Args:
        sch: the schedule, which is changed.
        spatial: loops over the row p and the column q of a transformed patch, channel blocks, and
            rows and columns of patches.
        t: the tile sizes.
        values: the config, by knob name.

    Returns:
        The loops over the tiles, and the loops within a tile.
    """
    p, q, o, y, x = spatial
    yt, yi = sch.split(y, [None, t.tile[1]])
    xt, xi = sch.split(x, [None, t.tile[2]])
    tiles = [yt, xt, p, q] if values["tiles_first"] else [p, q, yt, xt]
    return tiles, _order_loops((o, yi, xi), values)


def _order_loops(tile: tuple[Loop, Loop, Loop], values: KnobValues) -> list[Loop]:
    o, y, x = tile
    return [y, x, o] if values["pixels_first"] else [o, y, x]


def _schedule_tile(
    sch: Schedule,
    block: Block,
    values: KnobValues,
    reduced: tuple[Loop, Loop],
    tile: list[Loop],
    lanes: Loop,
) -> None:
    """Schedule one register tile of products.

    Args:
        sch: the schedule, which is changed.
        block: the block that computes the products.
        values: the config, by knob name.
        reduced: loops over blocks of input channels and over the channels within a block.
        tile: loops over the channel blocks, rows and columns of the tile.
        lanes: loop over the output channels of a block, which is vectorised.
    """
    c, i = reduced
    outer, inner = sch.split(i, [None, values["unroll_channels"]])
    sch.reorder(c, outer, inner, *tile, lanes)
    for loop in (inner, *tile):
        sch.unroll(loop)
    sch.vectorize(lanes)
    _unroll_and_vectorise(sch, sch.decompose_reduction(block, c), 3)


def _schedule_weights(sch: Schedule, place: Loop) -> None:
    """Schedule the transform of those weights that one iteration of the loop `place` reads."""
    columns, squares = sch.get_sblock("columns"), sch.get_sblock("squares")
    sch.compute_at(squares, place, preserve_unit_loops=True)
    *_, p, q, c, i, b = sch.get_loops(squares)
    sch.reorder(c, i, p, q, b)
    sch.compute_at(columns, i, preserve_unit_loops=True)
    sch.set_scope(columns, 0, "local")
    for block in (columns, squares):
        _unroll_and_vectorise(sch, block, 2)
    _align_planes(sch, squares)


def _align_planes(sch: Schedule, block: Block) -> None:
    """Store the (m + 2)² planes of a tensor an odd number of cache lines apart.

    The values of one transform then lie in different sets of a cache. If the planes were a power of
    two apart, the values would lie in the same set and evict each other.
    """
    sch.storage_align(block, 0, 2, 2 * LINE, LINE)


def _schedule_input(
    sch: Schedule, values: KnobValues, chunk: Loop, blocks: tuple[Block, ...], image: Loop | None
) -> None:
    """Schedule the transform of the data.

    Args:
        sch: the schedule, which is changed.
        values: the config, by knob name. The knob `stages` selects whether data are transformed per
            chunk, or all before the products.
        chunk: loop over chunks of image rows.
        blocks: the blocks of the transform, in the order of their computation.
        image: loop over images, if the data of one image are transformed at a time. None transforms
            the data of all images first.
    """
    border, patch, half, left = blocks
    place = image if values["stages"] else chunk
    if place is not None:
        sch.compute_at(left, place, preserve_unit_loops=True)
    *outer, p, q, c, y, x, i = sch.get_loops(left)
    sch.reorder(c, y, x, p, q, i)
    first = chunk
    if values["stages"]:
        first = sch.fuse(outer[-1], c, y)
        if values["parallel"]:
            sch.parallel(first)
    for block in (half, patch):
        sch.compute_at(block, x, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    for block in (left, half, patch):
        _unroll_and_vectorise(sch, block, 2)
    if values["copy"] == 0:
        sch.compute_inline(border)
        return
    if values["copy"] == 1:
        sch.compute_at(border, first, preserve_unit_loops=True)
    else:
        if image is not None:
            sch.compute_at(border, image, preserve_unit_loops=True)
        if values["parallel"]:
            sch.parallel(sch.fuse(*sch.get_loops(border)[-5:-2]))
    sch.vectorize(sch.get_loops(border)[-1])


def _unroll_and_vectorise(sch: Schedule, block: Block, count: int) -> None:
    """Vectorise the innermost loop of a block and unroll the `count` loops around it."""
    *loops, lanes = sch.get_loops(block)
    for loop in loops[-count:]:
        sch.unroll(loop)
    sch.vectorize(lanes)


def pack(weights: Array, w: Workload, spec: CpuSpec, values: KnobValues) -> Array:
    """Pack weights, and transform them unless the kernel transforms weights itself.

    Args:
        weights: shape (o, c, 3, 3).
        w: the workload.
        spec: the processor.
        values: the config, by knob name.

    Returns:
        Transformed weights of shape (o / tile, m + 2, m + 2, c / ib, ib, tile), or untransformed
        weights of shape (o / tile, c / ib, ib, 3, 3, tile).
    """
    t = _tiling(w, spec, values)
    untransformed = transforms_weights(w, values["algorithm"])
    filters = weights if untransformed else transformed_filters(values["algorithm"], weights)
    o, c, a, _ = filters.shape
    tile = t.tile[0] * t.ob
    blocked = filters.reshape(o // tile, tile, c // t.ib, t.ib, a, a)
    order = (0, 2, 3, 4, 5, 1) if untransformed else (0, 4, 5, 2, 3, 1)
    dtype = _filter_type(w) if untransformed else "float32"
    return np.ascontiguousarray(blocked.transpose(order), dtype=dtype)


# -- transforms --------------------------------------------------------------------------------


def data_row(m: int, d: list[Expression]) -> list[Expression]:
    """Apply Winograd's transform of the data to one row of a patch.

    Args:
        m: output pixels per side of a tile, 2 or 4 (`WINOGRAD_SIZES`).
        d: the m + 2 values of the row.

    Returns:
        The m + 2 transformed values.
    """
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    even, odd = d[4] - d[2] * _number(4), d[3] - d[1] * _number(4)
    near, far = d[4] - d[2], (d[3] - d[1]) * _number(2)
    first = d[0] * _number(4) - d[2] * _number(5) + d[4]
    last = d[1] * _number(4) - d[3] * _number(5) + d[5]
    return [first, even + odd, even - odd, near + far, near - far, last]


def filter_row(m: int, w: list[Expression]) -> list[Expression]:
    """Apply Winograd's transform of the weights to one row of a filter.

    Args:
        m: output pixels per side of a tile.
        w: the three weights of the row.

    Returns:
        The m + 2 transformed weights.
    """
    if m == 2:
        even, odd = (w[0] + w[2]) * _number(1 / 2), w[1] * _number(1 / 2)
        return [w[0], even + odd, even - odd, w[2]]
    even, odd = (w[0] + w[2]) * _number(-1 / 6), w[1] * _number(-1 / 6)
    near, far = w[0] * _number(1 / 24) + w[2] * _number(1 / 6), w[1] * _number(1 / 12)
    return [w[0] * _number(1 / 4), even + odd, even - odd, near + far, near - far, w[2]]


def inverse_row(m: int, p: list[Expression]) -> list[Expression]:
    """Apply Winograd's inverse transform to a row of products.

    Args:
        m: output pixels per side of a tile.
        p: the m + 2 products of the row.

    Returns:
        m output values.
    """
    if m == 2:
        return [p[0] + p[1] + p[2], p[1] - p[2] - p[3]]
    one, other = p[1] + p[2], p[1] - p[2]
    two, four = p[3] + p[4], p[3] - p[4]
    return [
        p[0] + one + two,
        other + four * _number(2),
        one + two * _number(4),
        other + four * _number(8) + p[5],
    ]


def transformed_filters(m: int, filters: Array) -> NDArray[np.float64]:
    """Apply Winograd's transform of the weights to filters, with numpy.

    Args:
        m: output pixels per side of a tile.
        filters: shape (…, 3, 3).

    Returns:
        Float64 array of shape (…, m + 2, m + 2).
    """
    matrix = np.asarray(_FILTER[m])
    transformed: NDArray[np.float64] = matrix @ filters.astype(np.float64) @ matrix.T
    return transformed


def select_row(row: Expression, values: list[Expression]) -> Expression:
    """Return `values[row]` as nested selections, which LLVM removes when the loop is unrolled.

    Args:
        row: index into `values`.
        values: the values to select from.
    """
    selection = values[-1]
    for number in reversed(range(len(values) - 1)):
        selection = tirx.Select(row == number, values[number], selection)
    return selection


def _number(value: float) -> Expression:
    return tirx.const(value, "float32")
