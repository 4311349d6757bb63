"""Convolution without groups in float32, with a direct algorithm and with Winograd's algorithm.

The direct algorithm computes register tiles of pixels × output channels. Channels are stored in
blocks of one vector. One instruction multiplies a vector of weights by one data value that is
broadcast to all lanes. The loops are:

    parallel (output channels / image rows / columns, in chunks)
      input channels, in chunks                partial sums in memory, if there are several chunks
        channels, rows, columns                register tiles
          input channels, kernel rows, kernel columns, channels of a block
            tile of pixels × vectors           unrolled
      epilogue                                 while the tile is in registers, or on the chunk

A convolution with a large dilation mostly reads padding near the border: with a dilation of 18 on
32 × 32 pixels, three fifths of all products are with padding. A register tile therefore skips a
kernel position if all of its pixels would read padding there (`add_padding_skips`).

Tile sizes are chosen in `conv2d_tile_sizes`.
"""

from __future__ import annotations

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import (
    Array,
    Block,
    Expression,
    For,
    Loop,
    LoopVar,
    Place,
    PrimFunc,
    Schedule,
    Statement,
    Tensor,
)
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import winograd
from tilewright.targets.cpu.kernels.conv2d_shapes import (
    CpuTiling,
    check_unrolled,
    packed_shape,
    pixels,
)
from tilewright.targets.cpu.kernels.conv2d_tile_sizes import baseline_values, direct_knobs
from tilewright.targets.cpu.kernels.epilogue import epilogue_inputs, with_epilogue
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.padding import is_padded
from tilewright.targets.cpu.kernels.tile_arithmetic import divisors
from tilewright.targets.cpu.kernels.winograd import WINOGRAD_SIZES
from tilewright.targets.cpu.layouts import channel_block, pack_filters
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
s_tir = lazy_module("tvm.s_tir")
tvm = lazy_module("tvm")
tvm_ffi = lazy_module("tvm_ffi")


class Convolution:
    """`Kernel` for float32 convolutions without groups."""

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is a float32 convolution without groups."""
        w = workload
        return w.operator == "conv2d" and w.groups == 1 and w.dtype == "float32"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of direct and, where possible, Winograd convolution."""
        w, ib = workload, channel_block(workload.in_channels, spec.lanes)
        in_blocks = w.in_channels // ib
        return (
            Knob("algorithm", (0, *WINOGRAD_SIZES) if winograd.serves(w) else (0,)),
            *direct_knobs(w, spec, divisors(in_blocks, in_blocks), ib),
            Knob("stages", (0, 1) if winograd.serves(w) else (0,)),
            Knob("parallel", (0, 1) if spec.threads > 1 else (0,)),
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        return baseline_values(workload, spec, self.knobs(workload, spec))

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the data, (n, channel blocks, rows, columns, channels)."""
        return packed_shape(workload, spec)

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, (n, channel blocks, rows, columns, channels)."""
        return packed_shape(workload, spec, out=True)

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the kernel of a config (`values`) as an unscheduled TensorIR function.

        The knob `algorithm` of the config selects direct or Winograd convolution.
        """
        define = winograd.define if values["algorithm"] else define_direct
        return define(workload, spec, values)

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Apply the schedule of a config to the function from `define`, for either algorithm."""
        schedule = winograd.schedule if values["algorithm"] else schedule_direct
        return schedule(function, workload, spec, values)

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack the weights for direct convolution, or transform and pack them for Winograd's.

        The knob `algorithm` of the config selects the algorithm.
        """
        pack = winograd.pack if values["algorithm"] else pack_direct
        return pack(weights, workload, spec, values)


# -- the direct algorithm ----------------------------------------------------------------------


def define_direct(w: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
    """Define the direct convolution as an unscheduled TensorIR function.

    The function takes weights in the layout of `pack_direct`.

    Args:
        w: the workload.
        spec: the processor.
        values: the config, as knob values by knob name.
    """
    t = CpuTiling.for_config(w, spec, values, pixels(w))
    blocks, _, _ = t.tile
    in_blocks = w.in_channels // t.ib
    data = te.placeholder(packed_shape(w, spec), name="data")
    weights = te.placeholder(
        (t.tiles[0], in_blocks, w.kernel_h, w.kernel_w, t.ib, blocks * t.ob), name="weights"
    )
    source = _with_padding(w, t, data) if _needs_copy(w, t) or values["copy"] else data
    out_shape = packed_shape(w, spec, out=True)
    shape = (w.batch, t.tiles[0] * blocks, *t.covered_size, t.ob)

    def product(
        c: Expression, kh: Expression, kw: Expression, i: Expression, at: Place
    ) -> Expression:
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
            lambda r, *at: te.sum(product(r * t.channels + c, kh, kw, i, at), axis=[c, kh, kw, i]),
            name="part",
        )
        sums = te.compute(shape, lambda *at: te.sum(part[(rounds, *at)], axis=rounds), name="sums")
    inputs = epilogue_inputs(w, out_shape, t.ob)
    result = with_epilogue(w, sums, out_shape, inputs)
    return te.create_prim_func([data, weights, *inputs.values(), result])


def schedule_direct(function: PrimFunc, w: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
    """Apply the schedule of a config to a direct convolution.

    Args:
        function: the unscheduled TensorIR function, from `define_direct`.
        w: the workload.
        spec: the processor.
        values: the config, as knob values by knob name.

    Returns:
        The scheduled function.

    Raises:
        DoesNotApply: the config unrolls too much code.
    """
    t = CpuTiling.for_config(w, spec, values, pixels(w))
    kernel = (w.kernel_h, w.kernel_w)
    check_unrolled(t, values, kernel)
    sch = s_tir.Schedule(tvm.IRModule({"main": function}))
    part = sch.get_sblock("part")
    has_partial_sums = t.channels < w.in_channels // t.ib
    sums = sch.get_sblock("sums") if has_partial_sums else part
    n, o, y, x, b, *reduced = sch.get_loops(sums)
    (oc, ot, oi), (yc, yt, yi), (xc, xt, xi) = (
        sch.split(loop, [None, chunk, tile])
        for loop, chunk, tile in zip((o, y, x), t.chunk, t.tile, strict=True)
    )
    chunks = [yc, xc, oc] if values["chunks_first"] else [oc, yc, xc]
    tiles = [yt, xt, ot] if values["tiles_first"] else [ot, yt, xt]
    inner = [yi, xi, oi] if values["pixels_first"] else [oi, yi, xi]
    if has_partial_sums:
        sch.reorder(n, *chunks, *reduced, *tiles, *inner, b)
    else:
        sch.reorder(n, *chunks, *tiles, *reduced, *inner, b)
    chunk = sch.fuse(n, *chunks)
    if values["parallel"]:
        sch.parallel(chunk)
    innermost_tiles = tiles[-1]
    out = sch.get_sblock("out")
    if has_partial_sums:
        sch.vectorize(b)
        for loop in inner:
            sch.unroll(loop)
        sch.compute_at(part, innermost_tiles, preserve_unit_loops=True)
        _schedule_copy(sch, w, values, t, (chunk, reduced[0]))
        *_, po, py, px, pb, c, kh, kw, i = sch.get_loops(part)
        _schedule_tile(sch, part, values, (c, kh, kw, i), (po, py, px), pb)
        sch.reverse_compute_at(out, chunk, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(out)[-1])
        initial = sch.decompose_reduction(sums, reduced[0])
        sch.vectorize(sch.get_loops(initial)[-1])
    else:
        _schedule_copy(sch, w, values, t, (chunk, reduced[0]))
        sch.reverse_compute_at(out, innermost_tiles, preserve_unit_loops=True)
        *_, ob, oy, ox, lanes = sch.get_loops(out)
        for loop in (ob, oy, ox):
            sch.unroll(loop)
        sch.vectorize(lanes)
        _schedule_tile(sch, part, values, tuple(reduced), (oi, yi, xi), b)
    scheduled = sch.mod["main"]
    return (
        add_padding_skips(scheduled, w, (t.tile[1], t.tile[2])) if skips_padding(w) else scheduled
    )


def pack_direct(weights: Array, w: Workload, spec: CpuSpec, values: KnobValues) -> Array:
    """Pack weights for the direct algorithm.

    Args:
        weights: shape (o, c, kh, kw).
        w: the workload.
        spec: the processor.
        values: the config, as knob values by knob name.

    Returns:
        Shape (o / tile, c / ib, kh, kw, ib, tile).
    """
    t = CpuTiling.for_config(w, spec, values, pixels(w))
    return pack_filters(weights, t.ib, t.tile[0] * t.ob)


def _schedule_copy(
    sch: Schedule, w: Workload, values: KnobValues, t: CpuTiling, at: tuple[Loop, Loop]
) -> None:
    """Schedule the padded copy of the data; do nothing if the data are not copied.

    Args:
        sch: the schedule, which is changed.
        w: the workload.
        values: the config, as knob values by knob name.
        t: the tile sizes.
        at: the loop over parallel chunks, and the loop over chunks of input channels. The knob
            `copy` selects the loop within which the data are copied.
    """
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


def _schedule_tile(
    sch: Schedule,
    part: Block,
    values: KnobValues,
    reduced: tuple[Loop, ...],
    tile: tuple[Loop, ...],
    lanes: Loop,
) -> None:
    """Order, unroll and vectorise the loops of a register tile.

    Args:
        sch: the schedule, which is changed.
        part: the block that computes the tile.
        values: the config, as knob values by knob name.
        reduced: loops over blocks of input channels, kernel rows, kernel columns, and channels
            within a block.
        tile: loops over channel blocks, rows and columns of the tile.
        lanes: loop over the output channels of a block, which is vectorised.
    """
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


def _with_padding(w: Workload, t: CpuTiling, data: Tensor) -> Tensor:
    """Return a tensor expression for the padded data, as the direct algorithm reads them.

    Additional zeros at the end complete the last register tiles, which may reach beyond the image.

    Args:
        w: the workload.
        t: the tile sizes.
        data: the data, shape (n, c / block, h, w, block).
    """
    n, blocks, height, width, ib = (int(size) for size in data.shape)
    rows, columns = t.covered_size
    shape = (
        n, blocks, (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1,
        (columns - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1, ib,
    )  # fmt: skip

    def padded_value(
        n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
    ) -> Expression:
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

    return te.compute(shape, padded_value, name="padded")


def _needs_copy(w: Workload, t: CpuTiling) -> bool:
    return is_padded(w) or t.covered_size != pixels(w)


# -- taps in the padding -----------------------------------------------------------------------


REDUCED = 4
"""Number of reduction axes of a convolution: blocks of input channels, kernel rows, kernel columns,
and channels within a block."""


def skips_padding(w: Workload) -> bool:
    """Return whether a register tile may read only padding at some position of the kernel.

    This needs a dilation and wide padding. The kernel then skips such positions.

    Args:
        w: the workload.
    """
    return max(w.dilation_h, w.dilation_w) > 1 and max(w.pad_top, w.pad_left) > 1


def add_padding_skips(function: PrimFunc, w: Workload, tile: tuple[int, int]) -> PrimFunc:
    """Add conditions to a scheduled function that skip products with padding.

    A register tile skips a kernel position at which all of its pixels read padding.

    Args:
        function: the scheduled function of the direct algorithm.
        w: the workload.
        tile: rows and columns of a register tile.

    Returns:
        The function with the conditions. `function` itself is not changed.
    """

    def loop(node: For) -> Statement:
        if str(node.loop_var.name) != "kw":
            return node
        origin = _place_of_tile(node)
        if origin is None:
            return node
        y, x, kh, kw = origin
        row = y * w.stride_h + kh * w.dilation_h - w.pad_top
        column = x * w.stride_w + kw * w.dilation_w - w.pad_left
        in_image = tirx.all(
            row + (tile[0] - 1) * w.stride_h >= 0, row < w.height,
            column + (tile[1] - 1) * w.stride_w >= 0, column < w.width,
        )  # fmt: skip
        return tirx.For(
            node.loop_var, node.min, node.extent, node.kind,
            tirx.IfThenElse(in_image, node.body, None), node.thread_binding, node.annotations,
        )  # fmt: skip

    body = tvm_ffi.structural_map(function.body, (tirx.For, loop))
    return tirx.PrimFunc(function.params, body, function.ret_type).with_attrs(function.attrs)


def _place_of_tile(loop: For) -> tuple[Expression, Expression, Expression, Expression] | None:
    """Return the position of a register tile and of the kernel in a loop over kernel columns.

    Args:
        loop: a loop over kernel columns.

    Returns:
        The first output row and column of the register tile, and the row and column of the kernel,
        as expressions. None if the loop contains no products.
    """
    inner, node = list[LoopVar](), loop.body
    while isinstance(node, tirx.For):
        inner.append(node.loop_var)
        node = node.body
    if not isinstance(node, s_tir.SBlockRealize) or str(node.block.name_hint) != "part_update":
        return None

    def first(variable: LoopVar) -> Expression:
        return tirx.const(0, "int32") if any(map(variable.same_as, inner)) else variable

    values = list(node.iter_values)
    y, x, _ = values[-REDUCED - 3 : -REDUCED]
    _, kh, kw, _ = values[-REDUCED:]
    y, x = (tvm_ffi.structural_map(position, (tirx.Var, first)) for position in (y, x))
    return y, x, kh, kw
