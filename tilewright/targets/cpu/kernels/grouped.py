"""Kernel for grouped convolutions.

A tile of output channels reads the input channels of all groups that it covers. If a tile covers
several groups, the weights between an output channel and the input channels of other groups are
zeros, and the kernel multiplies by these zeros.

If the output channels of each group form whole blocks, no tile covers several groups. If a boundary
between groups lies within some tiles, only these tiles read several groups. With small groups, for
example of four channels, several groups share each block, and the kernel computes as many times the
necessary products as groups share a block. Using whole vectors is still faster than gathering
single values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    multiplies_pairs,
    spread,
    vector,
)
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import Arguments, Nest, tiles
from tilewright.targets.cpu.kernels.padding import PaddedSource, real_data
from tilewright.targets.cpu.kernels.tile_arithmetic import divisors, vectors
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

MAX_TAPS = 9
"""Maximum number of kernel positions (taps) that a config may unroll: those of a 3×3 kernel."""
MAX_TILE_ROWS = 3
"""Maximum number of rows of a register tile."""
MAX_TILE_BLOCKS = 4
"""Maximum number of blocks of output channels per register tile."""


@dataclass(frozen=True)
class Reach:
    """Input channels that each tile of output channels depends on, in a grouped convolution.

    A tile depends on the input channels of all groups that it covers.

    Attributes:
        workload: the workload.
        tile: output channels per tile.
        block: input channels per block.
    """

    workload: Workload
    tile: int
    block: int

    @property
    def _sizes(self) -> tuple[int, int]:
        """Number of input channels and number of output channels per group."""
        w = self.workload
        return w.in_channels // w.groups, w.out_channels // w.groups

    @property
    def tasks(self) -> int:
        """Number of tiles of output channels."""
        return self.workload.out_channels // self.tile

    @property
    def spans(self) -> NDArray[np.int64]:
        """Number of input channels that each tile depends on, int64 array of shape (tasks,)."""
        each_in, each_out = self._sizes
        first = np.arange(self.tasks, dtype=np.int64) * self.tile
        return ((first + self.tile - 1) // each_out - first // each_out + 1) * each_in

    @property
    def span(self) -> int:
        """Number of input channels for which each tile has weights: the largest of `spans`."""
        return int(self.spans.max())

    @property
    def is_even(self) -> bool:
        """True if all tiles depend on the same number of input channels."""
        return int(self.spans.min()) == self.span

    @property
    def starts(self) -> NDArray[np.int64]:
        """First input channel for which each tile has weights, int64 array of shape (tasks,)."""
        each_in, each_out = self._sizes
        first = np.arange(self.tasks, dtype=np.int64) * self.tile // each_out * each_in
        return np.minimum(first, self.workload.in_channels - self.span)

    def start(self, task: Expression) -> Expression:
        """Return the first input channel for which a tile has weights, as a TensorIR expression.

        Args:
            task: index of the tile of output channels.
        """
        each_in, each_out = self._sizes
        first = tirx.indexdiv(task * self.tile, each_out) * each_in
        last = self.workload.in_channels - self.span
        return first if int(first_of_last(self)) <= last else tirx.min(first, last)

    def needed_channels(self, task: Expression) -> tuple[Expression, Expression]:
        """Return the range of input channels that a tile depends on, as TensorIR expressions.

        Every tile has weights for the same number of input channels (`span`), but a tile may depend
        on fewer.

        Args:
            task: index of the tile of output channels.

        Returns:
            The first channel, counted from `start(task)`, and the number of channels.
        """
        each_in, each_out = self._sizes
        first = tirx.indexdiv(task * self.tile, each_out)
        groups = tirx.indexdiv(task * self.tile + self.tile - 1, each_out) - first + 1
        return first * each_in - self.start(task), groups * each_in

    @property
    def step(self) -> int:
        """Number of input channels that the value of the knob `unroll_channels` must divide.

        The innermost loop over input channels covers a multiple of this number.
        """
        if not self.is_even:
            return self._sizes[0]
        return self.block if self.is_aligned else self.span

    @property
    def is_aligned(self) -> bool:
        """True if each tile reads whole blocks of input channels."""
        return self.span % self.block == 0 and not (self.starts % self.block).any()

    @property
    def blocks(self) -> int:
        """Number of blocks of input channels that a tile reads at least in part."""
        starts = self.starts
        return int(((starts + self.span - 1) // self.block - starts // self.block + 1).max())


def first_of_last(reach: Reach) -> int:
    """Return the first input channel that the last tile of output channels depends on.

    Args:
        reach: the tiles of a grouped convolution.
    """
    w = reach.workload
    first = (reach.tasks - 1) * reach.tile // (w.out_channels // w.groups)
    return first * (w.in_channels // w.groups)


@dataclass(frozen=True)
class _GroupTaps:
    """Builder of the multiply-adds of one kernel position of a grouped convolution.

    It implements `grouped_loops.Taps`, the part of the loops in which depthwise and grouped
    convolutions differ.
    """

    reach: Reach
    out_block: int
    sums: int
    unrolled: int
    pairs: bool

    @property
    def tasks(self) -> int:
        return self.reach.tasks

    @property
    def blocks(self) -> int:
        return self.reach.blocks

    def first_block(self, task: Expression) -> Expression:
        return tirx.indexdiv(self.reach.start(task), self.reach.block)

    def add(
        self, arguments: Arguments, task: Expression, source: PaddedSource, sums: list[TirBuffer],
        tap: tuple[Expression, Expression], pixels: TilePixels,
    ) -> None:  # fmt: skip
        reach, block, lanes = self.reach, self.reach.block, self.out_block
        offset = 0 if reach.is_aligned else tirx.indexmod(reach.start(task), block)

        def channel(c: Expression, of_block: tuple[Expression, Expression]) -> None:
            y, column, (first, end) = pixels
            for v, buffer in enumerate(sums):
                if sums_type(reach.workload) == "int32":
                    with T.unroll(first, end) as pixel:
                        number = source.at(of_block[0], y, column(pixel), of_block[1])
                        weight = vector(arguments.weights, [task, *tap, c, v * lanes], lanes)
                        numbers, at = spread(number, lanes), pixel * lanes
                        add_products(buffer, at, numbers, weight, lanes, self.pairs)
                    continue
                with T.unroll(first, end) as pixel, T.vectorized(0, lanes) as i:
                    place = pixel * lanes + i
                    weight = arguments.weights[(task, *tap, c, v * lanes + i)]
                    value = source.at(of_block[0], y, column(pixel), of_block[1]) * weight
                    T.buffer_store(buffer, buffer[place] + value, [place])

        def scattered(at: Expression) -> None:
            place = offset + at
            channel(at, (tirx.indexdiv(place, block), tirx.indexmod(place, block)))

        if not reach.is_even:
            first, count = reach.needed_channels(task)
            middles = T.serial(0, tirx.indexdiv(count, self.unrolled))
            with Nest([middles, T.unroll(0, self.unrolled)]) as (middle, inner):
                scattered(first + middle * self.unrolled + inner)
            return
        size = reach.step
        outer = reach.span // size
        loops = [T.serial(0, outer), T.serial(0, size // self.unrolled), T.unroll(0, self.unrolled)]
        with Nest(loops) as (b, middle, inner):
            at = middle * self.unrolled + inner
            if reach.is_aligned:
                channel(b * size + at, (b, at))
            else:
                scattered(at)


class Grouped:
    """`Kernel` for convolutions with groups of any size."""

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is a grouped convolution.

        This includes depthwise convolutions with several output channels per input channel.

        Args:
            workload: the workload.
        """
        w = workload
        return w.operator == "conv2d" and w.groups > 1

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a grouped convolution: see `targets.cpu.kernels.grouped_loops`.

        Args:
            workload: the workload.
            spec: the processor.

        Raises:
            WorkloadError: the processor has no instructions for int8.
        """
        check_dots(workload, spec)
        w = workload
        _, ob = _blocks(w, spec)
        group_outputs = w.out_channels // w.groups
        blocks = divisors(
            (group_outputs if group_outputs % ob == 0 else w.out_channels) // ob, MAX_TILE_BLOCKS
        )
        sizes = [_reach(w, spec, v).step for v in blocks]
        return (
            Knob("tile_blocks", blocks),
            Knob("unroll_channels", divisors(int(np.gcd.reduce(sizes)), 8)),
            *window_knobs(w, ob, MAX_TILE_ROWS, MAX_TAPS),
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the knob values of the rule schedule, by name.

        In the cost of a tile, the factors for loads and for small tiles are our choices, as in
        `matrix_product`. `python -m benchmarks.cpu.networks --networks shufflenet` measures a
        network with groups.
        """
        w = workload
        knobs = {knob.name: knob.values for knob in self.knobs(w, spec)}
        per_block = vectors(_blocks(w, spec)[1], spec.lanes)

        def cost(tile: tuple[int, int]) -> float:
            blocks, columns = tile
            spans = _reach(w, spec, blocks).spans
            computed = tiles(w.out_width, columns) * columns * float(spans.mean())
            return computed * (1 + (1 / columns + 1 / blocks) / 2) * (1 + 3 / (columns * blocks))

        fits = [
            (blocks, columns)
            for blocks in knobs["tile_blocks"]
            for columns in knobs["tile_columns"]
            if per_block * blocks * (columns + 1) + 1 <= spec.registers
        ] or [(knobs["tile_blocks"][0], 1)]
        blocks, columns = min(fits, key=cost)
        # LLVM loads the weights of all unrolled channels first, and spills what has no register.
        free = spec.registers - 1 - per_block * blocks * columns
        unrolled = min(4, max(1, free // (per_block * blocks)))
        tasks = _reach(w, spec, blocks).tasks
        return {
            "tile_blocks": blocks, "unroll_channels": max(
                u for u in knobs["unroll_channels"] if u <= unrolled
            ),
            "tile_columns": columns, "tile_rows": 1,
            "row_shares": even_shares(w, tasks, spec.threads, knobs["row_shares"]),
            "channels_first": 1, "rows_inside": 0, "unroll_kernel": 0,
            "padding": COPY_NOTHING,
        }  # fmt: skip

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the data, (n, channel blocks, rows, columns, channels)."""
        w, block = workload, _blocks(workload, spec)[0]
        return w.batch, w.in_channels // block, w.height, w.width, block

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, (n, channel blocks, rows, columns, channels)."""
        w, block = workload, _blocks(workload, spec)[1]
        return w.batch, w.out_channels // block, w.out_height, w.out_width, block

    def weights_shape(self, w: Workload, spec: CpuSpec, values: KnobValues) -> tuple[int, ...]:
        """Return the shape of packed weights.

        Args:
            w: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            (tiles of output channels, kh, kw, input channels per tile, output channels per tile).
        """
        reach = _reach(w, spec, values["tile_blocks"])
        return reach.tasks, w.kernel_h, w.kernel_w, reach.span, reach.tile

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the kernel of a config (`values`) as an unscheduled TensorIR function."""
        w, (ib, ob) = workload, _blocks(workload, spec)
        reach = _reach(w, spec, values["tile_blocks"])
        each_in, each_out = w.in_channels // w.groups, w.out_channels // w.groups
        data = te.placeholder(self.data_shape(w, spec), w.data_dtype, name="data")
        filters = self.weights_shape(w, spec, values)
        weights = te.placeholder(filters, sums_type(w), name="weights")
        c = te.reduce_axis((0, each_in), "c")
        kh, kw = te.reduce_axis((0, w.kernel_h), "kh"), te.reduce_axis((0, w.kernel_w), "kw")
        shape = self.out_shape(w, spec)
        inputs = epilogue_inputs(w, shape, ob)
        source = real_data(w, data, inputs)

        def product(
            n: Expression, o: Expression, y: Expression, x: Expression, i: Expression
        ) -> Expression:
            row, column = y * w.stride_h + kh * w.dilation_h, x * w.stride_w + kw * w.dilation_w
            out = o * ob + i
            task = tirx.indexdiv(out, reach.tile)
            channel = tirx.indexdiv(out, each_out) * each_in + c
            weight = weights[
                task, kh, kw, channel - reach.start(task), tirx.indexmod(out, reach.tile)
            ]
            of_block = tirx.indexdiv(channel, ib), tirx.indexmod(channel, ib)
            number = source[n, of_block[0], row, column, of_block[1]]
            return te.sum(multiply_number(w, number, weight), [c, kh, kw])

        out = with_epilogue(w, te.compute(shape, product, name="sums"), shape, inputs)
        return te.create_prim_func([data, weights, *inputs.values(), out])

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        The loops are written explicitly, because TVM's `Schedule` cannot express overlapping tiles.
        `function`, the unscheduled kernel from `define`, is ignored.
        """
        w, (ib, ob) = workload, _blocks(workload, spec)
        reach = _reach(w, spec, values["tile_blocks"])
        pairs = multiplies_pairs(spec, ob)
        taps = _GroupTaps(reach, ob, values["tile_blocks"], values["unroll_channels"], pairs)
        windows = WindowLoops(w, values, taps, ib, ob)
        weights = self.weights_shape(w, spec, values)
        return build_function(windows, self.data_shape(w, spec), weights, self.out_shape(w, spec))

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack weights, with zeros between different groups.

        Args:
            weights: shape (o, c / groups, kh, kw).
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            Packed weights of shape `weights_shape`.
        """
        w, reach = workload, _reach(workload, spec, values["tile_blocks"])
        packed = np.zeros(self.weights_shape(w, spec, values), weights.dtype)
        out = np.arange(w.out_channels)
        task, channel_of_tile = np.divmod(out, reach.tile)
        each_in = w.in_channels // w.groups
        first = out // (w.out_channels // w.groups) * each_in - reach.starts[task]
        for c in range(each_in):
            packed[task, :, :, first + c, channel_of_tile] = weights[:, c]
        return packed_words(w, packed, multiplies_pairs(spec, _blocks(w, spec)[1]))


def _blocks(w: Workload, spec: CpuSpec) -> tuple[int, int]:
    return channel_block(w.in_channels, spec.lanes), channel_block(w.out_channels, spec.lanes)


def _reach(w: Workload, spec: CpuSpec, vectors: int) -> Reach:
    ib, ob = _blocks(w, spec)
    return Reach(w, vectors * ob, ib)
