"""Kernel for depthwise convolutions, in which one vector holds one block of channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.epilogue import (
    epilogue_inputs,
    multiply_number,
    packed_words,
    sums_type,
    with_epilogue,
)
from tilewright.targets.cpu.kernels.grouped_loops import (
    COPY_NOTHING,
    TilePixels,
    WindowLoops,
    build_function,
    even_shares,
    window_knobs,
)
from tilewright.targets.cpu.kernels.int8_dot_product import (
    add_products,
    check_dots,
    lanes_at,
    multiplies_pairs,
    vector,
    words,
)
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import Arguments, tiles
from tilewright.targets.cpu.kernels.padding import PaddedSource, real_data
from tilewright.targets.cpu.kernels.tile_arithmetic import vectors
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
T = lazy_module("tvm.script.ir_builder.tirx")

MAX_TAPS = 25
"""Maximum number of kernel positions (taps) that a config may unroll: those of a 5×5 kernel."""
MAX_TILE_ROWS = 4
"""Maximum number of rows of a register tile."""


@dataclass(frozen=True)
class _ChannelTaps:
    """Builder of the multiply-adds of one kernel position of a depthwise convolution.

    It implements `grouped_loops.Taps`, the part of the loops in which depthwise and grouped
    convolutions differ.
    """

    w: Workload
    tasks: int
    block: int
    pairs: bool
    blocks: int = 1
    sums: int = 1
    unrolled: int = 1

    def first_block(self, task: Expression) -> Expression:
        return task

    def add(
        self, arguments: Arguments, task: Expression, source: PaddedSource, sums: list[TirBuffer],
        tap: tuple[Expression, Expression], pixels: TilePixels,
    ) -> None:  # fmt: skip
        y, column, (first, end) = pixels
        if sums_type(self.w) == "int32":
            with T.unroll(first, end) as pixel:
                number = source.at(0, y, column(pixel), lanes_at(0, self.block))
                weight = vector(arguments.weights, [task, *tap, 0], self.block)
                numbers = words(number, self.block)
                at = pixel * self.block
                add_products(sums[0], at, numbers, weight, self.block, self.pairs)
            return
        with T.unroll(first, end) as pixel, T.vectorized(0, self.block) as i:
            place = pixel * self.block + i
            value = source.at(0, y, column(pixel), i) * arguments.weights[(task, *tap, i)]
            T.buffer_store(sums[0], sums[0][place] + value, [place])


class Depthwise:
    """`Kernel` for convolutions with as many groups as input and output channels."""

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is a depthwise conv2d."""
        w = workload
        return w.operator == "conv2d" and 1 < w.groups == w.in_channels == w.out_channels

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a grouped convolution: see `targets.cpu.kernels.grouped_loops`.

        Args:
            workload: the workload.
            spec: the processor.

        Raises:
            WorkloadError: the processor has no instructions for int8.
        """
        check_dots(workload, spec)
        return window_knobs(workload, _block(workload, spec), MAX_TILE_ROWS, MAX_TAPS)

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the knob values of the rule schedule, by name.

        Half of the registers hold sums, the other half data and weights. This limit and the limit
        on unrolled code are our choices. `python -m benchmarks.cpu.networks --networks
        mobilenet_v1,mobilenet_v2,efficientnet_b0` measures networks with depthwise layers.
        """
        w = workload
        knobs = {knob.name: knob.values for knob in self.knobs(w, spec)}
        block_registers = vectors(_block(w, spec), spec.lanes)
        # Small kernels are unrolled completely, larger ones only along a row of taps. A second row
        # of sums pays only if the two rows of taps that share its data are both unrolled.
        whole = w.kernel_h * w.kernel_w <= 9 and w.kernel_h > 1
        unrolled_taps = w.kernel_w * (w.kernel_h if whole else 1)

        def cost(tile: tuple[int, int]) -> float:
            rows, columns = tile
            computed = tiles(w.out_height, rows) * rows * tiles(w.out_width, columns) * columns
            return computed * (1 + 1 / (rows * columns))

        fits = [
            (rows, columns)
            for rows in knobs["tile_rows"][: 2 if whole else 1]
            for columns in knobs["tile_columns"]
            if rows * columns * block_registers <= spec.registers // 2
            and rows * columns * unrolled_taps <= 128
        ] or [(1, 1)]
        rows, columns = min(fits, key=cost)
        blocks = w.out_channels // _block(w, spec)
        return {
            "tile_columns": columns, "tile_rows": rows,
            "row_shares": even_shares(w, blocks, spec.threads, knobs["row_shares"]),
            "channels_first": 1, "rows_inside": 0,
            "unroll_kernel": 2 if whole else 1,
            "padding": COPY_NOTHING,
        }  # fmt: skip

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the data, (n, channel blocks, rows, columns, channels)."""
        w, block = workload, _block(workload, spec)
        return w.batch, w.in_channels // block, w.height, w.width, block

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, (n, channel blocks, rows, columns, channels)."""
        w, block = workload, _block(workload, spec)
        return w.batch, w.out_channels // block, w.out_height, w.out_width, block

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the kernel of a config (`values`) as an unscheduled TensorIR function."""
        w, block = workload, _block(workload, spec)
        data = te.placeholder(self.data_shape(w, spec), w.data_dtype, name="data")
        filters = (w.in_channels // block, w.kernel_h, w.kernel_w, block)
        weights = te.placeholder(filters, sums_type(w), name="weights")
        kh, kw = te.reduce_axis((0, w.kernel_h), "kh"), te.reduce_axis((0, w.kernel_w), "kw")
        shape = self.out_shape(w, spec)
        inputs = epilogue_inputs(w, shape, block)
        source = real_data(w, data, inputs)

        def product(
            n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
        ) -> Expression:
            row, column = y * w.stride_h + kh * w.dilation_h, x * w.stride_w + kw * w.dilation_w
            number = source[n, c, row, column, i]
            return te.sum(multiply_number(w, number, weights[c, kh, kw, i]), axis=[kh, kw])

        sums = te.compute(shape, product, name="sums")
        out = with_epilogue(w, sums, shape, inputs)
        return te.create_prim_func([data, weights, *inputs.values(), out])

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        The loops are written explicitly, because TVM's `Schedule` cannot express overlapping tiles.
        `function`, the unscheduled kernel from `define`, is ignored.
        """
        w, block = workload, _block(workload, spec)
        taps = _ChannelTaps(w, w.out_channels // block, block, multiplies_pairs(spec, block))
        windows = WindowLoops(w, values, taps, block, block)
        weights = (w.in_channels // block, w.kernel_h, w.kernel_w, block)
        return build_function(windows, self.data_shape(w, spec), weights, self.out_shape(w, spec))

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack weights in blocks of channels.

        Args:
            weights: shape (c, 1, kh, kw).
            workload: the workload.
            spec: the processor.
            values: not used.

        Returns:
            Shape (c / block, kh, kw, block).
        """
        w, block = workload, _block(workload, spec)
        blocked = weights.reshape(w.out_channels // block, block, w.kernel_h, w.kernel_w)
        ordered = np.ascontiguousarray(blocked.transpose(0, 2, 3, 1))
        return packed_words(w, ordered, multiplies_pairs(spec, block))


def _block(w: Workload, spec: CpuSpec) -> int:
    return channel_block(w.out_channels, spec.lanes)
