"""Matrix products, (rows, depth) by (depth, columns), in register tiles of rows × vectors.

The depth is the dimension over which products are summed. The rows and the columns are divided into
shares; a parallel task computes one share of the rows times one share of the columns:

    parallel (batch, shares of the rows, shares of the columns)
      pack the share's data and weights     if the knobs say so
      depth in tiles                        partial sums are kept in a buffer
        tiles of columns, tiles of rows     or in the opposite order
          depth, unrolled
            rows × vectors                  one broadcast value times one vector per instruction
          epilogue

Tiles overlap at the end: see `targets.cpu.kernels.loops`. A multiply-add has to wait for the
previous multiply-add on the same sum. With few rows, each result therefore has several independent
partial sums, called chains.

`GemmShape` holds the sizes of a product, and defines the knobs and the rule schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.int8_dot_product import dot_product
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import (
    Arguments,
    Nest,
    check_tile,
    share,
    split_index,
    tile_start,
    tiles,
)
from tilewright.targets.cpu.kernels.tile_arithmetic import SHARES
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
ir_builder = lazy_module("tvm.script.ir_builder")
T = lazy_module("tvm.script.ir_builder.tirx")

TILE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
"""Numbers of rows that a register tile may have."""
TILE_VECTORS = (1, 2, 3, 4, 6, 8)
"""Numbers of vectors that a row of a register tile may have."""
TILE_DEPTH = (32, 64, 128, 256, 512)
"""Lengths of the pieces into which the depth may be cut."""

FAR = 1 << 20
"""Size in bytes of the weights above which they do not fit into a second-level cache together with
the data: half of the 2 MiB of the Xeon of docs/evidence/cpu.md. Above this size, the rule schedule
divides the columns between threads. `python -m benchmarks.cpu.networks --networks
vit_tiny,bert_6_128 --threads 2` measures the rule schedule with several threads."""
FAR_APART, OFTEN = 512, 8
"""Minimum number of columns, and minimum number of register tiles along the rows, for which packing
the weights pays off. With 1,024 columns, the attention scores of 1,024 tokens took 52 ms with
unpacked weights and 25 ms with packed weights (`python -m benchmarks.cpu.networks --networks
bert_2_512,bert_2_1024 --threads 1`, on the Xeon of docs/evidence/cpu.md)."""


@dataclass(frozen=True)
class GemmShape:
    """Sizes of `batch` matrix products, (rows, depth) by (depth, columns).

    Attributes:
        batch: number of products.
        rows: rows of the result.
        depth: number of multiply-adds per result; for int8, number of dot-product instructions per
            result.
        columns: columns of the result.
        lanes: values per vector.
    """

    batch: int
    rows: int
    depth: int
    columns: int
    lanes: int

    @classmethod
    def for_workload(cls, w: Workload, spec: CpuSpec) -> GemmShape:
        """Return the sizes of the matrix products that a dense layer or a batched product computes.

        Args:
            w: the workload, a `dense` or `batch_matmul`. The rows of a dense layer are its batch.
            spec: the processor.
        """
        batch, rows = (w.batch, w.height) if w.operator == "batch_matmul" else (1, w.batch)
        depth = dot_product(spec).steps(w.in_channels) if w.dtype == "int8" else w.in_channels
        return cls(batch, rows, depth, w.out_channels, min(spec.lanes, w.out_channels))

    def width(self, values: KnobValues) -> int:
        """Return the number of columns of a register tile.

        Args:
            values: the config, as knob values by knob name.
        """
        return values["tile_vectors"] * self.lanes

    def knobs(self, packed: bool) -> tuple[Knob, ...]:
        """Return the knobs of the schedule: tile sizes, loop orders, numbers of tasks, and packing.

        Args:
            packed: whether the weights were packed in tiles in advance. The knob `pack_weights`
                then only has the value 0.
        """
        most = tiles(self.columns, 3 * self.lanes)
        fits = tuple(v for v in TILE_VECTORS if v * self.lanes <= self.columns)
        rows = tuple(r for r in TILE_ROWS if r <= self.rows)
        depth = [d for d in TILE_DEPTH if d < self.depth] + [self.depth]
        return (
            Knob("tile_rows", rows),
            Knob("tile_vectors", fits),
            Knob("row_shares", tuple(s for s in SHARES if s <= tiles(self.rows, rows[-1]))),
            Knob("column_shares", tuple(s for s in SHARES if s <= most)),
            Knob("columns_first", (0, 1)),
            Knob("rows_inside", (0, 1)),
            Knob("tile_depth", tuple(depth)),
            Knob("unroll_depth", (1, 2, 4, 8)),
            Knob("chains", (1, 2, 4, 8) if self.rows <= 4 else (1,)),
            Knob("pack_data", (0, 1) if self.rows > 1 else (0,)),
            Knob("pack_weights", (0,) if packed else (0, 1)),
        )

    def baseline_values(self, spec: CpuSpec, packed: bool, products: int = 0) -> dict[str, int]:
        """Choose the rule schedule, a config that needs no measurements.

        The work is divided into one task per thread. Of the register tiles that fit the registers,
        the rule takes the tile with the fewest repeated computations and loads. If the weights are
        large, and larger than the data, the columns are divided between the threads. Otherwise each
        thread would read all weights from memory.

        In the cost of a tile, the factors for loads and for waiting on few accumulators are our
        choices. `python -m benchmarks.cpu.peak --networks vit_tiny,mixer_s16,bert_6_128` measures
        layers with the rule schedule.

        Args:
            spec: the processor.
            packed: whether the weights were packed in tiles in advance.
            products: number of vector registers that hold products before they are added to
                accumulators.

        Returns:
            The value of each knob, by its name.
        """
        knobs = {knob.name: knob.values for knob in self.knobs(packed)}

        def cost(tile: tuple[int, int]) -> float:
            rows, vectors = tile
            computed = (
                tiles(self.rows, rows) * rows * tiles(self.columns, vectors * self.lanes) * vectors
            )
            loads = (1 / rows + 1 / vectors) / 2
            return computed * (1 + loads) * (1 + 3 / (rows * vectors))

        rows, vectors = min(
            (
                (rows, vectors)
                for rows in knobs["tile_rows"]
                for vectors in knobs["tile_vectors"]
                # One register remains for the broadcast number.
                if rows * vectors + vectors + products < spec.registers
            ),
            key=cost,
        )
        shares = spec.threads // gcd(self.batch, spec.threads)

        def largest_up_to(name: str, wanted: int) -> int:
            return max(v for v in knobs[name] if v <= max(wanted, 1))

        by_rows, by_columns = (
            largest_up_to("row_shares", shares),
            largest_up_to("column_shares", shares),
        )
        divide_weights = packed and 4 * self.depth * self.columns > FAR and self.columns > self.rows
        if divide_weights and self._is_even(rows, vectors, by_columns):
            by_rows = largest_up_to("row_shares", shares if by_columns == 1 else 1)
        else:
            by_columns = largest_up_to("column_shares", shares if by_rows == 1 else 1)
        return {
            "tile_rows": rows, "tile_vectors": vectors, "row_shares": by_rows,
            "column_shares": by_columns, "columns_first": 0, "rows_inside": 1,
            "tile_depth": self.depth, "unroll_depth": 4,
            "chains": largest_up_to("chains", 8 // (rows * vectors)), "pack_data": 0,
            "pack_weights": max(knobs["pack_weights"]) if self._far_apart(rows) else 0,
        }  # fmt: skip

    def _is_even(self, rows: int, vectors: int, shares: int) -> bool:
        """Return whether dividing the columns spreads the work as evenly as dividing the rows.

        Args:
            rows: rows of a register tile.
            vectors: vectors in a row of a register tile.
            shares: number of parts into which the columns or the rows are divided.
        """
        counts = tiles(self.columns, vectors * self.lanes), tiles(self.rows, rows)
        by_columns, by_rows = (tiles(count, shares) / count for count in counts)
        return by_columns <= by_rows

    def _far_apart(self, tile_rows: int) -> bool:
        """Return whether packing the weights pays off because their rows lie far apart in memory.

        A cache then holds few of the weights that a register tile reads, although each weight is
        read often. With 1,024 columns, packing halves the time.

        Args:
            tile_rows: rows of a register tile.
        """
        return self.columns >= FAR_APART and tiles(self.rows, tile_rows) >= OFTEN


def multiply(
    w: Workload,
    product: GemmShape,
    values: KnobValues,
    packed: bool,
    share_of: type[Share] | None = None,
) -> PrimFunc:
    """Build the TensorIR function of a matrix product with the loops that a config selects.

    Args:
        w: the workload.
        product: sizes of the product.
        values: the config, as knob values by knob name.
        packed: whether the weights were packed in tiles in advance.
        share_of: class that builds the loops of one parallel task. Default: `Share`, for float32.

    Returns:
        The function, which needs no further schedule.

    Raises:
        DoesNotApply: the register tile or the unrolled code is too large.
    """
    p, v = product, values
    check_tile(
        v["tile_rows"] * v["tile_vectors"] * v["chains"],
        v["tile_rows"] * v["tile_vectors"] * v["chains"] * v["unroll_depth"],
    )
    lead = (p.batch,) if w.operator == "batch_matmul" else ()
    writer = share_of or Share
    weights = writer.weights_shape(p, v) if packed else (w.in_channels, p.columns)
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        arguments = Arguments(
            w, (*lead, p.rows, w.in_channels), (*lead, *weights), (p.columns,),
            (*lead, p.rows, p.columns), "" if packed else w.dtype,
        )  # fmt: skip
        by_rows, by_columns = v["row_shares"], v["column_shares"]
        with T.parallel(0, p.batch * by_rows * by_columns) as chunk:
            if v["columns_first"]:
                batch, column, row = split_index(chunk, p.batch, by_columns, by_rows)
            else:
                batch, row, column = split_index(chunk, p.batch, by_rows, by_columns)
            writer(arguments, p, v, [batch][: len(lead)], row, column).write(packed)
    return builder.get()


class Share:
    """Builder of the loops of one parallel task of a matrix product, in float32.

    The rows and the columns of the result are divided into contiguous parts, called shares. A task
    computes one share of the rows times one share of the columns, in register tiles. Subclasses
    override how single products are computed.

    Args:
        arguments: parameters of the function that is being built.
        p: sizes of the product.
        v: the config, as knob values by knob name.
        lead: index of the product in a batch, as a list; empty without a batch.
        row: index of the share of the rows.
        column: index of the share of the columns.
    """

    sums_type = "float32"
    """Element type of the accumulators."""

    @staticmethod
    def weights_shape(p: GemmShape, v: KnobValues) -> tuple[int, ...]:
        """Return the shape of packed weights: (tiles of columns, depth, columns per tile).

        Args:
            p: sizes of the product.
            v: the config, as knob values by knob name.
        """
        return tiles(p.columns, p.width(v)), p.depth, p.width(v)

    def __init__(
        self, arguments: Arguments, p: GemmShape, v: KnobValues, lead: list[Expression],
        row: Expression, column: Expression,
    ) -> None:  # fmt: skip
        self.a, self.p, self.v, self.lead = arguments, p, v, lead
        self.vector = self.vector_of(p)
        self.row_tiles = tiles(p.rows, v["tile_rows"])
        self.column_tiles = tiles(p.columns, p.width(v))
        self.rows = share(row, v["row_shares"], self.row_tiles)
        self.columns = share(column, v["column_shares"], self.column_tiles)

    def vector_of(self, p: GemmShape) -> int:
        """Return the number of accumulators per vector.

        Args:
            p: sizes of the product.
        """
        return p.lanes

    def begin(self, column: Expression, at: Expression) -> Expression:
        """Return the initial value of an accumulator.

        Args:
            column: index of the tile of columns.
            at: index of the accumulator within a row of the tile.
        """
        return tirx.const(0, self.sums_type)

    def plus(self, one: Expression, other: Expression) -> Expression:
        """Add two partial sums of the same result."""
        return one + other

    def write(self, packed: bool) -> None:
        """Add the loops of the whole task to the function that is being built.

        Args:
            packed: whether the weights were packed in tiles in advance.
        """
        p, v = self.p, self.v
        self.height, self.width = v["tile_rows"], p.width(v)
        self.most_rows = tiles(self.row_tiles, v["row_shares"])
        self.most_columns = tiles(self.column_tiles, v["column_shares"])
        self.packed_weights = packed
        self.data = self._pack_data() if v["pack_data"] else None
        self.weights = self.pack_weights() if v["pack_weights"] else None
        steps = tiles(p.depth, v["tile_depth"])
        if steps == 1:
            with self._tiles() as (row, column):
                sums = self._sums(lambda _, at: self.begin(column, at))
                self._add_all(sums, row, column, 0, p.depth)
                self._finish(sums, row, column)
            return
        sums_each = v["tile_vectors"] * self.vector
        shape = (self.most_rows, self.most_columns, self.height, sums_each)
        partial = T.alloc_buffer(shape, self.sums_type)

        def partial_or_zero(
            step: Expression, row: Expression, column: Expression
        ) -> Callable[[int, Expression], Expression]:
            place, zero = self._place(row, column), tirx.const(0, self.sums_type)
            return lambda r, at: tirx.if_then_else(step > 0, partial[(*place, r, at)], zero)

        def partial_and_initial(
            row: Expression, column: Expression
        ) -> Callable[[int, Expression], Expression]:
            place = self._place(row, column)
            return lambda r, at: self.plus(partial[(*place, r, at)], self.begin(column, at))

        with T.serial(0, steps - 1) as step, self._tiles() as (row, column):
            sums = self._sums(partial_or_zero(step, row, column))
            self._add_all(sums, row, column, step * v["tile_depth"], v["tile_depth"])
            for r in range(self.height):
                with Nest.tile(v["tile_vectors"], self.vector) as (c, i):
                    at = c * self.vector + i
                    place = [*self._place(row, column), r, at]
                    T.buffer_store(partial, self._total(sums, r, at), place)
        # The last part of the depth adds the initial values and applies the epilogue.
        done = (steps - 1) * v["tile_depth"]
        with self._tiles() as (row, column):
            sums = self._sums(partial_and_initial(row, column))
            self._add_all(sums, row, column, done, p.depth - done)
            self._finish(sums, row, column)

    def _place(self, row: Expression, column: Expression) -> tuple[Expression, Expression]:
        """Return the indices of a register tile relative to the task's first tile.

        Args:
            row: index of the tile of rows in the whole matrix.
            column: index of the tile of columns in the whole matrix.
        """
        return row - self.rows[0], column - self.columns[0]

    def _tiles(self) -> Nest:
        """Return the two loops over the register tiles of this task.

        The loops yield the index of the tile of rows and the index of the tile of columns.
        """

        def count(whole: int, parts: int, ends: tuple[Expression, Expression]) -> Expression:
            return ends[1] - ends[0] if whole % parts else whole // parts

        counts = [
            count(self.row_tiles, self.v["row_shares"], self.rows),
            count(self.column_tiles, self.v["column_shares"], self.columns),
        ]
        return _Tiles(counts, (self.rows[0], self.columns[0]), bool(self.v["rows_inside"]))

    def _sums(self, before: Callable[[int, Expression], Expression]) -> list[list[TirBuffer]]:
        """Allocate and initialise the accumulators of a register tile.

        TVM puts buffers below 1024 bytes on the stack, and LLVM then keeps them in registers.

        Args:
            before: function that returns the initial value of an accumulator, given its row and its
                column within the tile. If each result has several independent partial sums, called
                chains, only the first chain starts with these values, and the other chains start
                with zero.

        Returns:
            One buffer of shape (columns of the tile,) per chain and row of the tile.
        """
        tile_columns = self.v["tile_vectors"] * self.vector
        sums = [
            [T.alloc_buffer((tile_columns,), self.sums_type) for _ in range(self.height)]
            for _ in range(self.v["chains"])
        ]
        for chain, rows in enumerate(sums):
            for r, buffer in enumerate(rows):
                with Nest.tile(self.v["tile_vectors"], self.vector) as (c, i):
                    at = c * self.vector + i
                    zero = tirx.const(0, self.sums_type)
                    T.buffer_store(buffer, zero if chain else before(r, at), [at])
        return sums

    def _add_all(
        self,
        sums: list[list[TirBuffer]],
        row: Expression,
        column: Expression,
        begin: Expression,
        depth: int,
    ) -> None:
        """Add the products of one register tile, over a part of the depth, to its accumulators.

        Args:
            sums: buffers of accumulators, by chain (independent partial sum) and by row of the
                tile.
            row: index of the tile of rows.
            column: index of the tile of columns.
            begin: index along the depth at which the part begins.
            depth: length of the part.
        """
        chains, unroll = self.v["chains"], self.v["unroll_depth"]
        iterations = depth // (chains * unroll)
        if iterations:
            with T.serial(0, iterations) as outer, T.unroll(0, unroll) as inner:
                for chain in range(chains):
                    k = begin + (outer * unroll + inner) * chains + chain
                    self.add(sums[chain], row, column, k)
        for k in range(iterations * chains * unroll, depth):
            self.add(sums[k % chains], row, column, begin + k)

    def add(
        self, sums: list[TirBuffer], row: Expression, column: Expression, k: Expression
    ) -> None:
        """Add the products of a register tile at one index of the depth to its accumulators.

        Args:
            sums: buffers of accumulators, by row of the tile.
            row: index of the tile of rows.
            column: index of the tile of columns.
            k: index along the depth.
        """
        lanes = self.p.lanes
        for r, buffer in enumerate(sums):
            left = self.left(row, r, k)
            with Nest.tile(self.v["tile_vectors"], lanes) as (c, i):
                at = c * lanes + i
                if self.weights is not None:
                    right = self.weights[column - self.columns[0], k, at]
                elif self.packed_weights:
                    right = self.a.weights[column, k, at]
                else:
                    start = tile_start(column, self.p.columns, self.width)
                    right = self.a.weights[(*self.lead, k, start + at)]
                T.buffer_store(buffer, buffer[at] + left * right, [at])

    def left(self, row: Expression, r: int, k: Expression) -> Expression:
        """Return one value of the data, read from the packed copy if this task has made a copy.

        Args:
            row: index of the tile of rows.
            r: row within the tile.
            k: index along the depth.
        """
        if self.data is None:
            return self.number(row, r, k)
        return self.data[row - self.rows[0], k, r]

    def _total(self, sums: list[list[TirBuffer]], r: int, at: Expression) -> Expression:
        total = sums[0][r][at]
        for chain in sums[1:]:
            total = self.plus(total, chain[r][at])
        return total

    def _finish(self, sums: list[list[TirBuffer]], row: Expression, column: Expression) -> None:
        lanes, start = self.p.lanes, tile_start(column, self.p.columns, self.width)
        for r in range(self.height):
            with Nest.tile(self.v["tile_vectors"], lanes) as (c, i):
                channel = start + c * lanes + i
                place = *self.lead, self.first_row(row) + r, channel
                self.a.finish(self._total(sums, r, c * self.vector + i), place, (channel,))

    def first_row(self, row: Expression) -> Expression:
        """Return the index of the first matrix row of a register tile.

        Args:
            row: index of the tile of rows.
        """
        return tile_start(row, self.p.rows, self.height)

    def number(self, row: Expression, r: Expression, k: Expression) -> Expression:
        """Return one value of the data, read from the kernel's parameter.

        Args:
            row: index of the tile of rows.
            r: row within the tile.
            k: index along the depth.
        """
        return self.a.data[(*self.lead, self.first_row(row) + r, k)]

    def _pack_data(self) -> TirBuffer:
        """Add loops that copy the data of this task, with the values of a tile's rows adjacent.

        Returns:
            The copy, a buffer of shape (tiles of rows, depth, rows per tile).
        """
        shape = (self.most_rows, self.p.depth, self.height)
        packed = T.alloc_buffer(shape, self.sums_type)
        loops = [T.serial(*self.rows), T.serial(0, self.p.depth), T.unroll(0, self.height)]
        with Nest(loops) as (row, k, r):
            value = self.number(row, r, k)
            T.buffer_store(packed, value, [row - self.rows[0], k, r])
        return packed

    def pack_weights(self) -> TirBuffer:
        """Add loops that pack the weights of this task's columns, tile by tile.

        Returns:
            The packed weights, a buffer of shape (tiles of columns, depth, columns per tile).
        """
        packed = T.alloc_buffer((self.most_columns, self.p.depth, self.width), "float32")
        lanes = self.p.lanes
        tile = Nest.tile(self.v["tile_vectors"], lanes)
        with T.serial(*self.columns) as column, T.serial(0, self.p.depth) as k, tile as (c, i):
            start = tile_start(column, self.p.columns, self.width)
            value = self.a.weights[(*self.lead, k, start + c * lanes + i)]
            T.buffer_store(packed, value, [column - self.columns[0], k, c * lanes + i])
        return packed


class _Tiles(Nest):
    """Two nested loops over tiles of rows and tiles of columns of a matrix.

    The loops count from 0, and `first` is added to their indices, because TVM cannot compute
    features of stores in a loop of one iteration that begins elsewhere.

    Args:
        counts: number of tiles of rows and number of tiles of columns.
        first: index of the first tile of rows and index of the first tile of columns.
        rows_inside: whether the loop over rows is the inner loop.
    """

    def __init__(
        self, counts: Sequence[Expression], first: tuple[Expression, Expression], rows_inside: bool
    ) -> None:
        self._order, self._first = -1 if rows_inside else 1, first
        super().__init__([T.serial(0, count) for count in counts][:: self._order])

    def __enter__(self) -> tuple[Expression, ...]:
        inside = super().__enter__()[:: self._order]
        return tuple(first + index for first, index in zip(self._first, inside, strict=True))
