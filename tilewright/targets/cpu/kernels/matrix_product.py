"""Multiplies matrices, rows × depth by depth × columns, in register tiles of rows × vectors.

    parallel (batch, shares of the rows, shares of the columns)
      data and weights of the share packed   if asked for
      depth in tiles                         partial sums kept beside
        tiles of columns, tiles of rows      or the other way round
          depth, unrolled
            rows × vectors                   one broadcast number, one vector, an instruction
          bias, residual, clip

Tiles overlap at the end, see `targets.cpu.kernels.loops`. A single row keeps several sums of a
number apart (`chains`), since one multiply-add has to wait for the one before.

`GemmShape` has the sizes of a product, the decisions of its schedule, and the rule that makes them.
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
TILE_VECTORS = (1, 2, 3, 4, 6, 8)
TILE_DEPTH = (32, 64, 128, 256, 512)
"""Rows and vectors of a register tile, and parts of the depth, that a config may have."""

FAR = 1 << 20
"""Bytes of weights that no second-level cache keeps beside data: half of the 2 MiB of the Xeon of
docs/evidence/cpu.md. `python -m benchmarks.cpu.networks --networks vit_tiny,bert_6_128 --threads 2`
measures rules for several threads."""
FAR_APART, OFTEN = 512, 8
"""Columns, and tiles of rows: with fewer of either, packing gains nothing. With 1,024 columns,
scores of 1,024 tokens took 52 ms in place of 25 without it (`python -m benchmarks.cpu.networks
--networks bert_2_512,bert_2_1024 --threads 1`, on the Xeon of docs/evidence/cpu.md)."""


@dataclass(frozen=True)
class GemmShape:
    """`batch` products of `rows` × `depth` by `depth` × `columns`; `lanes` numbers a vector."""

    batch: int
    rows: int
    depth: int
    columns: int
    lanes: int

    @classmethod
    def of(cls, w: Workload, spec: CpuSpec) -> GemmShape:
        """What a dense or a batch_matmul computes. The rows of a dense are its batch; the depth of
        int8 counts steps of dot products."""
        batch, rows = (w.batch, w.height) if w.operator == "batch_matmul" else (1, w.batch)
        depth = dot_product(spec).steps(w.in_channels) if w.dtype == "int8" else w.in_channels
        return cls(batch, rows, depth, w.out_channels, min(spec.lanes, w.out_channels))

    def width(self, values: KnobValues) -> int:
        """Columns of a register tile."""
        return values["tile_vectors"] * self.lanes

    def knobs(self, packed: bool) -> tuple[Knob, ...]:
        """The schedule's decisions; `packed`: whether weights come in tiles already."""
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
        """A schedule that is good without having been tuned: of the tiles that fit the registers
        the one that computes least twice and loads least, a share a thread. Many weights,
        more than the data, are shared: each thread would read all from memory. `products` are the
        registers that hold products before they are added.

        In the cost of a tile, the weight of loads and that of the wait for few sums are choices of
        ours. `python -m benchmarks.cpu.peak --networks vit_tiny,mixer_s16,bert_6_128` measures
        layers by this rule."""
        knobs = {knob.name: knob.values for knob in self.knobs(packed)}

        def cost(tile: tuple[int, int]) -> float:
            rows, vectors = tile
            done = (
                tiles(self.rows, rows) * rows * tiles(self.columns, vectors * self.lanes) * vectors
            )
            loads = (1 / rows + 1 / vectors) / 2
            return done * (1 + loads) * (1 + 3 / (rows * vectors))

        rows, vectors = min(
            (
                (rows, vectors)
                for rows in knobs["tile_rows"]
                for vectors in knobs["tile_vectors"]
                if rows * vectors + vectors + products < spec.registers
            ),
            key=cost,
        )
        shares = spec.threads // gcd(self.batch, spec.threads)

        def near(name: str, wanted: int) -> int:
            return max(v for v in knobs[name] if v <= max(wanted, 1))

        by_rows, by_columns = near("row_shares", shares), near("column_shares", shares)
        far = packed and 4 * self.depth * self.columns > FAR and self.columns > self.rows
        if far and self._is_even(rows, vectors, by_columns):
            by_rows = near("row_shares", shares if by_columns == 1 else 1)
        else:
            by_columns = near("column_shares", shares if by_rows == 1 else 1)
        return {
            "tile_rows": rows, "tile_vectors": vectors, "row_shares": by_rows,
            "column_shares": by_columns, "columns_first": 0, "rows_inside": 1,
            "tile_depth": self.depth, "unroll_depth": 4,
            "chains": near("chains", 8 // (rows * vectors)), "pack_data": 0,
            "pack_weights": max(knobs["pack_weights"]) if self._far_apart(rows) else 0,
        }  # fmt: skip

    def _is_even(self, rows: int, vectors: int, shares: int) -> bool:
        """Whether so many shares of the columns are as even as those of the rows."""
        counts = tiles(self.columns, vectors * self.lanes), tiles(self.rows, rows)
        by_columns, by_rows = (tiles(count, shares) / count for count in counts)
        return by_columns <= by_rows

    def _far_apart(self, tile_rows: int) -> bool:
        """Whether the rows of a tile's columns lie so far apart that a cache holds few of them, and
        are read often enough to be moved together first: 0.5 of the time with 1,024 columns."""
        return self.columns >= FAR_APART and tiles(self.rows, tile_rows) >= OFTEN


def multiply(
    w: Workload,
    product: GemmShape,
    values: KnobValues,
    packed: bool,
    share_of: type[Share] | None = None,
) -> PrimFunc:
    """The function that computes `product`, as a schedule says; `share_of` writes what a task does,
    in float32 unless it is given. Raises `DoesNotApply`."""
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
    """What one task of the parallel loop does, written into the function that is being built."""

    sums_type = "float32"

    @staticmethod
    def weights_shape(p: GemmShape, v: KnobValues) -> tuple[int, ...]:
        """Of packed weights."""
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
        """Lanes of a vector of sums."""
        return p.lanes

    def begin(self, column: Expression, at: Expression) -> Expression:
        """What the sum number `at` of a tile of columns begins with."""
        return tirx.const(0, self.sums_type)

    def plus(self, one: Expression, other: Expression) -> Expression:
        """Of two sums."""
        return one + other

    def write(self, packed: bool) -> None:
        """The whole task."""
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

        def before(
            step: Expression, row: Expression, column: Expression
        ) -> Callable[[int, Expression], Expression]:
            place, zero = self._place(row, column), tirx.const(0, self.sums_type)
            return lambda r, at: tirx.if_then_else(step > 0, partial[(*place, r, at)], zero)

        def before_last(
            row: Expression, column: Expression
        ) -> Callable[[int, Expression], Expression]:
            place = self._place(row, column)
            return lambda r, at: self.plus(partial[(*place, r, at)], self.begin(column, at))

        with T.serial(0, steps - 1) as step, self._tiles() as (row, column):
            sums = self._sums(before(step, row, column))
            self._add_all(sums, row, column, step * v["tile_depth"], v["tile_depth"])
            for r in range(self.height):
                with Nest.tile(v["tile_vectors"], self.vector) as (c, i):
                    at = c * self.vector + i
                    place = [*self._place(row, column), r, at]
                    T.buffer_store(partial, self._total(sums, r, at), place)
        done = (steps - 1) * v["tile_depth"]
        with self._tiles() as (row, column):
            sums = self._sums(before_last(row, column))
            self._add_all(sums, row, column, done, p.depth - done)
            self._finish(sums, row, column)

    def _place(self, row: Expression, column: Expression) -> tuple[Expression, Expression]:
        """Of a tile within the share."""
        return row - self.rows[0], column - self.columns[0]

    def _tiles(self) -> Nest:
        """Loops over the share's tiles: the indices of a row tile and of a column tile."""

        def count(whole: int, parts: int, of: tuple[Expression, Expression]) -> Expression:
            return of[1] - of[0] if whole % parts else whole // parts

        counts = [
            count(self.row_tiles, self.v["row_shares"], self.rows),
            count(self.column_tiles, self.v["column_shares"], self.columns),
        ]
        return _Tiles(counts, (self.rows[0], self.columns[0]), bool(self.v["rows_inside"]))

    def _sums(self, before: Callable[[int, Expression], Expression]) -> list[list[TirBuffer]]:
        """A buffer a chain and row of the tile, from what was `before` at (row, column), all but
        the first chain from zero: registers, since TVM puts what is below 1024 bytes on the stack,
        from where LLVM takes them."""

        each = self.v["tile_vectors"] * self.vector
        sums = [
            [T.alloc_buffer((each,), self.sums_type) for _ in range(self.height)]
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
        """Multiply-adds of one register tile over a part of the depth."""
        chains, unroll = self.v["chains"], self.v["unroll_depth"]
        whole = depth // (chains * unroll)
        if whole:
            with T.serial(0, whole) as outer, T.unroll(0, unroll) as inner:
                for chain in range(chains):
                    k = begin + (outer * unroll + inner) * chains + chain
                    self.add(sums[chain], row, column, k)
        for k in range(whole * chains * unroll, depth):
            self.add(sums[k % chains], row, column, begin + k)

    def add(
        self, sums: list[TirBuffer], row: Expression, column: Expression, k: Expression
    ) -> None:
        """One step of a register tile: `sums` a buffer a row."""
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
        """`number`, from where it was packed."""
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
        """Of a tile."""
        return tile_start(row, self.p.rows, self.height)

    def number(self, row: Expression, r: Expression, k: Expression) -> Expression:
        """Of the data, as a step takes it: row `r` of a tile, place `k` of the depth."""
        return self.a.data[(*self.lead, self.first_row(row) + r, k)]

    def _pack_data(self) -> TirBuffer:
        """The rows of the share, one number of each row of a tile beside the other."""
        shape = (self.most_rows, self.p.depth, self.height)
        packed = T.alloc_buffer(shape, self.sums_type)
        loops = [T.serial(*self.rows), T.serial(0, self.p.depth), T.unroll(0, self.height)]
        with Nest(loops) as (row, k, r):
            value = self.number(row, r, k)
            T.buffer_store(packed, value, [row - self.rows[0], k, r])
        return packed

    def pack_weights(self) -> TirBuffer:
        """A buffer of the columns of the share, tile behind tile."""
        packed = T.alloc_buffer((self.most_columns, self.p.depth, self.width), "float32")
        lanes = self.p.lanes
        tile = Nest.tile(self.v["tile_vectors"], lanes)
        with T.serial(*self.columns) as column, T.serial(0, self.p.depth) as k, tile as (c, i):
            start = tile_start(column, self.p.columns, self.width)
            value = self.a.weights[(*self.lead, k, start + c * lanes + i)]
            T.buffer_store(packed, value, [column - self.columns[0], k, c * lanes + i])
        return packed


class _Tiles(Nest):
    """Loops over so many rows and columns of tiles, rows inside of columns or the other way round,
    and their indices, which begin at `first`. The loops begin at 0: a loop of one iteration that
    begins elsewhere is what TVM's features of stores cannot be made of."""

    def __init__(
        self, counts: Sequence[Expression], first: tuple[Expression, Expression], rows_inside: bool
    ) -> None:
        self._order, self._first = -1 if rows_inside else 1, first
        super().__init__([T.serial(0, count) for count in counts][:: self._order])

    def __enter__(self) -> tuple[Expression, ...]:
        inside = super().__enter__()[:: self._order]
        return tuple(first + index for first, index in zip(self._first, inside, strict=True))
