"""Direct convolution on channels in blocks: a register tile of pixels × output channels, one vector
of weights and one broadcast number of data an instruction.

    parallel (output channels / image rows, in chunks)
      rows, columns                          tiles of registers
        input channels, kernel rows, kernel columns, channels of a block
          tile of pixels × vectors           unrolled
      bias, residual, clip                   on the tile while it is in registers
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from targets.base import Knob
from targets.cpu.kernels.kernel import DoesNotApply, Values
from targets.cpu.kernels.shared import divisors, with_epilogue
from targets.cpu.layouts import channel_block, pack_filters
from targets.cpu.spec import CpuSpec
from targets.workload import Workload

REGISTERS = 32


def is_pointwise(workload: Workload) -> bool:
    """Whether its pixels are independent of each other: rows and columns are one axis."""
    sizes = (workload.kernel_h, workload.kernel_w, workload.stride_h, workload.stride_w)
    pads = (workload.pad_top, workload.pad_left, workload.pad_bottom, workload.pad_right)
    return set(sizes) == {1} and not any(pads)


class DirectConvolution:
    """Keeps `targets.cpu.kernels.kernel.Kernel` for convolutions without groups."""

    def serves(self, workload: Workload) -> bool:
        return workload.operator == "conv2d" and workload.groups == 1 and workload.dtype == "float32"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        rows, columns = _pixels(workload)
        out_blocks = workload.out_channels // channel_block(workload.out_channels, spec.lanes)
        return (
            Knob("tile_ow", divisors(columns, REGISTERS - 2)),
            Knob("tile_oc", divisors(out_blocks, 8)),
            Knob("rows", divisors(rows, rows)),
            Knob("columns", divisors(columns, columns)),
            Knob("channels_first", (0, 1)),
            Knob("unroll_kernel", (0, 1, 2)),
            Knob("unroll_channels", (0, 1)),
            Knob("pad_in_chunk", (0, 1) if _padded(workload) else (0,)),
        )

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        w, block = workload, channel_block(workload.in_channels, spec.lanes)
        height, width = (1, w.height * w.width) if is_pointwise(w) else (w.height, w.width)
        return w.batch, w.in_channels // block, height, width, block

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        block = channel_block(workload.out_channels, spec.lanes)
        return workload.batch, workload.out_channels // block, *_pixels(workload), block

    def define(self, workload: Workload, spec: CpuSpec, values: Values) -> Any:
        from tvm import te, tirx

        w = workload
        ib = channel_block(w.in_channels, spec.lanes)
        ob = channel_block(w.out_channels, spec.lanes)
        tile = values["tile_oc"] * ob
        data = te.placeholder(self.data_shape(w, spec), name="data")
        weights = te.placeholder(
            (w.out_channels // tile, w.in_channels // ib, w.kernel_h, w.kernel_w, ib, tile),
            name="weights",
        )
        source = data
        if _padded(w):
            shape = (
                w.batch, w.in_channels // ib, w.height + w.pad_top + w.pad_bottom,
                w.width + w.pad_left + w.pad_right, ib,
            )  # fmt: skip

            def inside(n: Any, c: Any, y: Any, x: Any, i: Any) -> Any:
                row, column = y - w.pad_top, x - w.pad_left
                within = tirx.all(row >= 0, row < w.height, column >= 0, column < w.width)
                zero = tirx.const(0, "float32")
                return tirx.if_then_else(within, data[n, c, row, column, i], zero)

            source = te.compute(shape, inside, name="padded")
        c = te.reduce_axis((0, w.in_channels // ib), "c")
        kh = te.reduce_axis((0, w.kernel_h), "kh")
        kw = te.reduce_axis((0, w.kernel_w), "kw")
        i = te.reduce_axis((0, ib), "i")
        shape = self.out_shape(w, spec)

        def product(n: Any, o: Any, y: Any, x: Any, b: Any) -> Any:
            row = y * w.stride_h + kh * w.dilation_h
            column = x * w.stride_w + kw * w.dilation_w
            of_tile = tirx.indexmod(o, values["tile_oc"]) * ob + b
            weight = weights[tirx.indexdiv(o, values["tile_oc"]), c, kh, kw, i, of_tile]
            return te.sum(source[n, c, row, column, i] * weight, axis=[c, kh, kw, i])

        sums = te.compute(shape, product, name="sums")
        inputs, result = with_epilogue(w, sums, shape, ob)
        return te.create_prim_func([data, weights, *inputs, result])

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: Values) -> Any:
        import tvm
        from tvm.s_tir import Schedule

        if values["tile_ow"] * values["tile_oc"] > REGISTERS - 2:
            raise DoesNotApply("tile_ow × tile_oc needs more registers than there are")
        if values["columns"] % values["tile_ow"]:
            raise DoesNotApply("columns is no multiple of tile_ow")
        sch = Schedule(tvm.IRModule({"main": function}))
        out, sums = sch.get_sblock("out"), sch.get_sblock("sums")
        n, o, y, x, b = sch.get_loops(out)
        o_chunk, o_tile = sch.split(o, [None, values["tile_oc"]])
        y_chunk, y_row = sch.split(y, [None, values["rows"]])
        x_chunk, x_tiles, x_tile = sch.split(
            x, [None, values["columns"] // values["tile_ow"], values["tile_ow"]]
        )
        chunks = [o_chunk, y_chunk] if values["channels_first"] else [y_chunk, o_chunk]
        sch.reorder(n, *chunks, x_chunk, y_row, x_tiles, o_tile, x_tile, b)
        chunk = sch.fuse(n, *chunks, x_chunk)
        sch.parallel(chunk)
        sch.vectorize(b)
        sch.unroll(x_tile)
        sch.unroll(o_tile)
        sch.compute_at(sums, x_tiles, preserve_unit_loops=True)
        if _padded(workload):
            padded = sch.get_sblock("padded")
            if values["pad_in_chunk"]:
                sch.compute_at(padded, chunk, preserve_unit_loops=True)
                sch.vectorize(sch.get_loops(padded)[-1])
            else:
                pn, pc, py, _, pi = sch.get_loops(padded)
                sch.vectorize(pi)
                sch.parallel(sch.fuse(pn, pc, py))
        *spatial, c, kh, kw, i = sch.get_loops(sums)[3:]
        if values["unroll_channels"]:
            sch.unroll(i)
        if values["unroll_kernel"] > 0:
            sch.unroll(kw)
        if values["unroll_kernel"] > 1:
            sch.unroll(kh)
        sch.reorder(c, kh, kw, i, *spatial)
        for loop in spatial[:-1]:
            sch.unroll(loop)
        sch.vectorize(spatial[-1])
        initial = sch.decompose_reduction(sums, c)
        *unrolled, vector = sch.get_loops(initial)[3:]
        for loop in unrolled:
            sch.unroll(loop)
        sch.vectorize(vector)
        return sch.mod["main"]

    def pack_weights(
        self, weights: NDArray[Any], workload: Workload, spec: CpuSpec, values: Values
    ) -> NDArray[Any]:
        ob = channel_block(workload.out_channels, spec.lanes)
        ib = channel_block(workload.in_channels, spec.lanes)
        return pack_filters(weights, ib, values["tile_oc"] * ob)


def _pixels(w: Workload) -> tuple[int, int]:
    if is_pointwise(w):
        return 1, w.out_height * w.out_width
    return w.out_height, w.out_width


def _padded(w: Workload) -> bool:
    return any((w.pad_top, w.pad_left, w.pad_bottom, w.pad_right))
