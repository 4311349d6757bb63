"""Implements convolution without groups in int8, by dot products of four."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import direct_dots
from tilewright.targets.cpu.kernels.conv2d import direct_knobs
from tilewright.targets.cpu.kernels.heuristic_schedule import baseline_values
from tilewright.targets.cpu.kernels.int8_dot_product import (
    FOUR,
    check_dots,
    fours,
    vector_of,
    weight_at,
)
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.padding import padded
from tilewright.targets.cpu.kernels.shared import with_epilogue
from tilewright.targets.cpu.kernels.tiling import CpuTiling, packed_shape, pixels
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")


class ConvolutionInt8:
    """Keeps `targets.cpu.kernels.kernel.Kernel` for convolutions of int8 without groups. Data are
    seen as rows: (n, c / block, h, w × block)."""

    def serves(self, workload: Workload) -> bool:
        w = workload
        return w.operator == "conv2d" and w.groups == 1 and w.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Raises `WorkloadError` for a processor without dot products."""
        check_dots(workload, spec)
        block = channel_block(workload.in_channels, spec.lanes)
        return (
            *direct_knobs(workload, spec, (1,), fours(block)),
            Knob("parallel", (0, 1) if spec.threads > 1 else (0,)),
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """A good config without any measurement."""
        return baseline_values(workload, spec, self.knobs(workload, spec))

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        n, blocks, height, width, block = packed_shape(workload, spec)
        return n, blocks, height, width * block

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        return packed_shape(workload, spec, out=True)

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """The convolution as a tensor expression, on weights as they are packed."""
        w, t = workload, CpuTiling.of(workload, spec, values, pixels(workload))
        data = te.placeholder(self.data_shape(w, spec), "int8", name="data")
        weights = te.placeholder(direct_dots.weights_shape(w, t), "int32", name="weights")
        blocks, lanes, each = w.in_channels // t.ib, vector_of(t.ob), FOUR * fours(t.ib)
        image = te.compute(
            packed_shape(w, spec), lambda n, c, y, x, i: data[n, c, y, x * t.ib + i], name="image"
        )
        source = padded(w, image)
        c, i = te.reduce_axis((0, blocks), "c"), te.reduce_axis((0, t.ib), "i")
        kh, kw = te.reduce_axis((0, w.kernel_h), "kh"), te.reduce_axis((0, w.kernel_w), "kw")

        def product(n: Any, o: Any, y: Any, x: Any, b: Any) -> Any:
            number = ((c * w.kernel_h + kh) * w.kernel_w + kw) * each + i
            lane = tirx.indexmod(o, t.tile[0]) * lanes + b
            weight = weight_at(weights, tirx.indexdiv(o, t.tile[0]), number, lane)
            row = y * w.stride_h + kh * w.dilation_h
            column = x * w.stride_w + kw * w.dilation_w
            value = tirx.Cast("int32", source[n, c, row, column, i])
            return te.sum(value * weight, axis=[c, kh, kw, i])

        shape = packed_shape(w, spec, out=True)
        sums = te.compute(shape, product, name="sums")
        inputs, out = with_epilogue(w, sums, shape, t.ob)
        return te.create_prim_func([data, weights, *inputs, out])

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """The loops written out; `function` says what they compute."""
        return direct_dots.written(workload, spec, values)

    def pack_weights(
        self, weights: NDArray[Any], workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> NDArray[Any]:
        return direct_dots.pack(weights, workload, spec, values)
