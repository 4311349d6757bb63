"""Convolution without groups in int8: with dot products, or with Winograd's algorithm.

The direct algorithm computes register tiles of pixels × output channels with dot-product
instructions (`targets.cpu.kernels.int8_dot_product`). Channels are stored in blocks of one vector.
A step is one such instruction per sum. The loops are:

    parallel (output channels / image rows / columns, in chunks)
      copy the chunk's data with padding      or copy all data before, or do not copy
        channels, rows, columns              register tiles
          input channels, kernel rows, kernel columns, steps of a block
            tile of pixels × vectors         unrolled
          epilogue                           while the sums are in registers

Tiles overlap at the end: see `targets.cpu.kernels.loops`. Tile sizes are chosen in
`conv2d_tile_sizes`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import winograd
from tilewright.targets.cpu.kernels.conv2d_shapes import (
    CpuTiling,
    check_unrolled,
    packed_shape,
    pixels,
)
from tilewright.targets.cpu.kernels.conv2d_tile_sizes import baseline_values, direct_knobs
from tilewright.targets.cpu.kernels.epilogue import data_zero, epilogue_inputs, with_epilogue
from tilewright.targets.cpu.kernels.int8_dot_product import (
    TWOS,
    DotProduct,
    check_dots,
    dot_product,
    store,
    vector,
    vector_of,
)
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import Arguments, Nest, split_index, tile_start
from tilewright.targets.cpu.kernels.padding import is_padded, pad_data
from tilewright.targets.cpu.kernels.tile_arithmetic import divisors
from tilewright.targets.cpu.kernels.winograd import WINOGRAD_SIZES
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
ir_builder = lazy_module("tvm.script.ir_builder")
T = lazy_module("tvm.script.ir_builder.tirx")


class ConvolutionInt8:
    """`Kernel` for int8 convolutions without groups.

    The kernel takes the data in shape (n, c / block, h, w × block). Winograd's algorithm is
    available if the epilogue dequantises the sums. It then computes with integers in float32. The
    rounding errors of its sums are far smaller than a quantisation step.
    """

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is an int8 convolution without groups."""
        w = workload
        return w.operator == "conv2d" and w.groups == 1 and w.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of the direct algorithm, and of Winograd's algorithm if it is available.

        Args:
            workload: the workload.
            spec: the processor.

        Raises:
            WorkloadError: the processor has no dot products.
        """
        check_dots(workload, spec)
        steps = dot_product(spec).steps(channel_block(workload.in_channels, spec.lanes))
        parallel = Knob("parallel", (0, 1) if spec.threads > 1 else (0,))
        if not _may_transform(workload):
            return (*direct_knobs(workload, spec, (1,), steps), parallel)
        blocks = workload.in_channels // channel_block(workload.in_channels, spec.lanes)
        direct = direct_knobs(workload, spec, divisors(blocks, blocks), steps)
        return (Knob("algorithm", (0, *WINOGRAD_SIZES)), *direct, Knob("stages", (0, 1)), parallel)

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        return baseline_values(workload, spec, self.knobs(workload, spec))

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the data, (n, channel blocks, rows, columns × channels)."""
        n, blocks, height, width, block = packed_shape(workload, spec)
        return n, blocks, height, width * block

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, (n, channel blocks, rows, columns, channels)."""
        return packed_shape(workload, spec, out=True)

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the kernel of a config (`values`) as an unscheduled TensorIR function.

        The knob `algorithm` of the config selects direct or Winograd convolution.
        """
        if _transforms(values):
            return winograd.define(workload, spec, values)
        w, t = workload, CpuTiling.for_config(workload, spec, values, pixels(workload))
        dot = dot_product(spec)
        data = te.placeholder(self.data_shape(w, spec), w.data_dtype, name="data")
        weights = te.placeholder(weights_shape(w, t, dot), "int32", name="weights")
        blocks, lanes = w.in_channels // t.ib, vector_of(t.ob)
        block_numbers = dot.numbers * dot.steps(t.ib)
        shape = packed_shape(w, spec, out=True)
        inputs = epilogue_inputs(w, shape, t.ob)
        image = te.compute(
            packed_shape(w, spec),
            lambda n, c, y, x, i: (
                tirx.Cast("int32", data[n, c, y, x * t.ib + i]) - data_zero(inputs)
            ),
            name="image",
        )
        source = pad_data(w, image)
        c, i = te.reduce_axis((0, blocks), "c"), te.reduce_axis((0, t.ib), "i")
        kh, kw = te.reduce_axis((0, w.kernel_h), "kh"), te.reduce_axis((0, w.kernel_w), "kw")

        def product(
            n: Expression, o: Expression, y: Expression, x: Expression, b: Expression
        ) -> Expression:
            number = ((c * w.kernel_h + kh) * w.kernel_w + kw) * block_numbers + i
            lane = tirx.indexmod(o, t.tile[0]) * lanes + b
            weight = dot.weight_at(weights, tirx.indexdiv(o, t.tile[0]), number, lane)
            row = y * w.stride_h + kh * w.dilation_h
            column = x * w.stride_w + kw * w.dilation_w
            return te.sum(source[n, c, row, column, i] * weight, axis=[c, kh, kw, i])

        out = with_epilogue(w, te.compute(shape, product, name="sums"), shape, inputs)
        return te.create_prim_func([data, weights, *inputs.values(), out])

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        For the direct algorithm, the loops are written explicitly, because TVM's `Schedule` cannot
        express overlapping tiles; `function` is then ignored. For Winograd's algorithm, TVM's
        `Schedule` is applied to `function`.
        """
        if _transforms(values):
            return winograd.schedule(function, workload, spec, values)
        return direct_function(workload, spec, values)

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack the weights for dot products, or transform and pack them for Winograd's algorithm.

        The knob `algorithm` of the config selects the algorithm.
        """
        pack = winograd.pack if _transforms(values) else pack_direct
        return pack(weights, workload, spec, values)


def _may_transform(w: Workload) -> bool:
    """Return whether a workload can be computed with Winograd's algorithm in int8."""
    return w.dequantises and winograd.serves(w)


def _transforms(values: KnobValues) -> bool:
    """Return whether a config uses Winograd's algorithm."""
    return values.get("algorithm", 0) > 0


# -- the direct algorithm ----------------------------------------------------------------------


COPY_CHUNK = 1
"""Value of the knob `copy` with which each parallel chunk copies the data that it reads. With any
other value, a kernel that needs a copy copies all data before the first chunk."""
Read = Callable[[Expression, Expression, Expression, Expression], Expression]
"""Function that returns the data operand of one step of the dot product. Its arguments are the
block of input channels, the row and the column in the padded image, and the step within the
block."""


def must_copy(block: int, w: Workload, dot: DotProduct) -> bool:
    """Return whether a kernel has to copy the data before it can multiply them.

    Args:
        block: input channels per block of the data.
        w: the workload.
        dot: the dot-product instruction.
    """
    return is_padded(w) or block % dot.numbers > 0 or dot is TWOS


def direct_function(w: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
    """Build the TensorIR function of the direct algorithm with the schedule of a config.

    Args:
        w: the workload.
        spec: the processor.
        values: the config, as knob values by knob name.

    Raises:
        DoesNotApply: the config unrolls too much code.
    """
    convolution = _Convolution(w, spec, values)
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        convolution.write()
    return builder.get()


def weights_shape(w: Workload, t: CpuTiling, dot: DotProduct) -> tuple[int, int, int]:
    """Return the shape of packed weights.

    Args:
        w: the workload.
        t: the tile sizes.
        dot: the dot-product instruction.

    Returns:
        (tiles of output channels, 1 + steps, lanes of a tile). A step is one dot-product
        instruction; index 0 holds the initial accumulators.
    """
    taps = w.in_channels // t.ib * w.kernel_h * w.kernel_w
    return t.tiles[0], 1 + taps * dot.steps(t.ib), t.tile[0] * vector_of(t.ob)


def pack_direct(weights: Array, w: Workload, spec: CpuSpec, values: KnobValues) -> Array:
    """Pack weights for the direct algorithm: see `DotProduct.pack`.

    Steps are ordered by blocks of input channels, kernel rows, kernel columns and channels. Zeros
    fill up incomplete steps and vectors.

    Args:
        weights: shape (o, c, kh, kw).
        w: the workload.
        spec: the processor.
        values: the config, as knob values by knob name.

    Returns:
        Int32 array of shape `weights_shape`.
    """
    t, dot = CpuTiling.for_config(w, spec, values, pixels(w)), dot_product(spec)
    inputs, lanes = w.in_channels // t.ib, vector_of(t.ob)
    kernel = (w.kernel_h, w.kernel_w)
    numbers = dot.steps(t.ib) * dot.numbers
    whole = np.zeros((t.tiles[0], t.tile[0], lanes, inputs, numbers, *kernel), np.int16)
    whole[:, :, : t.ob, :, : t.ib] = weights.reshape(
        t.tiles[0], t.tile[0], t.ob, inputs, t.ib, *kernel
    )
    ordered = whole.transpose(0, 3, 5, 6, 4, 1, 2)
    return dot.pack(ordered.reshape(t.tiles[0], -1, t.tile[0] * lanes), w.dequantises)


class _Convolution:
    """Builder of the loops of one direct int8 convolution; `write` adds them to the function."""

    def __init__(self, w: Workload, spec: CpuSpec, values: KnobValues) -> None:
        self.w, self.v, self.lanes = w, values, spec.lanes
        self.size, self.dot = pixels(w), dot_product(spec)
        self.t = CpuTiling.for_config(w, spec, values, self.size)
        check_unrolled(self.t, values, (w.kernel_h, w.kernel_w))
        self.blocks, self.steps = w.in_channels // self.t.ib, self.dot.steps(self.t.ib)
        self.vector = vector_of(self.t.ob)
        _, _, self.height, self.width, _ = packed_shape(w, spec)
        out = packed_shape(w, spec, out=True)
        data = (w.batch, self.blocks, self.height, self.width * self.t.ib)
        self.shapes = data, weights_shape(w, self.t, self.dot), (out[1], out[4]), out

    def write(self) -> None:
        """Add the whole kernel to the function that is being built."""
        w, t, v = self.w, self.t, self.v
        self.a = Arguments(w, *self.shapes)
        copies = must_copy(t.ib, w, self.dot) or v["copy"] > 0
        full_copy = self._copy_all() if copies and v["copy"] != COPY_CHUNK else None
        oc, yc, xc = (
            count // chunk_tiles for count, chunk_tiles in zip(t.tiles, t.chunk, strict=True)
        )
        with self._tasks(w.batch * oc * yc * xc) as (index,):
            if v["chunks_first"]:
                n, y, x, o = split_index(index, w.batch, yc, xc, oc)
            else:
                n, o, y, x = split_index(index, w.batch, oc, yc, xc)
            first_tile = tuple(
                tile_of_axis * chunk_tiles
                for tile_of_axis, chunk_tiles in zip((o, y, x), t.chunk, strict=True)
            )
            if full_copy is not None:
                read = self._read_copy(n, full_copy)
            else:
                read = self._copy_chunk(n, first_tile) if copies else self._read_in_place(n)
            orders = (1, 2, 0) if v["tiles_first"] else (0, 1, 2)
            with Nest([T.serial(0, t.chunk[axis]) for axis in orders]) as tile_indices:
                tile_of_axis = dict(zip(orders, tile_indices, strict=True))
                self._tile(n, [first_tile[axis] + tile_of_axis[axis] for axis in range(3)], read)

    def _tasks(self, count: int) -> Nest:
        return Nest([(T.parallel if self.v["parallel"] else T.serial)(0, count)])

    def _start(self, axis: int, tile: Expression) -> Expression:
        """Return the first output row or column of a register tile.

        Args:
            axis: 1 for the row, 2 for the column.
            tile: index of the register tile along this axis.
        """
        return tile_start(tile, self.size[axis - 1], self.t.tile[axis])

    # -- a register tile -----------------------------------------------------------------------

    def _tile(self, n: Expression, tile: list[Expression], read: Read) -> None:
        w, t, lanes = self.w, self.t, self.vector
        y, x = self._start(1, tile[1]), self._start(2, tile[2])
        places = list(product(*map(range, t.tile)))
        sums = {place: T.alloc_buffer((lanes,), "int32") for place in places}
        for place, buffer in sums.items():
            packed = vector(self.a.weights, [tile[0], 0, place[0] * lanes], lanes)
            store(buffer, self.dot.begin(w, packed, self.a.zero, lanes), [0], lanes)
        kernel, unroll = self.v["unroll_kernel"], self.v["unroll_channels"]
        loops = [
            T.serial(0, self.blocks),
            (T.unroll if kernel > 1 else T.serial)(0, w.kernel_h),
            (T.unroll if kernel > 0 else T.serial)(0, w.kernel_w),
            T.serial(0, self.steps // unroll),
            T.unroll(0, unroll),
        ]
        with Nest(loops) as (c, kh, kw, outer, inner):
            step_of_block = outer * unroll + inner
            step = 1 + ((c * w.kernel_h + kh) * w.kernel_w + kw) * self.steps + step_of_block
            for o, r, s in places if not self.v["pixels_first"] else sorted(places, key=_by_pixel):
                row = (y + r) * w.stride_h + kh * w.dilation_h
                column = (x + s) * w.stride_w + kw * w.dilation_w
                weights = vector(self.a.weights, [tile[0], step, o * lanes], lanes)
                self.dot.add(sums[o, r, s], 0, read(c, row, column, step_of_block), weights, lanes)
        for (o, r, s), buffer in sums.items():
            with T.vectorized(0, t.ob) as i:
                block = tile[0] * t.tile[0] + o
                self.a.finish(buffer[i], (n, block, y + r, x + s, i), (block, i))

    # -- where it reads ------------------------------------------------------------------------

    def _read_in_place(self, n: Expression) -> Read:
        block, dot = self.t.ib, self.dot

        def read(c: Expression, y: Expression, x: Expression, step: Expression) -> Expression:
            place = [n, c, y, x * block + step * dot.numbers]
            return dot.loaded(self.w, self.a.data, place, self.a.zero)

        return read

    def _reach(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of data rows and columns that a rectangle of output pixels depends on.

        Args:
            rows: output rows.
            columns: output columns.
        """
        w = self.w
        return (
            (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1,
            (columns - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1,
        )

    def _copy_all(self) -> TirBuffer:
        """Add loops that copy all data with padding, and return the buffer that holds the copy."""
        rows, columns = self._reach(*self.size)
        images = self.w.batch * self.blocks
        copy = T.alloc_buffer((images, rows, columns * self.steps), "int32")
        with self._tasks(images * rows) as (index,):
            n, c, row = split_index(index, self.w.batch, self.blocks, rows)
            self._copy_row(copy, [n * self.blocks + c, row], (n, c, row, 0), columns)
        return copy

    def _read_copy(self, n: Expression, copy: TirBuffer) -> Read:
        def read(c: Expression, y: Expression, x: Expression, step: Expression) -> Expression:
            return copy[n * self.blocks + c, y, x * self.steps + step]

        return read

    def _copy_chunk(self, n: Expression, first: tuple[Expression, ...]) -> Read:
        """Add loops that copy the data of one parallel chunk with padding.

        Args:
            n: number of the image.
            first: first register tile of the chunk along channel blocks, rows and columns.

        Returns:
            A function that reads one step of the data from the copy.
        """
        w, t = self.w, self.t
        rows, columns = self._reach(t.chunk[1] * t.tile[1], t.chunk[2] * t.tile[2])
        top = self._start(1, first[1]) * w.stride_h
        left = self._start(2, first[2]) * w.stride_w
        copy = T.alloc_buffer((self.blocks, rows, columns * self.steps), "int32")
        with T.serial(0, self.blocks) as c, T.serial(0, rows) as row:
            self._copy_row(copy, [c, row], (n, c, top + row, left), columns)

        def read(c: Expression, y: Expression, x: Expression, step: Expression) -> Expression:
            return copy[c, y - top, (x - left) * self.steps + step]

        return read

    def _copy_row(
        self,
        copy: TirBuffer,
        to: list[Expression],
        source: tuple[Expression, Expression, Expression, Expression],
        columns: int,
    ) -> None:
        """Add loops that copy a row of the padded image to a buffer.

        Args:
            copy: the buffer.
            to: leading indices in the buffer, which select the row.
            source: the image, the block of channels, and the row and first column of the padded
                image.
            columns: number of columns to copy.
        """
        w = self.w
        n, c, y, x = source
        y, x = y - w.pad_top, x - w.pad_left

        def write_border(begin: Expression, end: Expression) -> None:
            with T.serial(begin, end) as column, T.vectorized(0, self.steps) as step:
                outside = self.dot.border(w, self.a.zero)
                T.buffer_store(copy, outside, [*to, column * self.steps + step])

        with T.If(tirx.all(y >= 0, y < self.height)):
            with T.Then():
                begin = tirx.min(tirx.max(-x, 0), columns)
                end = tirx.max(tirx.min(self.width - x, columns), begin)
                write_border(0, begin)
                self._copy_columns(copy, to, (n, c, y), (x, begin, end))
                write_border(end, columns)
            with T.Else():
                write_border(0, columns)

    def _copy_columns(
        self,
        copy: TirBuffer,
        to: list[Expression],
        row: tuple[Expression, ...],
        columns: tuple[Expression, Expression, Expression],
    ) -> None:
        """Add loops that copy the part of a row that lies inside the image.

        Args:
            copy: the buffer.
            to: leading indices in the buffer, which select the row.
            row: the image, the block of channels and the row of the data.
            columns: the column of the data at which the row of the copy begins, then the first
                column of the copy to write and the column after the last.
        """
        x, begin, end = columns
        block, steps, dot, zero = self.t.ib, self.steps, self.dot, self.a.zero
        if block % dot.numbers:
            with T.serial(begin, end) as column, T.serial(0, steps) as step:
                place = [*row, (x + column) * block]
                first = step * dot.numbers
                value = dot.gather_numbers(self.w, self.a.data, place, zero, first, block)
                T.buffer_store(copy, value, [*to, column * steps + step])
            return
        vector_steps = self.lanes if self.lanes % steps == 0 else steps
        count = (end - begin) * steps
        vector_count = tirx.indexdiv(count, vector_steps)

        def move(at: Expression, lanes: int) -> None:
            place = [*row, (x + begin) * block + at * dot.numbers]
            value = dot.loaded(self.w, self.a.data, place, zero, lanes)
            store(copy, value, [*to, begin * steps + at], lanes)

        with T.serial(0, vector_count) as index:
            move(index * vector_steps, vector_steps)
        if vector_steps > steps:
            with T.serial(0, tirx.indexdiv(count - vector_count * vector_steps, steps)) as index:
                move(vector_count * vector_steps + index * steps, steps)


def _by_pixel(place: tuple[int, ...]) -> tuple[int, ...]:
    """Sort key that orders positions (vector, row, column) by row, then column, then vector."""
    return place[1:] + place[:1]
