"""A workload as products of blocks: sizes, groups of channels, addresses, chains of products.

Activations lie in memory pixel by pixel (NHWC), weights as (group, kernel row, kernel column, input
channel, output channel). A pixel and a row of weights begin where a request for memory can. Such
rows are 16 or 32 bytes apart, or a multiple of 64.

In its output-stationary data flow, the array keeps the sums of a chain of products. How long a
chain may be says `epilogue.StoreEpilogue.most_chained`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.core.errors import WorkloadError
from tilewright.targets.gemmini.lowering.epilogue import (
    ALL_CHAINED,
    MOST_CHAINED,
    StoreEpilogue,
    check_pool,
    store_epilogue,
    sums_covered,
)
from tilewright.targets.gemmini.spec import DIM, MAX_REQUEST_BYTES
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.workload import Workload

MEMORY_BASE = 0x80000000
MEMORY_BYTES = 1 << 28
"""What the machine's main memory has, from `MEMORY_BASE` on."""
PAGE_BYTES = 4096
MOST_WEIGHT = 127
ROLES = ("data", "weight", "bias", "residual", "identity", "output")


def round_up(size: int, block: int = DIM) -> int:
    """Return the next multiple of a block."""
    return -(-size // block) * block


def blocks(size: int) -> int:
    """Return how many blocks of 16 hold `size` elements."""
    return -(-size // DIM)


def aligned_row(size: int) -> int:
    """Return the bytes from one row of `size` bytes to the next, so that each row begins where a
    request can: a request has 16, 32 or 64 bytes, at a multiple of its size."""
    least = round_up(size)
    return least if least <= MAX_REQUEST_BYTES // 2 else round_up(size, MAX_REQUEST_BYTES)


@dataclass(frozen=True)
class BlockGeometry:
    """Sizes in elements. A matrix product, and a convolution of single pixels, is `flat`: an image
    of height 1 whose pixels are the rows of the matrix. Groups that share blocks are one of
    `groups`; each has `in_channels` and `out_channels`, the last may have fewer
    (`in_channels_of`). Strides are bytes from a pixel to the next, and of weights from those of one
    input channel and tap to the next. `most_chained` are products that the array may sum itself.
    Of `sums_height` × `sums_width` sums a `pool` leaves the output; else they are as many."""

    flat: bool
    images: int
    height: int
    width: int
    out_height: int
    out_width: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_top: int
    pad_left: int
    groups: int
    merged: int  # of the workload's groups in one of these
    in_channels: int
    out_channels: int
    all_in_channels: int
    all_out_channels: int
    epilogue: StoreEpilogue
    data_stride: int
    residual_stride: int
    output_stride: int
    weight_stride: int
    addresses: Mapping[str, int]
    most_chained: int
    pool: Pool | None
    sums_height: int
    sums_width: int

    @classmethod
    def of(cls, workload: Workload, row_bytes: Callable[[int], int] = aligned_row) -> BlockGeometry:
        """On tensors one after another from `MEMORY_BASE` on, whose rows of channels are so many
        bytes apart. Raises `WorkloadError` for what the array does not compute."""
        w = workload
        if (
            w.dtype != "int8"
            or w.operator not in ("conv2d", "dense")
            or w.patterns not in ((), (w.pool,))
        ):
            raise WorkloadError(
                f"Gemmini computes conv2d and dense in int8, perhaps with a max-pool of the sums, "
                f"not {w} ({w.dtype}); leave it to the CPU, or name another target"
            )
        flat = (w.kernel_h, w.kernel_w, w.stride_h, w.stride_w) == (1, 1, 1, 1) and not max(
            w.pad_top, w.pad_left, w.pad_bottom, w.pad_right
        )
        epilogue = store_epilogue(w)
        if w.pool is not None:
            check_pool(w, w.pool, epilogue)
            flat = False
        merged = _groups_together(w)
        groups = -(-w.groups // merged)
        pixels = w.batch * w.height * w.width
        made = cls(
            flat,
            1 if flat else w.batch,
            1 if flat else w.height,
            pixels if flat else w.width,
            1 if flat else w.out_height,
            pixels if flat else w.out_width,
            w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.dilation_h, w.dilation_w,
            w.pad_top, w.pad_left, groups, merged,
            w.in_channels // w.groups * merged,
            w.out_channels // w.groups * merged,
            w.in_channels,
            w.out_channels,
            epilogue,
            row_bytes(w.in_channels),
            row_bytes(w.out_channels),
            row_bytes(w.out_channels),
            row_bytes(w.out_channels // w.groups * merged),
            {},
            epilogue.most_chained,
            w.pool,
            1 if flat else w.sums_height,
            pixels if flat else w.sums_width,
        )  # fmt: skip
        return replace(made, addresses=made.in_order(MEMORY_BASE))

    def in_channels_of(self, group: int) -> int:
        """Return the input channels that a group really has."""
        return min(self.in_channels, self.all_in_channels - group * self.in_channels)

    def out_channels_of(self, group: int) -> int:
        """Return the output channels that a group really has."""
        return min(self.out_channels, self.all_out_channels - group * self.out_channels)

    @property
    def has_loops(self) -> bool:
        """Whether the accelerator's own loop computes the workload."""
        return self.flat and not self.epilogue.residual

    @property
    def tap_bytes(self) -> int:
        """Bytes of the weights of one tap of one group."""
        return round_up(self.in_channels) * self.weight_stride

    @property
    def identities(self) -> list[int]:
        """Weights that multiply a residual; their sum is its factor."""
        left, found = self.epilogue.residual, []
        while left > 0:
            found.append(min(left, MOST_WEIGHT))
            left -= found[-1]
        return found

    @property
    def pixels(self) -> int:
        """Pixels of the output, in all images."""
        return self.images * self.out_height * self.out_width

    def sums_of(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the sums under a tile of the output, at most."""
        if self.pool is None:
            return height, width
        rows = sums_covered(height, self.pool.stride_h, self.pool.kernel_h)
        columns = sums_covered(width, self.pool.stride_w, self.pool.kernel_w)
        return min(rows, self.sums_height), min(columns, self.sums_width)

    @property
    def least_sums(self) -> tuple[int, int]:
        """Rows and columns of sums of an image that its output needs at least."""
        rows, columns = self.sums_of(self.out_height, self.out_width)
        if self.pool is None:
            return rows, columns
        p = self.pool
        return (
            max(1, min(rows, self.out_height * p.kernel_h) - p.pad_top - p.pad_bottom),
            max(1, min(columns, self.out_width * p.kernel_w) - p.pad_left - p.pad_right),
        )

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each tensor, by role."""
        found = {
            "data": self.images * self.height * self.width * self.data_stride,
            "weight": self.groups * self.kernel_h * self.kernel_w * self.tap_bytes,
            "output": self.pixels * self.output_stride,
        }
        if self.epilogue.loads_sums:
            found["bias"] = 4 * self.groups * self.weight_stride
        if self.epilogue.residual:
            found["residual"] = self.pixels * self.residual_stride
            found["identity"] = len(self.identities) * DIM * self.weight_stride
        return found

    def in_order(self, base: int) -> dict[str, int]:
        """Return addresses of the tensors one after another, each on a page of its own. Raises
        `WorkloadError` if they do not fit the memory."""
        found, at = {}, base
        for role, size in self.sizes().items():
            found[role] = at
            at += round_up(size, PAGE_BYTES)
        if at > MEMORY_BASE + MEMORY_BYTES:
            raise WorkloadError(
                f"its tensors take {(at - base) >> 20} MiB, and the machine's memory has "
                f"{MEMORY_BYTES >> 20}; split the workload, or leave it to the CPU"
            )
        return found


def _groups_together(w: Workload) -> int:
    """The fewest neighbouring groups whose channels fill whole blocks, or all of them."""
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    count = 1
    while count < w.groups and (count * per_in % DIM or count * per_out % DIM):
        count *= 2
    return min(count, w.groups)


def summed_inputs(g: BlockGeometry, columns: int) -> int:
    """Return how many of `columns` input channels of a block one output sums. If groups share
    blocks, the weights of the other groups are zeros."""
    return min(columns, g.in_channels // g.merged)


def chain_ends(inputs: Sequence[int], most: int) -> list[bool]:
    """Return whether a chain ends with each block, given the inputs that each block sums: as late
    as `most` allows."""
    ends, total = [False] * len(inputs), 0
    for place, count in enumerate(inputs):
        if place and total + count > most:
            ends[place - 1], total = True, 0
        total += count
    return [*ends[:-1], True]


def has_chains(g: BlockGeometry) -> bool:
    """Return True if there may be chains of several blocks, which save writing sums to the
    accumulator.

    The scale of the epilogue is left out: workloads that differ in it alone share their schedules
    (`targets.workload.canonical`), so they need one space. Where a small scale allows no chains,
    each block of an output-stationary program is a chain of its own.
    """
    inputs = list(_inputs(g))
    adds = g.epilogue.loads_sums or g.epilogue.residual
    most = MOST_CHAINED if adds else ALL_CHAINED
    return sum(chain_ends(inputs, most)) < len(inputs)


def _inputs(g: BlockGeometry) -> Iterator[int]:
    """Of all products that make an output, in their order."""
    for _ in range(g.kernel_h * g.kernel_w):
        for block in range(blocks(g.in_channels)):
            yield summed_inputs(g, min(DIM, g.in_channels - block * DIM))
