"""Copies of tensors with channel blocks to buffers that include the padding of a convolution."""

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
    """Return whether a workload has padding.

    Args:
        w: the workload.
    """
    return any((w.pad_top, w.pad_left, w.pad_bottom, w.pad_right))


def pad_data(w: Workload, data: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Return a tensor expression for the data with padding around each image.

    Args:
        w: the workload.
        data: the data, shape (n, c / block, h, w, block).
        size: rows and columns of the result, which may include additional zeros at the end.
            Default: the size of the data with their padding.
    """
    if size is None:
        if not is_padded(w):
            return data
        size = w.height + w.pad_top + w.pad_bottom, w.width + w.pad_left + w.pad_right
    n, c, _, _, block = data.shape
    shape = (n, c, *size, block)

    def padded_value(
        n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
    ) -> Expression:
        row, column = y - w.pad_top, x - w.pad_left
        in_image = tirx.all(row >= 0, row < w.height, column >= 0, column < w.width)
        return tirx.if_then_else(in_image, data[n, c, row, column, i], tirx.const(0, data.dtype))

    return te.compute(shape, padded_value, name="padded")


def real_data(
    w: Workload,
    data: Tensor,
    inputs: Mapping[str, Tensor | TirBuffer],
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Return a tensor expression for the padded data as the kernel multiplies them.

    If the epilogue has a `dequantise` step, integers are converted to float32 and their zero point
    is subtracted. The result is not multiplied by the quantisation scale.

    Args:
        w: the workload.
        data: the data, shape (n, c / block, h, w, block).
        inputs: operands of the epilogue by name.
        size: rows and columns of the result: see `pad_data`.
    """
    if not w.dequantises:
        return pad_data(w, data, size)
    zero = data_zero(inputs)

    reals = te.compute(data.shape, lambda *place: real(data[place], zero), name="reals")
    return pad_data(w, reals, size)


@dataclass(frozen=True)
class PaddedSource:
    """Source from which a parallel task reads the data of a convolution.

    The source is the kernel's parameter, or a copy of it that includes the padding.

    Attributes:
        at: function that returns the value at (block, y, x, i): block of channels, row and column
            of the image without padding, and channel within the block.
    """

    at: Callable[[Expression, Expression, Expression, Expression], Expression]


class Copies:
    """Builder of padded copies of the data. It adds loops to the function that is being built.

    Args:
        w: the workload.
        data: the function's parameter for the data, shape (n, c / block, h, w, block).
        block: channels per block.
        kind: element type of the copies.
        convert: function that converts a value of the data to that type.

    Attributes:
        width: number of columns of a copy.
    """

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
        """Return the number of rows of padded data that a number of output rows depends on.

        Args:
            rows: number of output rows.
        """
        w = self.w
        return (rows - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1

    def of_everything(self) -> TirBuffer:
        """Add loops that copy all data that the kernel reads to one buffer with padding.

        Returns:
            The buffer, shape (n, blocks, rows, columns, block).
        """
        w, blocks, rows = self.w, self.w.in_channels // self.block, self.height(self.w.out_height)
        copy = T.alloc_buffer((w.batch, blocks, rows, self.width, self.block), self.kind)
        with T.parallel(0, w.batch * blocks * rows) as chunk:
            n, c, y = split_index(chunk, w.batch, blocks, rows)
            self._row(copy, [n, c, y], [n, c, y - w.pad_top])
        return copy

    def of_rows(
        self, place: tuple[Expression, Expression], blocks: int, first: Expression, rows: int
    ) -> PaddedSource:
        """Add loops that copy the data that some output rows depend on, with padding.

        Args:
            place: index of the image, and index of the first block of channels.
            blocks: number of blocks of channels.
            first: first output row.
            rows: number of output rows.

        Returns:
            The copy, as a source that is indexed by coordinates of the unpadded image.
        """
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
