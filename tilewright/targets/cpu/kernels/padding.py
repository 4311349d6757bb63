"""Copies tensors in blocks of channels between their padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Expression, Tensor, TirBuffer
from tilewright.targets.cpu.kernels.epilogue import data_zero, real
from tilewright.targets.cpu.kernels.loops import split_index
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")


def is_padded(w: Workload) -> bool:
    """Whether there is any padding."""
    return any((w.pad_top, w.pad_left, w.pad_bottom, w.pad_right))


def padded(w: Workload, data: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """A te tensor in blocks of channels between its padding; with as many zeros behind it as make
    it of that size (rows, columns), if one is given."""
    if size is None:
        if not is_padded(w):
            return data
        size = w.height + w.pad_top + w.pad_bottom, w.width + w.pad_left + w.pad_right
    n, c, _, _, block = data.shape
    shape = (n, c, *size, block)

    def inside(
        n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
    ) -> Expression:
        row, column = y - w.pad_top, x - w.pad_left
        within = tirx.all(row >= 0, row < w.height, column >= 0, column < w.width)
        return tirx.if_then_else(within, data[n, c, row, column, i], tirx.const(0, data.dtype))

    return te.compute(shape, inside, name="padded")


def real_data(
    w: Workload,
    data: Tensor,
    inputs: Mapping[str, Tensor | TirBuffer],
    size: tuple[int, int] | None = None,
) -> Tensor:
    """`padded` data; the integers of an epilogue with a `dequantise` step as the numbers that they
    stand for times their scale, in float32. `inputs` are what the epilogue takes."""
    if not w.dequantises:
        return padded(w, data, size)
    zero = data_zero(inputs)

    reals = te.compute(data.shape, lambda *place: real(data[place], zero), name="reals")
    return padded(w, reals, size)


@dataclass(frozen=True)
class PaddedSource:
    """Where a task reads: `at(block, y, x, i)` in coordinates of the unpadded image."""

    at: Callable[[Expression, Expression, Expression, Expression], Expression]


class Copies:
    """Written into the function that is being built; `data` its parameter, in blocks of `block`
    channels; copies are of the element type `kind`, as `convert` makes them of the data's."""

    def __init__(
        self,
        w: Workload,
        data: TirBuffer,
        block: int,
        kind: str,
        convert: Callable[[Expression], Expression],
    ) -> None:
        self.w, self.data, self.block, self.kind, self.convert = w, data, block, kind, convert
        self.width = (w.out_width - 1) * w.stride_w + w.dilation_w * (w.kernel_w - 1) + 1

    def height(self, rows: int) -> int:
        """Rows of data that so many rows of output read."""
        w = self.w
        return (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1

    def of_everything(self) -> TirBuffer:
        """A buffer of all data between its padding, as far as anything reads it."""
        w, blocks, rows = self.w, self.w.in_channels // self.block, self.height(self.w.out_height)
        copy = T.alloc_buffer((w.batch, blocks, rows, self.width, self.block), self.kind)
        with T.parallel(0, w.batch * blocks * rows) as chunk:
            n, c, y = split_index(chunk, w.batch, blocks, rows)
            self._row(copy, [n, c, y], [n, c, y - w.pad_top])
        return copy

    def of_rows(
        self, place: tuple[Expression, Expression], blocks: int, first: Expression, rows: int
    ) -> PaddedSource:
        """What `rows` rows of output from `first` on read of so many `blocks` of channels, from
        `place` (image, block) on."""
        w, (n, block) = self.w, place
        top, height = first * w.stride_h - w.pad_top, self.height(rows)
        copy = T.alloc_buffer((blocks, height, self.width, self.block), self.kind)
        with T.serial(0, blocks) as c, T.serial(0, height) as y:
            self._row(copy, [c, y], [n, block + c, top + y])
        return PaddedSource(lambda c, y, x, i: copy[c, y - top, x + w.pad_left, i])

    def _row(self, copy: TirBuffer, to: list[Expression], source: list[Expression]) -> None:
        w, zero = self.w, tirx.const(0, self.kind)
        end = min(w.pad_left + w.width, self.width)

        def clear(begin: int, until: int) -> None:
            if begin < until:
                with T.serial(begin, until) as x, T.vectorized(0, self.block) as i:
                    T.buffer_store(copy, zero, [*to, x, i])

        with T.If(tirx.all(source[-1] >= 0, source[-1] < w.height)):
            with T.Then():
                clear(0, min(w.pad_left, self.width))
                if w.pad_left < end:
                    with T.serial(w.pad_left, end) as x, T.vectorized(0, self.block) as i:
                        value = self.convert(self.data[(*source, x - w.pad_left, i)])
                        T.buffer_store(copy, value, [*to, x, i])
                clear(max(end, 0), self.width)
            with T.Else():
                clear(0, self.width)
