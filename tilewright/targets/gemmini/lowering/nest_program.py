"""Programs in the nest form: single loads, multiplications and stores, for any workload.

A multiplication is a pair of a PRELOAD and a COMPUTE command. The lower half of the scratchpad
holds data and the upper half holds weights, so that the array never reads two operands from one
bank.

A stage is a part of a tile's multiplications. While the array multiplies in one stage, the operands
of the next stage are loaded and the results of the previous tile are stored, if there are enough
buffers. Depending on the data flow, weights or sums stay in the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.isa import (
    COMPUTE_ACCUMULATED,
    COMPUTE_PRELOADED,
    GARBAGE,
    MVIN3,
    MVOUT,
    OUTPUT_STATIONARY,
    PRELOAD,
)
from tilewright.targets.gemmini.lowering.command_encoding import (
    ACCUMULATES,
    ACCUMULATOR,
    Command,
    CommandTable,
    StoredPool,
    commands,
    encode_array_config,
    encode_load_config,
    encode_store_config,
    operand,
)
from tilewright.targets.gemmini.lowering.epilogue import MOST_CHAINED
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, chain_ends, summed_inputs
from tilewright.targets.gemmini.lowering.operand_loads import (
    Patch,
    load_identities,
    load_patch,
    load_residual,
    load_weights,
    output_pixel,
)
from tilewright.targets.gemmini.lowering.schedule_space import (
    ALL_CHANNELS_FIRST,
    SPREAD,
    TileSchedule,
)
from tilewright.targets.gemmini.lowering.tile_fit import buffer_rows, check_tiles
from tilewright.targets.gemmini.lowering.tiles import (
    Tile,
    TileStage,
    channels_in,
    pixel_groups,
    stages,
    sum_rows,
)
from tilewright.targets.gemmini.spec import DIM, GemminiMachine
from tilewright.targets.patterns.max_pool import Pool

Pairs = NDArray[np.uint64]
"""Commands of some products, uint64 of shape (products, 2, 3). Each product is a PRELOAD followed
by a COMPUTE."""


class Places(NamedTuple):
    """Start rows of operands and accumulators of a stage, a part of a tile's multiplications.

    Attributes:
        data: first scratchpad row of the data.
        weights: first scratchpad row of the weights.
        sums: first accumulator row of the tile.
    """

    data: int
    weights: int
    sums: int


class _Blocks(NamedTuple):
    """16 × 16 blocks of weights in the order of their use, each with the data it is multiplied by.

    Each attribute is an array of shape (blocks,).

    Attributes:
        n: index of the block of output channels.
        data: scratchpad row of the data for the tile's first pixel.
        weights: scratchpad row of the weights.
        k_columns: number of input channels.
        n_columns: number of output channels.
        begins: 1 if the products of the block overwrite the accumulators, 0 if they are added.
    """

    n: NDArray[np.int64]
    data: NDArray[np.int64]
    weights: NDArray[np.int64]
    k_columns: NDArray[np.int64]
    n_columns: NDArray[np.int64]
    begins: NDArray[np.int64]

    def by_output(self) -> _Blocks:
        """Return the blocks sorted by their index of output channels, in a stable order."""
        order = np.argsort(self.n, kind="stable")
        return _Blocks(*(column[order] for column in self))


def stage_products(
    g: BlockGeometry, s: TileSchedule, patch: Patch, stage: TileStage, places: Places
) -> Pairs:
    """Return the multiplications of a stage as pairs of PRELOAD and COMPUTE commands.

    A stage is the part of a tile's multiplications for a range of input channels, or for the
    residual.

    Args:
        g: geometry of the workload.
        s: the schedule.
        patch: layout of the input pixels in the scratchpad.
        stage: the stage.
        places: start rows of the stage's operands and accumulators.

    Returns:
        Commands, uint64 array of shape (multiplications, 2, 3).
    """
    groups = np.array(pixel_groups(stage.tile), np.int64)  # shape (groups, 3)
    sums = places.sums + sum_rows(g, stage.tile).T  # shape (output blocks, groups)
    if stage.is_residual:
        blocks = _residual_blocks(g, s, stage, places)
        pixels = groups[:, 0] * s.tile_w + groups[:, 1]
    else:
        blocks = _weight_blocks(g, patch, stage, places)
        pixels = groups[:, 0] * patch.line_rows + groups[:, 1]
    if s.dataflow == OUTPUT_STATIONARY:
        most = g.most_chained if stage.is_first and stage.is_last else MOST_CHAINED
        products = _chains(g, s, stage, sums, blocks.by_output(), pixels, groups[:, 2], most)
    else:
        if not stage.is_residual and s.walk != ALL_CHANNELS_FIRST:
            blocks = blocks.by_output()
        products = _by_weights(sums, blocks, pixels, groups[:, 2])
    return products.reshape(-1, 2, 3).astype(np.uint64)


def _by_weights(
    places: NDArray[np.int64], blocks: _Blocks, pixels: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return multiplications in an order in which each block of weights is loaded only once.

    A block of weights is multiplied by all groups of pixels before the next block is loaded.

    Args:
        places: accumulator row of each output block and group of pixels, shape (output blocks,
            groups).
        blocks: the blocks of weights, in the order of their use.
        pixels: row offset of each group's data in the scratchpad, shape (groups,).
        rows: number of pixels of each group, shape (groups,).

    Returns:
        Commands of shape (blocks, groups, 2, 3): a PRELOAD and a COMPUTE per block and group.
    """
    number = np.arange(len(pixels))[None, :]
    _, data, weights, k_columns, n_columns, begins = (column[:, None] for column in blocks)
    sums = places[blocks.n] | ACCUMULATOR | np.where(begins == 1, 0, ACCUMULATES)
    fresh = number == 0
    commands = np.empty((len(blocks.n), len(pixels), 2, 3), np.int64)
    commands[..., 0, 0] = PRELOAD
    commands[..., 0, 1] = operand(np.where(fresh, weights, GARBAGE), n_columns, k_columns)
    commands[..., 0, 2] = operand(sums, n_columns, rows)
    commands[..., 1, 0] = np.where(fresh, COMPUTE_PRELOADED, COMPUTE_ACCUMULATED)
    commands[..., 1, 1] = operand(data + pixels, k_columns, rows)
    commands[..., 1, 2] = operand(GARBAGE, DIM, DIM)
    return commands


def _chains(
    g: BlockGeometry, s: TileSchedule, stage: TileStage, places: NDArray[np.int64], blocks: _Blocks,
    pixels: NDArray[np.int64], rows: NDArray[np.int64], most: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Return multiplications in chains of blocks, which the array adds up before it writes results.

    Args:
        g: geometry of the workload.
        s: the schedule.
        stage: the part of a tile's multiplications to return.
        places: accumulator row of each output block and group of pixels, shape (output blocks,
            groups).
        blocks: the blocks of weights, sorted by output block.
        pixels: row offset of each group's data in the scratchpad, shape (groups,).
        rows: number of pixels of each group, shape (groups,).
        most: maximum number of products per chain.

    Returns:
        Commands of shape (output blocks, groups, blocks per output block, 2, 3). The first two axes
        are swapped if the schedule's `walk` is `ALL_CHANNELS_FIRST`.
    """
    n_blocks = stage.tile.n_blocks
    parts = _Blocks(*(column.reshape(n_blocks, 1, -1) for column in blocks))
    inputs = [DIM if stage.is_residual else summed_inputs(g, c) for c in parts.k_columns[0, 0]]
    ends = np.array(chain_ends(inputs, most))
    starts = np.roll(ends, 1)
    # The first chain of a stage writes to the same rows as the first block of the stage.
    adds = (np.cumsum(starts) > 1) | (parts.begins[..., :1] == 0)
    sums = places[:, :, None] | ACCUMULATOR | np.where(adds, ACCUMULATES, 0)
    commands = np.empty((n_blocks, len(pixels), len(ends), 2, 3), np.int64)
    commands[..., 0, 0] = PRELOAD
    commands[..., 0, 1] = operand(GARBAGE, DIM, DIM)
    commands[..., 0, 2] = operand(np.where(ends, sums, GARBAGE), parts.n_columns, rows[:, None])
    commands[..., 1, 0] = np.where(starts, COMPUTE_PRELOADED, COMPUTE_ACCUMULATED)
    commands[..., 1, 1] = operand(parts.data + pixels[:, None], parts.k_columns, rows[:, None])
    commands[..., 1, 2] = operand(parts.weights, parts.n_columns, parts.k_columns)
    return np.moveaxis(commands, 0, 1) if s.walk == ALL_CHANNELS_FIRST else commands


def _weight_blocks(g: BlockGeometry, patch: Patch, stage: TileStage, places: Places) -> _Blocks:
    tile, taps = stage.tile, g.kernel_h * g.kernel_w
    n_total, k_total = g.out_channels_of(tile.group), g.in_channels_of(tile.group)
    tap, k, n = (axis.ravel() for axis in np.indices((taps, stage.k_blocks, tile.n_blocks)))
    tap_rows = np.array([_tap_row(g, patch, number) for number in range(taps)])
    return _Blocks(
        n,
        places.data + k * patch.plane_rows + tap_rows[tap],
        places.weights + np.arange(len(tap)) * DIM,
        _columns(k_total, stage.k + k),
        _columns(n_total, tile.n + n),
        ((tap == 0) & (k == 0) & (stage.is_first and not g.epilogue.loads_sums)).astype(np.int64),
    )


def _residual_blocks(
    g: BlockGeometry, s: TileSchedule, stage: TileStage, places: Places
) -> _Blocks:
    """Return the blocks of weights that add a residual to the accumulators.

    The weights are scaled identity matrices. Each block of the residual is multiplied by all of
    them.

    Args:
        g: geometry of the workload.
        s: the schedule.
        stage: the part of a tile's multiplications that adds the residual.
        places: start rows of the residual, the identity matrices and the accumulators.
    """
    tile, count = stage.tile, len(g.identities)
    n, which = (axis.ravel() for axis in np.indices((tile.n_blocks, count)))
    columns = _columns(g.out_channels_of(tile.group), tile.n + n)
    data, weights = places.data + n * s.tile_h * s.tile_w, places.weights + which * DIM
    return _Blocks(n, data, weights, columns, columns, np.zeros_like(n))


def _columns(total: int, block: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of channels of each block of 16; the last block may be incomplete.

    Args:
        total: number of channels of all blocks.
        block: index of each block, int64 array of any shape.
    """
    return np.minimum(DIM, total - block * DIM)


def _tap_row(g: BlockGeometry, patch: Patch, tap: int) -> int:
    """Return the scratchpad row that a kernel position reads for the first output of a tile.

    Args:
        g: geometry of the workload.
        patch: layout of the input pixels in the scratchpad.
        tap: index of the kernel position, row by row.

    Returns:
        Row relative to the first row of the block of channels.
    """
    row_phase, row = patch.rows.place(tap // g.kernel_w)
    column_phase, column = patch.columns.place(tap % g.kernel_w)
    return patch.pixel_row(row_phase, row, column_phase, column)


def nest_program(g: BlockGeometry, m: GemminiMachine, s: TileSchedule) -> CommandTable:
    """Compile a schedule to single load, multiplication and store commands, for any workload.

    Args:
        g: geometry of the workload.
        m: the machine.
        s: the schedule.

    Returns:
        Commands, shape (n, 3).

    Raises:
        LoweringFailure: a tile does not fit the local memories, or the program would be too long.
    """
    check_tiles(g, m, s)
    return _Nest(g, m, s, Patch.for_schedule(g, s)).program()


@dataclass
class _Buffer:
    """Ring of equal buffers in a local memory, which hold successive contents of one operand.

    Attributes:
        base: first row of the first buffer.
        rows: number of rows per buffer.
        count: number of buffers.
        number: index of the current buffer.
        holds: description of the current buffer's content; None if the buffer is empty.
    """

    base: int
    rows: int
    count: int
    number: int = 0
    holds: object = None

    @property
    def row(self) -> int:
        """First row of the current buffer."""
        return self.base + self.number * self.rows

    def turn(self) -> None:
        """Advance to the next buffer of the ring."""
        self.number = (self.number + 1) % self.count

    def take(self, content: object) -> bool:
        """Select the buffer for some content, and record the content.

        If the current buffer already holds the content, it stays selected. If it is empty, it is
        filled. Otherwise the next buffer of the ring becomes the current one.

        Args:
            content: description of the content.

        Returns:
            Whether the content must be loaded.
        """
        if self.holds == content:
            return False
        if self.holds is not None:
            self.turn()
        self.holds = content
        return True


@dataclass
class _Nest:
    """Builder of a program that consists of single load, multiplication and store commands.

    Attributes:
        g: geometry of the workload.
        m: the machine.
        s: the schedule.
        patch: layout of a tile's input pixels in the scratchpad.
        made: the commands so far, in parts.
        known: multiplications of earlier stages, which are reused for equal stages.
        stored: pooling configuration of the latest store; None if there was none.
    """

    g: BlockGeometry
    m: GemminiMachine
    s: TileSchedule
    patch: Patch
    made: list[CommandTable] = field(default_factory=list)
    known: dict[object, Pairs] = field(default_factory=dict)
    stored: StoredPool | None = None

    def __post_init__(self) -> None:
        s, m = self.s, self.m
        half = m.scratchpad_rows // 2
        self.data = _Buffer(0, half // s.in_buffers, s.in_buffers)
        self.weights = _Buffer(half, half // s.in_buffers, s.in_buffers)
        self.sums = _Buffer(0, buffer_rows(self.g, m, s), s.out_buffers)

    def program(self) -> CommandTable:
        """Return the commands of the whole program, an array of shape (n, 3).

        A stage is the part of a tile's multiplications for a range of input channels. With two
        buffers, operands are loaded one stage ahead and results are stored one stage later, while
        the array multiplies.
        """
        g, s = self.g, self.s
        self._add_commands(
            encode_array_config(s.dataflow), encode_store_config(g.output_stride, g.epilogue),
            self._data_stride(),
            encode_load_config(1, g.weight_stride, DIM), encode_load_config(2, 0, DIM),
        )  # fmt: skip
        every = stages(g, s)
        self._add_commands(*self._load_initial_sums(every[0].tile))
        loads, places = self._load_operands(every[0])
        self._add_commands(*loads)
        stores: list[Command] = []
        for stage, following in zip_longest(every, every[1:]):
            pairs = self._products(stage, places)
            beside, after = stores, list[Command]()
            stores, loads = [], []
            if stage.is_last:
                stores = self._stores(stage.tile, places.sums)
                begun: list[Command] = []
                if following is not None:
                    self.sums.turn()
                    begun = self._load_initial_sums(following.tile)
                if s.out_buffers > 1:
                    beside = beside + begun
                else:
                    after, stores = stores + begun, []
            if following is not None:
                loads, places = self._load_operands(following)
            if s.in_buffers > 1:
                self._multiply(pairs, beside, loads)
                self._add_commands(*after)
            else:
                self._multiply(pairs, beside)
                self._add_commands(*after, *loads)
        self._add_commands(*stores)
        return np.concatenate(self.made)

    def _add_commands(self, *given: Command) -> None:
        self.made.append(commands(given))

    def _multiply(self, pairs: Pairs, *beside: Sequence[Command]) -> None:
        """Append multiplications to the program, together with pending load and store commands.

        If the schedule's form is `SPREAD`, loads and stores are evenly distributed between the
        multiplications. Otherwise they precede the multiplications.

        Args:
            pairs: commands of the multiplications, shape (multiplications, 2, 3).
            *beside: sequences of load and store commands.
        """
        if self.s.form != SPREAD:
            self.made += [commands(commands_beside) for commands_beside in beside]
            self.made.append(pairs.reshape(-1, 3))
            return
        places = [np.repeat(np.arange(len(pairs)) + 1.0, 2)]
        for commands_beside in beside:
            places.append(
                (np.arange(len(commands_beside)) + 0.5) * len(pairs) / max(len(commands_beside), 1)
            )
        every = np.concatenate([pairs.reshape(-1, 3), *map(commands, beside)])
        self.made.append(every[np.argsort(np.concatenate(places), kind="stable")])

    def _load_operands(self, stage: TileStage) -> tuple[list[Command], Places]:
        """Return the commands that load a stage's operands, and the start rows of the operands.

        Operands that are already in the scratchpad are not loaded again.

        Args:
            stage: the part of a tile's multiplications.
        """
        g, tile, loads = self.g, stage.tile, list[Command]()
        where = (tile.group, tile.image, tile.out_y, tile.out_x)
        part = ("residual", tile.n) if stage.is_residual else ("data", stage.k)
        if self.data.take((where, part)):
            if stage.is_residual:
                plane = self.s.tile_h * self.s.tile_w
                loads.append(encode_load_config(0, g.residual_stride, plane))
                loads += load_residual(g, self.s, tile, self.data.row)
                loads.append(self._data_stride())
            else:
                loads += load_patch(g, self.patch, stage, self.data.row)
        content = "identity" if stage.is_residual else (tile.group, tile.n, stage.k)
        if self.weights.take(content):
            if stage.is_residual:
                loads += load_identities(g, self.weights.row)
            else:
                loads += load_weights(g, stage, self.weights.row)
        return loads, Places(self.data.row, self.weights.row, self.sums.row)

    def _load_initial_sums(self, tile: Tile) -> list[Command]:
        """Return the commands that load a tile's biases into its accumulators; none without biases.

        Args:
            tile: the tile.
        """
        g = self.g
        if not g.epilogue.loads_sums:
            return []
        total, loads = g.out_channels_of(tile.group), list[Command]()
        groups, places = pixel_groups(tile), sum_rows(g, tile).tolist()
        for block in range(tile.n_blocks):
            columns = channels_in(total, tile.n + block)
            channel = tile.group * g.weight_stride + (tile.n + block) * DIM
            address = g.addresses["bias"] + 4 * channel
            for (_, _, rows), own in zip(groups, places, strict=True):
                row = self.sums.row + own[block]
                loads.append((MVIN3, address, operand(row | ACCUMULATOR, columns, rows)))
        return loads

    def _stores(self, tile: Tile, sums: int) -> list[Command]:
        """Return the MVOUT commands that store the results of a tile.

        Args:
            tile: the tile.
            sums: first accumulator row of the tile.
        """
        g, stores = self.g, list[Command]()
        total = g.out_channels_of(tile.group)
        if g.pool is not None:
            return self._pooled_stores(tile, g.pool, sums)
        places = sum_rows(g, tile).tolist()
        for (y, x, rows), own in zip(pixel_groups(tile), places, strict=True):
            pixel = g.addresses["output"] + output_pixel(g, tile, y, x) * g.output_stride
            for block in range(0, tile.n_blocks, self.s.store_blocks):
                count = min(self.s.store_blocks, tile.n_blocks - block)
                columns = channels_in(total, tile.n + block, count)
                address = pixel + tile.group * g.out_channels + (tile.n + block) * DIM
                row = sums + own[block]
                stores.append((MVOUT, address, operand(row | ACCUMULATOR, columns, rows)))
        return stores

    def _pooled_stores(self, tile: Tile, pool: Pool, sums: int) -> list[Command]:
        """Return the commands that apply a max-pool to a tile's accumulators and store the results.

        There is one MVOUT command per block of channels. If the pooling configuration differs from
        that of the previous tile, a CONFIG command comes first, and `self.stored` is updated.

        Args:
            tile: the tile.
            pool: the pool of the workload.
            sums: first accumulator row of the tile.
        """
        g, stores = self.g, list[Command]()
        total = g.out_channels_of(tile.group)
        how = StoredPool(
            pool.kernel_h, pool.stride_h, tile.y - (tile.out_y * pool.stride_h - pool.pad_top),
            tile.x - (tile.out_x * pool.stride_w - pool.pad_left), g.out_width,
            tile.out_height, tile.out_width, tile.height, tile.width,
        )  # fmt: skip
        if how != self.stored:
            self.stored = how
            stores.append(encode_store_config(g.output_stride, g.epilogue, how))
        pixel = (tile.image * g.out_height + tile.out_y) * g.out_width + tile.out_x
        address = g.addresses["output"] + pixel * g.output_stride + tile.group * g.out_channels
        for block, row in enumerate(sum_rows(g, tile)[0].tolist()):
            columns = channels_in(total, tile.n + block)
            place = operand((sums + row) | ACCUMULATOR, columns, 1)
            stores.append((MVOUT, address + (tile.n + block) * DIM, place))
        return stores

    def _products(self, stage: TileStage, places: Places) -> Pairs:
        """Return the multiplications of a stage, from the cache if an equal stage came before.

        Args:
            stage: the part of a tile's multiplications.
            places: start rows of the stage's operands and accumulators.
        """
        tile, g = stage.tile, self.g
        at_end = (
            g.out_channels_of(tile.group) - tile.n * DIM < tile.n_blocks * DIM,
            g.in_channels_of(tile.group) - stage.k * DIM < stage.k_blocks * DIM,
        )
        key = (
            tile.height, tile.width, tile.n_blocks, stage[2:], places, at_end,
            g.out_channels_of(tile.group) - tile.n * DIM if at_end[0] else 0,
        )  # fmt: skip
        if key not in self.known:
            self.known[key] = stage_products(g, self.s, self.patch, stage, places)
        return self.known[key]

    def _data_stride(self) -> Command:
        g = self.g
        return encode_load_config(0, g.stride_w * g.data_stride, self.patch.plane_rows)
