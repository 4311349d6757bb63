"""Explicit TensorIR loops for kernels whose tiles overlap or treat the border differently.

If the last tile would reach beyond the last row, it begins earlier and computes some rows a second
time. Any tile size therefore works for any number of rows without bounds checks. A tile at the
border of an image leaves out products with padding. TVM's `Schedule` can express neither technique,
because it only splits loops over a whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Expression, TirBuffer
from tilewright.targets.cpu.kernels.epilogue import (
    data_zero,
    epilogue_tensors,
    epilogue_value,
    shape_of_tensor,
    sums_type,
)
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

MAX_ACCUMULATORS = 64
"""Maximum number of accumulator vectors of a register tile. It is twice the number of registers;
with more vectors, everything would spill."""
STACK_BYTES = 1023
"""Maximum size in bytes of a buffer that TVM allocates on the stack. LLVM keeps only such buffers
in registers, so larger groups of accumulators are divided between several buffers."""
MAX_UNROLLED = 1024
"""Maximum number of unrolled multiply-adds. With more, a kernel takes seconds to compile
(docs/decisions/measuring-on-a-cpu.md)."""


def check_tile(accumulators: int, unrolled: int) -> None:
    """Check that a register tile is small enough to compile.

    Args:
        accumulators: number of accumulator vectors of the tile.
        unrolled: number of unrolled multiply-adds.

    Raises:
        DoesNotApply: one of the two numbers exceeds its limit, `MAX_ACCUMULATORS` or
            `MAX_UNROLLED`.
    """
    if accumulators > MAX_ACCUMULATORS:
        raise DoesNotApply(f"a register tile of {accumulators} vectors, over {MAX_ACCUMULATORS}")
    if unrolled > MAX_UNROLLED:
        raise DoesNotApply(
            f"{unrolled} unrolled multiply-adds, over {MAX_UNROLLED}", "code_too_large"
        )


def tiles(size: int, tile: int) -> int:
    """Return the number of tiles that cover a dimension.

    Args:
        size: length of the dimension.
        tile: length of a tile.
    """
    return -(-size // tile)


def tile_start(index: Expression, size: int, tile: int) -> Expression:
    """Return the index at which a tile begins.

    If the last tile would reach beyond the end, it begins earlier and overlaps the tile before it.

    Args:
        index: number of the tile.
        size: length of the dimension that the tiles cover.
        tile: length of a tile.
    """
    return index * tile if size % tile == 0 else tirx.min(index * tile, size - tile)


def share(index: Expression, parts: int, whole: int) -> tuple[Expression, Expression]:
    """Return the range of one of several nearly equal parts of `range(whole)`.

    Args:
        index: index of the part.
        parts: number of parts.
        whole: length of the range.

    Returns:
        The first index of the part, and the index after its last.
    """
    if whole % parts == 0:
        return index * (whole // parts), (index + 1) * (whole // parts)
    return tirx.indexdiv(index * whole, parts), tirx.indexdiv((index + 1) * whole, parts)


@contextmanager
def loop_within(index: Expression, parts: int, whole: int) -> Iterator[Expression]:
    """Open a loop over one of several nearly equal parts of `range(whole)`: see `share`.

    If all parts have the same length, the loop begins at 0 and the begin of the part is added to
    its index, because TVM cannot determine bounds for a loop of a single iteration that begins
    elsewhere.

    Args:
        index: index of the part.
        parts: number of parts.
        whole: length of the range.

    Yields:
        The loop variable, an index in the range.
    """
    begin, end = share(index, parts, whole)
    if whole % parts:
        with T.serial(begin, end) as item:
            yield item
    else:
        with T.serial(0, whole // parts) as item:
            yield begin + item


def split_index(index: Expression, *sizes: int) -> list[Expression]:
    """Split the index of a fused loop into the indices of the original loops.

    Args:
        index: the index of the fused loop.
        *sizes: extents of the original loops, outermost first.

    Returns:
        One index per original loop, outermost first.
    """
    indices = []
    for size in reversed(sizes):
        indices.append(tirx.indexmod(index, size) if size > 1 else 0)
        index = tirx.indexdiv(index, size)
    return indices[::-1]


class Nest:
    """Several nested loops as one context manager: `with Nest.unrolled(3, 4) as (i, j)`.

    Args:
        frames: the loops, outermost first.
    """

    def __init__(self, frames: Sequence[AbstractContextManager[Expression]]) -> None:
        self._frames, self._stack = frames, ExitStack()

    @classmethod
    def unrolled(cls, *extents: int) -> Nest:
        """Create unrolled loops.

        Args:
            *extents: extents of the loops.
        """
        return cls([T.unroll(0, extent) for extent in extents])

    @classmethod
    def tile(cls, *extents: int) -> Nest:
        """Create unrolled loops around a vectorised loop.

        Args:
            *extents: extents of the loops. The last one is the number of lanes.
        """
        loops = [T.unroll(0, extent) for extent in extents[:-1]]
        return cls([*loops, T.vectorized(0, extents[-1])])

    def __enter__(self) -> tuple[Expression, ...]:
        return tuple(self._stack.enter_context(frame) for frame in self._frames)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class Arguments:
    """Parameters of the kernel function that is being built, in the order in which they are passed.

    Args:
        workload: the workload.
        data: shape of the data.
        weights: shape of the packed weights.
        bias: shape of operands with one value per output channel.
        out: shape of the output.
        weights_type: element type of the weights. By default the type of the sums: int32 for int8
            workloads, whose weights are packed into 32-bit words
            (`targets.cpu.kernels.int8_dot_product`).
        data_type: element type of the data; by default the workload's type.
    """

    def __init__(
        self, workload: Workload, data: tuple[int, ...], weights: tuple[int, ...],
        bias: tuple[int, ...], out: tuple[int, ...], weights_type: str = "",
        data_type: str = "",
    ) -> None:  # fmt: skip
        def argument(name: str, shape: tuple[int, ...], dtype: str) -> TirBuffer:
            return T.arg(name, T.buffer(shape, dtype))

        self.workload = workload
        self.data = argument("data", data, data_type or workload.data_dtype)
        self.weights = argument("weights", weights, weights_type or sums_type(workload))
        self._inputs: dict[str, TirBuffer] = {
            name: argument(name, shape_of_tensor(workload, name, bias, out), dtype)
            for name, dtype in epilogue_tensors(workload).items()
        }
        self.out = argument("out", out, workload.out_dtype)

    @property
    def zero(self) -> Expression:
        """Zero point of the data, as an int32 expression."""
        return data_zero(self._inputs)

    def finish(
        self, value: Expression, place: tuple[Expression, ...], channel: tuple[Expression, ...]
    ) -> None:
        """Add statements that apply the epilogue to an accumulator and store the result.

        Args:
            value: the accumulator.
            place: indices into the output.
            channel: indices into operands with one value per output channel, such as the bias.
        """
        result = epilogue_value(self.workload, self._inputs, value, place, channel)
        T.buffer_store(self.out, result, list(place))
