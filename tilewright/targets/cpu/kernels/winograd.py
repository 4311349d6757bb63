"""Implements Winograd's convolution F(m×m, 3×3) of stride 1: fewer products, for transforms of
tiles.

    input transform      patches of m + 2 pixels a side → as many products' left sides
    products             (m + 2)² of them: tiles of pixels × channels, register tiles as in `direct`
    inverse transform    → m × m pixels, with bias, residual and clip

All three a chunk of image rows (`stages` 0), or each over the whole image (1). The weights are
transformed when they are packed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.padding import real_data
from tilewright.targets.cpu.kernels.shared import epilogue_inputs, epilogue_value
from tilewright.targets.cpu.kernels.tiling import CpuTiling, check_unrolled, packed_shape
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
s_tir = lazy_module("tvm.s_tir")
tvm = lazy_module("tvm")

SIZES = (2, 4)
"""Pixels a side that one tile gives (m)."""

_Matrix = tuple[tuple[float, ...], ...]

_FILTER: dict[int, _Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1),
    ),
}  # fmt: skip


def serves(workload: Workload) -> bool:
    """Whether the algorithm computes it: 3×3, stride 1, no dilation."""
    w = workload
    rest = (w.stride_h, w.stride_w, w.dilation_h, w.dilation_w)
    return (w.kernel_h, w.kernel_w) == (3, 3) and set(rest) == {1}


def _tiling(w: Workload, spec: CpuSpec, values: KnobValues) -> CpuTiling:
    m = values["algorithm"]
    return CpuTiling.of(w, spec, values, (-(-w.out_height // m), -(-w.out_width // m)))


def define(w: Workload, spec: CpuSpec, values: KnobValues) -> Any:
    """The convolution as a TensorIR function; weights as `pack` lays them."""
    m, t = values["algorithm"], _tiling(w, spec, values)
    a = m + 2
    blocks = t.tile[0]
    rows, columns = t.covered
    in_shape, out_shape = packed_shape(w, spec), packed_shape(w, spec, out=True)
    n, in_blocks = in_shape[:2]
    data = image = te.placeholder(in_shape, name="data")
    if w.dequantises:  # whose kernels see rows
        _, _, height, width, _ = in_shape
        data = te.placeholder((n, in_blocks, height, width * t.ib), w.data_dtype, name="data")
        image = te.compute(
            in_shape, lambda n, c, y, x, i: data[n, c, y, x * t.ib + i], name="image"
        )
    inputs = epilogue_inputs(w, out_shape, t.ob)
    weights = te.placeholder((t.tiles[0], a, a, in_blocks, t.ib, blocks * t.ob), name="weights")
    source = real_data(w, image, inputs, (rows * m + 2, columns * m + 2))
    patch = te.compute(
        (n, in_blocks, rows, columns, a, a, t.ib),
        lambda n, c, y, x, p, q, i: source[n, c, y * m + p, x * m + q, i],
        name="patch",
    )
    half = te.compute(
        (n, in_blocks, rows, columns, a, a, t.ib),
        lambda n, c, y, x, p, q, i: _chosen(
            p, _transformed(m, [patch[n, c, y, x, k, q, i] for k in range(a)])
        ),
        name="half",
    )
    left = te.compute(
        (n, a, a, in_blocks, rows, columns, t.ib),
        lambda n, p, q, c, y, x, i: _chosen(
            q, _transformed(m, [half[n, c, y, x, p, k, i] for k in range(a)])
        ),
        name="left",
    )
    c = te.reduce_axis((0, in_blocks), "c")
    i = te.reduce_axis((0, t.ib), "i")
    part = te.compute(
        (n, a, a, t.tiles[0] * blocks, rows, columns, t.ob),
        lambda n, p, q, o, y, x, b: te.sum(
            left[n, p, q, c, y, x, i]
            * weights[tirx.indexdiv(o, blocks), p, q, c, i, tirx.indexmod(o, blocks) * t.ob + b],
            axis=[c, i],
        ),
        name="part",
    )
    back = te.compute(
        (n, t.tiles[0] * blocks, rows, columns, m, a, t.ob),
        lambda n, o, y, x, p, q, b: _chosen(
            p, _inverse(m, [part[n, k, q, o, y, x, b] for k in range(a)])
        ),
        name="back",
    )
    square = te.compute(
        (n, t.tiles[0] * blocks, rows, columns, m, m, t.ob),
        lambda n, o, y, x, p, q, b: _chosen(
            q, _inverse(m, [back[n, o, y, x, p, k, b] for k in range(a)])
        ),
        name="square",
    )

    def value(n: Any, o: Any, y: Any, x: Any, b: Any) -> Any:
        div, mod = tirx.indexdiv, tirx.indexmod
        found = square[n, o, div(y, m), div(x, m), mod(y, m), mod(x, m), b]
        return epilogue_value(w, inputs, found, (n, o, y, x, b))

    out = te.compute(out_shape, value, name="out")
    return te.create_prim_func([data, weights, *inputs.values(), out])


def _transformed(m: int, d: list[Any]) -> list[Any]:
    """Sums of the m + 2 numbers `d` of a row of a patch; common parts are written alike, so that
    LLVM computes them once."""
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    even, odd = d[4] - d[2] * _number(4), d[3] - d[1] * _number(4)
    near, far = d[4] - d[2], (d[3] - d[1]) * _number(2)
    first = d[0] * _number(4) - d[2] * _number(5) + d[4]
    last = d[1] * _number(4) - d[3] * _number(5) + d[5]
    return [first, even + odd, even - odd, near + far, near - far, last]


def _inverse(m: int, p: list[Any]) -> list[Any]:
    """The m sums of the m + 2 numbers `p` of a row of products."""
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


def _number(value: float) -> Any:
    return tirx.const(value, "float32")


def _chosen(row: Any, values: list[Any]) -> Any:
    """The value of that row; a choice that is gone once the loop over rows is unrolled."""
    found = values[-1]
    for number in reversed(range(len(values) - 1)):
        found = tirx.Select(row == number, values[number], found)
    return found


def schedule(function: Any, w: Workload, spec: CpuSpec, values: KnobValues) -> Any:
    """The scheduled function. Raises `DoesNotApply`."""
    t = _tiling(w, spec, values)
    check_unrolled(t, values, (1, 1))
    sch = s_tir.Schedule(tvm.IRModule({"main": function}))
    names = ("padded", "patch", "half", "left", "part", "back", "square", "out")
    if w.dequantises:
        for name in ("image", "reals"):
            sch.compute_inline(sch.get_sblock(name))
    border, patch, half, left, part, back, square, out = map(sch.get_sblock, names)
    *_, o, y, x, p, q, b = sch.get_loops(square)
    sizes = [
        [None, t.chunk[0], t.tile[0]],
        *([None, each * tile] for each, tile in zip(t.chunk[1:], t.tile[1:], strict=True)),
    ]
    (oc, ot, oi), (yc, yt), (xc, xt) = (
        sch.split(loop, size) for loop, size in zip((o, y, x), sizes, strict=True)
    )
    chunks = [yc, xc, oc] if values["chunks_first"] else [oc, yc, xc]
    sch.reorder(*chunks, ot, yt, xt, oi, p, q, b)
    chunk = sch.fuse(*sch.get_loops(square)[:4])
    if values["parallel"]:
        sch.parallel(chunk)
    sch.reverse_compute_at(out, oi, preserve_unit_loops=True)
    sch.compute_at(back, oi, preserve_unit_loops=True)
    for block in (back, square, out):
        _unrolled(sch, block, 2)
    for block in (back, square):
        sch.set_scope(block, 0, "local")
    sch.compute_at(part, ot, preserve_unit_loops=True)
    _products(sch, part, t, values)
    _input(sch, w, values, chunk, (border, patch, half, left))
    return sch.mod["main"]


def _products(sch: Any, part: Any, t: CpuTiling, values: KnobValues) -> None:
    """Register tiles of the products of a chunk."""
    p, q, o, y, x, b, c, i = sch.get_loops(part)[-8:]
    yt, yi = sch.split(y, [None, t.tile[1]])
    xt, xi = sch.split(x, [None, t.tile[2]])
    io, ii = sch.split(i, [None, values["unroll_channels"]])
    tiles = [yt, xt, p, q] if values["tiles_first"] else [p, q, yt, xt]
    inner = [yi, xi, o] if values["pixels_first"] else [o, yi, xi]
    sch.reorder(*tiles, c, io, ii, *inner, b)
    place = tiles[-1]
    copy = sch.cache_write(part, 0, "local")
    sch.reverse_compute_at(copy, place, preserve_unit_loops=True)
    _unrolled(sch, copy, 3)
    for loop in (ii, *inner):
        sch.unroll(loop)
    sch.vectorize(b)
    _unrolled(sch, sch.decompose_reduction(part, c), 3)


def _input(sch: Any, w: Workload, values: KnobValues, chunk: Any, blocks: tuple[Any, ...]) -> None:
    """The transform of the data: of a chunk, or of the whole image before."""
    border, patch, half, left = blocks
    if not values["stages"]:
        sch.compute_at(left, chunk, preserve_unit_loops=True)
    *outer, p, q, c, y, x, i = sch.get_loops(left)
    sch.reorder(c, y, x, p, q, i)
    first = chunk
    if values["stages"]:
        first = sch.fuse(*outer, c, y)
        if values["parallel"]:
            sch.parallel(first)
    for block in (half, patch):
        sch.compute_at(block, x, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    for block in (left, half, patch):
        _unrolled(sch, block, 2)
    if values["copy"] == 0:
        sch.compute_inline(border)
        return
    if values["copy"] == 1:
        sch.compute_at(border, first, preserve_unit_loops=True)
    elif values["parallel"]:
        sch.parallel(sch.fuse(*sch.get_loops(border)[:3]))
    sch.vectorize(sch.get_loops(border)[-1])


def _unrolled(sch: Any, block: Any, count: int) -> None:
    """Vectorises the innermost loop and unrolls `count` around it."""
    *loops, lanes = sch.get_loops(block)
    for loop in loops[-count:]:
        sch.unroll(loop)
    sch.vectorize(lanes)


def pack(weights: NDArray[Any], w: Workload, spec: CpuSpec, values: KnobValues) -> NDArray[Any]:
    """(o, c, 3, 3) → transformed, (o / tile, m + 2, m + 2, c / ib, ib, tile)."""
    t = _tiling(w, spec, values)
    matrix = np.asarray(_FILTER[values["algorithm"]])
    found = matrix @ weights.astype(np.float64) @ matrix.T  # (o, c, a, a)
    tile = t.tile[0] * t.ob
    o, c, a, _ = found.shape
    blocked = found.reshape(o // tile, tile, c // t.ib, t.ib, a, a)
    return np.ascontiguousarray(blocked.transpose(0, 4, 5, 2, 3, 1), dtype=np.float32)
