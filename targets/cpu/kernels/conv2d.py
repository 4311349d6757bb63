"""Direct convolution on channels in blocks: a register tile of pixels × output channels, one vector
of weights and one broadcast number of data an instruction.

    parallel (output channels / image rows / columns, in chunks)
      input channels, in chunks                partial sums in memory, if there are several
        channels, rows, columns                tiles of registers
          input channels, kernel rows, kernel columns, channels of a block
            tile of pixels × vectors           unrolled
      bias, residual, clip                     on the tile while it is in registers, or on the chunk
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from targets.base import Knob
from targets.cpu.kernels.kernel import DoesNotApply, Values
from targets.cpu.kernels.shared import (
    divisors,
    even_parts,
    nearest_divisor,
    registers,
    vectors,
    with_epilogue,
)
from targets.cpu.layouts import channel_block, pack_filters
from targets.cpu.spec import CpuSpec
from targets.workload import Workload

MAX_UNROLLED = 1200
"""Multiply-adds of a loop's body, unrolled: our choice, a second or two of LLVM's time."""


def is_pointwise(workload: Workload) -> bool:
    """Whether its pixels are independent of each other: rows and columns are one axis."""
    sizes = (workload.kernel_h, workload.kernel_w, workload.stride_h, workload.stride_w)
    return set(sizes) == {1} and not has_padding(workload)


def has_padding(workload: Workload) -> bool:
    """Whether its image has a border of zeros."""
    w = workload
    return any((w.pad_top, w.pad_left, w.pad_bottom, w.pad_right))


def pixels(workload: Workload) -> tuple[int, int]:
    """Rows and columns of the output as the kernel sees it."""
    if is_pointwise(workload):
        return 1, workload.out_height * workload.out_width
    return workload.out_height, workload.out_width


@dataclass(frozen=True)
class Tiling:
    """Sizes that follow from a config. `tile` is (channel blocks, rows, columns) of a register
    tile, `tiles` how many cover the output, `chunk` how many of them a parallel chunk has (it
    divides `tiles`); `channels` counts blocks of input channels between partial sums."""

    ib: int
    ob: int
    tile: tuple[int, int, int]
    tiles: tuple[int, int, int]
    chunk: tuple[int, int, int]
    channels: int

    @classmethod
    def of(cls, w: Workload, spec: CpuSpec, values: Values) -> Tiling:
        ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
        rows, columns = pixels(w)
        blocks = values["tile_oc"]
        room = (registers(spec) - 2) // (blocks * vectors(ob, spec.lanes))
        tile_w = even_parts(columns, max(1, min(values["tile_ow"], room)))
        tile_h = even_parts(rows, max(1, min(values["tile_oh"], room // tile_w)))
        tile = (blocks, tile_h, tile_w)
        sizes = (w.out_channels // ob, rows, columns)
        tiles = tuple(-(-size // each) for size, each in zip(sizes, tile, strict=True))
        wanted = (values["chunk_oc"], values["chunk_oh"], values["chunk_ow"])
        chunk = tuple(
            nearest_divisor(count, max(1, -(-size // (parts * each))))
            for count, size, parts, each in zip(tiles, sizes, wanted, tile, strict=True)
        )
        channels = nearest_divisor(w.in_channels // ib, values["chunk_ic"])
        return cls(ib, ob, tile, tiles, chunk, channels)  # type: ignore[arg-type]

    @property
    def covered(self) -> tuple[int, int]:
        """Rows and columns that all tiles have together."""
        return self.tiles[1] * self.tile[1], self.tiles[2] * self.tile[2]


class DirectConvolution:
    """Keeps `targets.cpu.kernels.kernel.Kernel` for convolutions without groups."""

    def serves(self, workload: Workload) -> bool:
        w = workload
        return w.operator == "conv2d" and w.groups == 1 and w.dtype == "float32"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        rows, columns = pixels(workload)
        ib, ob = (
            channel_block(c, spec.lanes) for c in (workload.in_channels, workload.out_channels)
        )
        out_blocks, in_blocks = workload.out_channels // ob, workload.in_channels // ib
        room = max(1, (registers(spec) - 2) // vectors(ob, spec.lanes))
        return (
            Knob("tile_ow", _parts(columns, room)),
            Knob("tile_oh", _parts(rows, min(room, 8))),
            Knob("tile_oc", divisors(out_blocks, min(8, room))),
            Knob("chunk_oc", divisors(out_blocks, out_blocks)),
            Knob("chunk_oh", _counts(rows)),
            Knob("chunk_ow", _counts(columns)),
            Knob("chunk_ic", divisors(in_blocks, in_blocks)),
            Knob("chunks_first", (0, 1)),
            Knob("tiles_first", (0, 1)),
            Knob("pixels_first", (0, 1)),
            Knob("unroll_kernel", (0, 1, 2) if workload.kernel_h * workload.kernel_w > 1 else (0,)),
            Knob("unroll_channels", divisors(ib, 16)),
            Knob("copy", (0, 1, 2)),
            Knob("parallel", (0, 1) if spec.threads > 1 else (0,)),
        )

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        w, block = workload, channel_block(workload.in_channels, spec.lanes)
        height, width = (1, w.height * w.width) if is_pointwise(w) else (w.height, w.width)
        return w.batch, w.in_channels // block, height, width, block

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        block = channel_block(workload.out_channels, spec.lanes)
        return workload.batch, workload.out_channels // block, *pixels(workload), block

    def define(self, workload: Workload, spec: CpuSpec, values: Values) -> Any:
        from tvm import te, tirx

        w, t = workload, Tiling.of(workload, spec, values)
        blocks, _, _ = t.tile
        in_blocks = w.in_channels // t.ib
        data = te.placeholder(self.data_shape(w, spec), name="data")
        weights = te.placeholder(
            (t.tiles[0], in_blocks, w.kernel_h, w.kernel_w, t.ib, blocks * t.ob), name="weights"
        )
        source = _bordered(w, t, data) if _needs_copy(w, t) or values["copy"] else data
        out_shape = self.out_shape(w, spec)
        shape = (w.batch, t.tiles[0] * blocks, *t.covered, t.ob)

        def product(c: Any, kh: Any, kw: Any, i: Any, at: tuple[Any, ...]) -> Any:
            n, o, y, x, b = at
            row = y * w.stride_h + kh * w.dilation_h
            column = x * w.stride_w + kw * w.dilation_w
            lane = tirx.indexmod(o, blocks) * t.ob + b
            return source[n, c, row, column, i] * weights[
                tirx.indexdiv(o, blocks), c, kh, kw, i, lane
            ]  # fmt: skip

        c = te.reduce_axis((0, t.channels), "c")
        kh = te.reduce_axis((0, w.kernel_h), "kh")
        kw = te.reduce_axis((0, w.kernel_w), "kw")
        i = te.reduce_axis((0, t.ib), "i")
        if t.channels == in_blocks:
            sums = te.compute(
                shape, lambda *at: te.sum(product(c, kh, kw, i, at), axis=[c, kh, kw, i]), name="part"
            )
        else:
            rounds = te.reduce_axis((0, in_blocks // t.channels), "rounds")
            part = te.compute(
                (in_blocks // t.channels, *shape),
                lambda r, *at: te.sum(
                    product(r * t.channels + c, kh, kw, i, at), axis=[c, kh, kw, i]
                ),
                name="part",
            )
            sums = te.compute(
                shape, lambda *at: te.sum(part[(rounds, *at)], axis=rounds), name="sums"
            )
        inputs, result = with_epilogue(w, sums, out_shape, t.ob)
        return te.create_prim_func([data, weights, *inputs, result])

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: Values) -> Any:
        import tvm
        from tvm.s_tir import Schedule

        w, t = workload, Tiling.of(workload, spec, values)
        _check_size(w, spec, t, values)
        sch = Schedule(tvm.IRModule({"main": function}))
        part = sch.get_sblock("part")
        several = t.channels < w.in_channels // t.ib
        sums = sch.get_sblock("sums") if several else part
        n, o, y, x, b, *reduced = sch.get_loops(sums)
        (oc, ot, oi), (yc, yt, yi), (xc, xt, xi) = (
            sch.split(loop, [None, chunk, tile])
            for loop, chunk, tile in zip((o, y, x), t.chunk, t.tile, strict=True)
        )
        chunks = [yc, xc, oc] if values["chunks_first"] else [oc, yc, xc]
        tiles = [yt, xt, ot] if values["tiles_first"] else [ot, yt, xt]
        inner = [yi, xi, oi] if values["pixels_first"] else [oi, yi, xi]
        if several:
            sch.reorder(n, *chunks, *reduced, *tiles, *inner, b)
        else:
            sch.reorder(n, *chunks, *tiles, *reduced, *inner, b)
        chunk = sch.fuse(n, *chunks)
        if values["parallel"]:
            sch.parallel(chunk)
        last = tiles[-1]
        out = sch.get_sblock("out")
        if several:
            sch.vectorize(b)
            for loop in inner:
                sch.unroll(loop)
            sch.compute_at(part, last, preserve_unit_loops=True)
            self._border(sch, w, values, t, (chunk, reduced[0]))
            *_, po, py, px, pb, c, kh, kw, i = sch.get_loops(part)
            _product(sch, part, values, (c, kh, kw, i), (po, py, px), pb)
            sch.reverse_compute_at(out, chunk, preserve_unit_loops=True)
            sch.vectorize(sch.get_loops(out)[-1])
            initial = sch.decompose_reduction(sums, reduced[0])
            sch.vectorize(sch.get_loops(initial)[-1])
        else:
            self._border(sch, w, values, t, (chunk, reduced[0]))
            sch.reverse_compute_at(out, last, preserve_unit_loops=True)
            *_, ob, oy, ox, lanes = sch.get_loops(out)
            for loop in (ob, oy, ox):
                sch.unroll(loop)
            sch.vectorize(lanes)
            _product(sch, part, values, tuple(reduced), (oi, yi, xi), b)
        return sch.mod["main"]

    def _border(
        self, sch: Any, w: Workload, values: Values, t: Tiling, at: tuple[Any, Any]
    ) -> None:
        if not (_needs_copy(w, t) or values["copy"]):
            return
        padded = sch.get_sblock("padded")
        if values["copy"] == 1:
            sch.compute_at(padded, at[0], preserve_unit_loops=True)
        elif values["copy"] == 2 and t.channels < w.in_channels // t.ib:
            sch.compute_at(padded, at[1], preserve_unit_loops=True)
        else:
            n, c, y, _, _ = sch.get_loops(padded)
            if values["parallel"]:
                sch.parallel(sch.fuse(n, c, y))
        sch.vectorize(sch.get_loops(padded)[-1])

    def pack_weights(
        self, weights: NDArray[Any], workload: Workload, spec: CpuSpec, values: Values
    ) -> NDArray[Any]:
        t = Tiling.of(workload, spec, values)
        return pack_filters(weights, t.ib, t.tile[0] * t.ob)


def _product(
    sch: Any, part: Any, values: Values, reduced: tuple[Any, ...], tile: tuple[Any, ...], lanes: Any
) -> None:
    """Orders and unrolls the loops of a register tile: reduced (c, kh, kw, i), then the tile
    (blocks, rows, columns) and its `lanes`."""
    c, kh, kw, i = reduced
    blocks, rows, columns = tile
    i_outer, i_inner = sch.split(i, [None, values["unroll_channels"]])
    spatial = [rows, columns, blocks] if values["pixels_first"] else [blocks, rows, columns]
    sch.reorder(c, kh, kw, i_outer, i_inner, *spatial, lanes)
    if values["unroll_kernel"] > 0:
        sch.unroll(kw)
    if values["unroll_kernel"] > 1:
        sch.unroll(kh)
    for loop in (i_inner, *spatial):
        sch.unroll(loop)
    sch.vectorize(lanes)
    sch.set_scope(part, 0, "local")
    initial = sch.decompose_reduction(part, c)
    *_, first, second, third, vector = sch.get_loops(initial)
    for loop in (first, second, third):
        sch.unroll(loop)
    sch.vectorize(vector)


def _bordered(w: Workload, t: Tiling, data: Any) -> Any:
    """The data with a border of zeros, as far as the tiles read."""
    from tvm import te, tirx

    n, blocks, height, width, ib = (int(size) for size in data.shape)
    rows, columns = t.covered
    shape = (
        n, blocks, (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1,
        (columns - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1, ib,
    )  # fmt: skip

    def inside(n: Any, c: Any, y: Any, x: Any, i: Any) -> Any:
        row, column = y - w.pad_top, x - w.pad_left
        limits = []
        if w.pad_top:
            limits.append(row >= 0)
        if shape[2] - w.pad_top > height:
            limits.append(row < height)
        if w.pad_left:
            limits.append(column >= 0)
        if shape[3] - w.pad_left > width:
            limits.append(column < width)
        value = data[n, c, row, column, i]
        if not limits:
            return value
        return tirx.if_then_else(tirx.all(*limits), value, tirx.const(0, "float32"))

    return te.compute(shape, inside, name="padded")


def _needs_copy(w: Workload, t: Tiling) -> bool:
    return has_padding(w) or t.covered != pixels(w)


def _check_size(w: Workload, spec: CpuSpec, t: Tiling, values: Values) -> None:
    """Raises `DoesNotApply` for a loop's body that LLVM would take too long over."""
    body = t.tile[0] * t.tile[1] * t.tile[2] * vectors(t.ob, spec.lanes)
    body *= values["unroll_channels"]
    body *= w.kernel_w if values["unroll_kernel"] > 0 else 1
    body *= w.kernel_h if values["unroll_kernel"] > 1 else 1
    if body > MAX_UNROLLED:
        raise DoesNotApply(
            f"unroll_channels and unroll_kernel make {body} multiply-adds of a loop's body, "
            f"at most {MAX_UNROLLED} are tried",
            "code_too_large",
        )


def _parts(length: int, at_most: int) -> tuple[int, ...]:
    """Lengths of equal parts that cover `length`, none above `at_most`."""
    return tuple(sorted({even_parts(length, most) for most in range(1, at_most + 1)}))


def _counts(length: int) -> tuple[int, ...]:
    """Into how many parts a length may be cut: small numbers, and further by a half more."""
    found = [1]
    while found[-1] < length:
        found.append(min(length, max(found[-1] + 1, found[-1] * 3 // 2)))
    return tuple(found)
