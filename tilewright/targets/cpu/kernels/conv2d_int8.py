"""Implements convolution without groups in int8: by dot products, or by Winograd's algorithm."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import direct_dots, winograd
from tilewright.targets.cpu.kernels.conv2d import direct_knobs
from tilewright.targets.cpu.kernels.heuristic_schedule import baseline_values
from tilewright.targets.cpu.kernels.int8_dot_product import check_dots, dot_product, vector_of
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.padding import padded
from tilewright.targets.cpu.kernels.shared import (
    data_zero,
    divisors,
    epilogue_inputs,
    with_epilogue,
)
from tilewright.targets.cpu.kernels.tiling import CpuTiling, packed_shape, pixels
from tilewright.targets.cpu.kernels.winograd_transforms import SIZES
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")


class ConvolutionInt8:
    """Keeps `targets.cpu.kernels.kernel.Kernel` for convolutions of int8 without groups. Data are
    seen as rows: (n, c / block, h, w × block). Where the epilogue works on reals, Winograd's
    algorithm computes in float32 on integers, whose sums it rounds by far less than a step."""

    def serves(self, workload: Workload) -> bool:
        w = workload
        return w.operator == "conv2d" and w.groups == 1 and w.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Raises `WorkloadError` for a processor without dot products."""
        check_dots(workload, spec)
        steps = dot_product(spec).steps(channel_block(workload.in_channels, spec.lanes))
        parallel = Knob("parallel", (0, 1) if spec.threads > 1 else (0,))
        if not _may_transform(workload):
            return (*direct_knobs(workload, spec, (1,), steps), parallel)
        blocks = workload.in_channels // channel_block(workload.in_channels, spec.lanes)
        direct = direct_knobs(workload, spec, divisors(blocks, blocks), steps)
        return (Knob("algorithm", (0, *SIZES)), *direct, Knob("stages", (0, 1)), parallel)

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
        if _transforms(values):
            return winograd.define(workload, spec, values)
        w, t = workload, CpuTiling.of(workload, spec, values, pixels(workload))
        dot = dot_product(spec)
        data = te.placeholder(self.data_shape(w, spec), w.data_dtype, name="data")
        weights = te.placeholder(direct_dots.weights_shape(w, t, dot), "int32", name="weights")
        blocks, lanes = w.in_channels // t.ib, vector_of(t.ob)
        each = dot.numbers * dot.steps(t.ib)
        shape = packed_shape(w, spec, out=True)
        inputs = epilogue_inputs(w, shape, t.ob)
        image = te.compute(
            packed_shape(w, spec),
            lambda n, c, y, x, i: (
                tirx.Cast("int32", data[n, c, y, x * t.ib + i]) - data_zero(inputs)
            ),
            name="image",
        )
        source = padded(w, image)
        c, i = te.reduce_axis((0, blocks), "c"), te.reduce_axis((0, t.ib), "i")
        kh, kw = te.reduce_axis((0, w.kernel_h), "kh"), te.reduce_axis((0, w.kernel_w), "kw")

        def product(n: Any, o: Any, y: Any, x: Any, b: Any) -> Any:
            number = ((c * w.kernel_h + kh) * w.kernel_w + kw) * each + i
            lane = tirx.indexmod(o, t.tile[0]) * lanes + b
            weight = dot.weight_at(weights, tirx.indexdiv(o, t.tile[0]), number, lane)
            row = y * w.stride_h + kh * w.dilation_h
            column = x * w.stride_w + kw * w.dilation_w
            return te.sum(source[n, c, row, column, i] * weight, axis=[c, kh, kw, i])

        out = with_epilogue(w, te.compute(shape, product, name="sums"), shape, inputs)
        return te.create_prim_func([data, weights, *inputs.values(), out])

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """The loops written out; `function` says what they compute."""
        if _transforms(values):
            return winograd.schedule(function, workload, spec, values)
        return direct_dots.written(workload, spec, values)

    def pack_weights(
        self, weights: NDArray[Any], workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> NDArray[Any]:
        pack = winograd.pack if _transforms(values) else direct_dots.pack
        return pack(weights, workload, spec, values)


def _may_transform(w: Workload) -> bool:
    return w.dequantises and winograd.serves(w)


def _transforms(values: KnobValues) -> bool:
    """Whether a config is of Winograd's algorithm."""
    return values.get("algorithm", 0) > 0
