"""Implements convolution without groups in float32: one space over several algorithms."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import direct, winograd
from tilewright.targets.cpu.kernels.heuristic_schedule import baseline_values
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.shared import divisors, even_parts
from tilewright.targets.cpu.kernels.tiling import packed_shape, pixels
from tilewright.targets.cpu.kernels.winograd_transforms import SIZES
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload


class Convolution:
    """Keeps `targets.cpu.kernels.kernel.Kernel` for convolutions without groups."""

    def serves(self, workload: Workload) -> bool:
        w = workload
        return w.operator == "conv2d" and w.groups == 1 and w.dtype == "float32"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        w, ib = workload, channel_block(workload.in_channels, spec.lanes)
        in_blocks = w.in_channels // ib
        return (
            Knob("algorithm", (0, *SIZES) if winograd.serves(w) else (0,)),
            *direct_knobs(w, spec, divisors(in_blocks, in_blocks), ib),
            Knob("stages", (0, 1) if winograd.serves(w) else (0,)),
            Knob("parallel", (0, 1) if spec.threads > 1 else (0,)),
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """A good config without any measurement."""
        return baseline_values(workload, spec, self.knobs(workload, spec))

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        return packed_shape(workload, spec)

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        return packed_shape(workload, spec, out=True)

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        way = winograd if values["algorithm"] else direct
        return way.define(workload, spec, values)

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        way = winograd if values["algorithm"] else direct
        return way.schedule(function, workload, spec, values)

    def pack_weights(
        self, weights: NDArray[Any], workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> NDArray[Any]:
        pack = winograd.pack if values["algorithm"] else direct.pack
        return pack(weights, workload, spec, values)


def direct_knobs(
    w: Workload, spec: CpuSpec, parts_ic: tuple[int, ...], steps: int
) -> tuple[Knob, ...]:
    """The decisions of a direct convolution whose blocks of input channels are `steps` steps of a
    register tile."""
    rows, columns = pixels(w)
    out_blocks = w.out_channels // channel_block(w.out_channels, spec.lanes)
    room = spec.registers - 2
    return (
        Knob("tile_ow", _parts(columns, room)),
        Knob("tile_oh", tuple(each for each in (1, 2, 3, 4, 7) if each <= min(rows, room))),
        Knob("tile_oc", divisors(out_blocks, min(8, room))),
        Knob("parts_oc", divisors(out_blocks, out_blocks)),
        Knob("parts_oh", _counts(rows)),
        Knob("parts_ow", _counts(columns if rows == 1 else min(columns, 4))),
        Knob("parts_ic", parts_ic),
        Knob("chunks_first", (0, 1)),
        Knob("tiles_first", (0, 1)),
        Knob("pixels_first", (0, 1)),
        Knob("unroll_kernel", (0, 1, 2) if w.kernel_h * w.kernel_w > 1 else (0,)),
        Knob("unroll_channels", divisors(steps, 8)),
        Knob("copy", (0, 1, 2)),
    )


def _parts(length: int, at_most: int) -> tuple[int, ...]:
    """Lengths of equal parts that cover `length`, none above `at_most`."""
    return tuple(sorted({even_parts(length, most) for most in range(1, at_most + 1)}))


def _counts(length: int) -> tuple[int, ...]:
    """Into how many parts a length may be cut: up to four, then doubling."""
    doubled = (1 << power for power in range(3, length.bit_length()))
    return tuple(sorted({*range(1, min(length, 4) + 1), *doubled, length}))
