"""Writes loops of TensorIR for kernels whose tiles overlap or whose borders are special.

A tile that would reach beyond the last row begins earlier and computes some rows twice. So any tile
serves any size without a guard. A tile at the border leaves out what falls into the padding.
Neither can be said by splitting loops of a whole tensor, as `Schedule` does.
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
"""Vectors a register tile may have: twice the registers, beyond that all is spills."""
STACK_BYTES = 1023
"""A buffer larger than this TVM does not put on the stack, and only what is there LLVM puts into
registers: sums are kept in several buffers where they are more."""
MAX_UNROLLED = 1024
"""Multiply-adds written out one by one: more compile for seconds
(docs/decisions/measuring-on-a-cpu.md)."""


def check_tile(accumulators: int, unrolled: int) -> None:
    """Raises `DoesNotApply` for register tiles and unrolled code beyond our limits."""
    if accumulators > MAX_ACCUMULATORS:
        raise DoesNotApply(f"a register tile of {accumulators} vectors, over {MAX_ACCUMULATORS}")
    if unrolled > MAX_UNROLLED:
        raise DoesNotApply(
            f"{unrolled} unrolled multiply-adds, over {MAX_UNROLLED}", "code_too_large"
        )


def tiles(size: int, tile: int) -> int:
    """How many tiles cover `size`."""
    return -(-size // tile)


def tile_start(index: Expression, size: int, tile: int) -> Expression:
    """Where tile number `index` of `size` begins: the last one earlier where it would reach beyond
    the end."""
    return index * tile if size % tile == 0 else tirx.min(index * tile, size - tile)


def share(index: Expression, parts: int, whole: int) -> tuple[Expression, Expression]:
    """Begin and end of part `index` of `whole` things divided evenly into `parts`."""
    if whole % parts == 0:
        return index * (whole // parts), (index + 1) * (whole // parts)
    return tirx.indexdiv(index * whole, parts), tirx.indexdiv((index + 1) * whole, parts)


@contextmanager
def within(index: Expression, parts: int, whole: int) -> Iterator[Expression]:
    """A loop over a `share`. It begins at 0 where all parts have equally many: TVM cannot bound one
    of a single turn that begins elsewhere."""
    begin, end = share(index, parts, whole)
    if whole % parts:
        with T.serial(begin, end) as found:
            yield found
    else:
        with T.serial(0, whole // parts) as found:
            yield begin + found


def split_index(index: Expression, *sizes: int) -> list[Expression]:
    """The indices that one fused index stands for, the last fastest."""
    found = []
    for size in reversed(sizes):
        found.append(tirx.indexmod(index, size) if size > 1 else 0)
        index = tirx.indexdiv(index, size)
    return found[::-1]


class Nest:
    """`with Nest.unrolled(3, 4) as (i, j)`: several loops at once."""

    def __init__(self, frames: Sequence[AbstractContextManager[Expression]]) -> None:
        self._frames, self._stack = frames, ExitStack()

    @classmethod
    def unrolled(cls, *extents: int) -> Nest:
        """Loops that are written out."""
        return cls([T.unroll(0, extent) for extent in extents])

    @classmethod
    def tile(cls, *extents: int) -> Nest:
        """Unrolled loops around a vector, whose lanes are the last extent."""
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
    """A kernel's parameters while its function is being written, in the order they are passed;
    weights of int8 are packed in int32 (`targets.cpu.kernels.int8_dot_product`), unless another
    type is given, and so are the data of the workload's type.
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
        """The zero point of the data, an int32."""
        return data_zero(self._inputs)

    def finish(
        self, value: Expression, place: tuple[Expression, ...], channel: tuple[Expression, ...]
    ) -> None:
        """Stores `value` at `place` of the output after the epilogue; `channel` is the place in the
        bias."""
        found = epilogue_value(self.workload, self._inputs, value, place, channel)
        T.buffer_store(self.out, found, list(place))
