"""Computes the sizes of a product of matrices, and the decisions of a schedule of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.int8_dot_product import dot_product
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import tiles
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

TILE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
TILE_VECTORS = (1, 2, 3, 4, 6, 8)
TILE_DEPTH = (32, 64, 128, 256, 512)
SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

FAR = 1 << 20
"""Bytes of weights that no second-level cache keeps beside data."""
FAR_APART, OFTEN = 512, 8
"""Columns, and tiles of rows: with fewer of either, packing gains nothing (measured)."""


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
        registers that hold products before they are added."""
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
