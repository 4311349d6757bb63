"""Geometry of a workload in blocks of 16 × 16: sizes, channel groups, addresses and chains.

Activations are stored pixel by pixel (NHWC). Weights are stored in the order (group, kernel row,
kernel column, input channel, output channel). Pixels and rows of weights begin at addresses where a
memory request can begin. The distance between them is therefore 16 or 32 bytes, or a multiple of
64.

Sums are the results of the convolution or matrix product in the accumulator, before the epilogue. A
workload with a fused max-pool has more sums than outputs.

In the output-stationary dataflow, the array adds up the products of several blocks before it writes
the sums to the accumulator. The products that are added up in this way form a chain.
`epilogue.StoreEpilogue.most_chained` limits the length of a chain.
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

# Main memory of the simulated system is 0x80000000 to 0x8fffffff. The RTL serves no other
# addresses.
MEMORY_BASE = 0x80000000
MEMORY_BYTES = 1 << 28
"""Size in bytes of the machine's main memory, which begins at the address `MEMORY_BASE`."""
PAGE_BYTES = 4096
# Largest value of an int8 weight.
MOST_WEIGHT = 127
ROLES = ("data", "weight", "bias", "residual", "identity", "output")


def round_up(size: int, block: int = DIM) -> int:
    """Round a size up to the next multiple of a block.

    Args:
        size: the size.
        block: size of a block.
    """
    return -(-size // block) * block


def blocks(size: int) -> int:
    """Return the number of blocks of 16 that hold `size` elements.

    Args:
        size: number of elements.
    """
    return -(-size // DIM)


def aligned_row(size: int) -> int:
    """Return the distance between rows at which every row can begin with a memory request.

    A memory request has 16, 32 or 64 bytes and begins at a multiple of its size.

    Args:
        size: size of a row in bytes.

    Returns:
        The distance in bytes.
    """
    least = round_up(size)
    return least if least <= MAX_REQUEST_BYTES // 2 else round_up(size, MAX_REQUEST_BYTES)


@dataclass(frozen=True)
class BlockGeometry:
    """Sizes and memory layout of a workload, in elements and bytes.

    Adjacent channel groups that share a block of 16 channels are merged into one group.

    Attributes:
        flat: whether the workload is a matrix product, or a convolution of single pixels. Its image
            then has height 1, and the pixels are the rows of the matrix.
        images: number of images.
        height: height of the input.
        width: width of the input.
        out_height: height of the output.
        out_width: width of the output.
        kernel_h: height of the kernel.
        kernel_w: width of the kernel.
        stride_h: vertical stride.
        stride_w: horizontal stride.
        dilation_h: vertical dilation.
        dilation_w: horizontal dilation.
        pad_top: number of padding rows above the image.
        pad_left: number of padding columns to the left of the image.
        groups: number of groups after merging.
        merged: number of the workload's groups in each merged group.
        in_channels: input channels per merged group. The last group may have fewer, see
            `in_channels_of`.
        out_channels: output channels per merged group. The last group may have fewer.
        all_in_channels: input channels of all groups.
        all_out_channels: output channels of all groups.
        epilogue: epilogue of the stores.
        data_stride: bytes from one input pixel to the next.
        residual_stride: bytes from one residual pixel to the next.
        output_stride: bytes from one output pixel to the next.
        weight_stride: bytes from one row of weights to the next. A row has the weights of one
            kernel position and one input channel.
        addresses: address of each tensor, by role.
        most_chained: maximum number of products that the array may sum in one chain.
        pool: max-pool of the sums; None without a pool.
        sums_height: height of the sums before the pool; equal to `out_height` without a pool.
        sums_width: width of the sums before the pool; equal to `out_width` without a pool.
    """

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
    merged: int  # number of the workload's groups in one merged group
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
    def for_workload(
        cls, workload: Workload, row_bytes: Callable[[int], int] = aligned_row
    ) -> BlockGeometry:
        """Compute the geometry of a workload whose tensors are stored one after the other.

        The first tensor is at `MEMORY_BASE`.

        Args:
            workload: the workload.
            row_bytes: function that maps the number of channels of a row to the distance between
                rows in bytes.

        Raises:
            WorkloadError: the accelerator cannot compute the workload.
        """
        w = workload
        if (
            w.dtype != "int8"
            or w.operator not in ("conv2d", "dense")
            or w.patterns not in ((), (w.pool,))
        ):
            raise WorkloadError(
                "Gemmini computes conv2d and dense in int8, optionally with a max-pool of "
                f"the sums, but not {w} ({w.dtype}); run it on the CPU, or choose another "
                "target"
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
        geometry = cls(
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
        return replace(geometry, addresses=geometry.in_order(MEMORY_BASE))

    def in_channels_of(self, group: int) -> int:
        """Return the number of input channels of a merged group; the last group may have fewer.

        Args:
            group: index of the group.
        """
        return min(self.in_channels, self.all_in_channels - group * self.in_channels)

    def out_channels_of(self, group: int) -> int:
        """Return the number of output channels of a merged group; the last group may have fewer.

        Args:
            group: index of the group.
        """
        return min(self.out_channels, self.all_out_channels - group * self.out_channels)

    @property
    def has_loops(self) -> bool:
        """True if LOOP_WS, the hardware loop over a matrix product, can compute the workload.

        It can compute matrix products and convolutions of single pixels, without a residual.
        """
        return self.flat and not self.epilogue.residual

    @property
    def tap_bytes(self) -> int:
        """Size in bytes of the weights of one kernel position of one channel group."""
        return round_up(self.in_channels) * self.weight_stride

    @property
    def identities(self) -> list[int]:
        """Factors of the identity matrices by which a residual is multiplied.

        The residual is added to the accumulators by multiplying it by these matrices. An int8
        weight is at most 127, so that a larger factor of the residual is the sum of several
        factors. The list is empty without a residual.
        """
        left, factors = self.epilogue.residual, []
        while left > 0:
            factors.append(min(left, MOST_WEIGHT))
            left -= factors[-1]
        return factors

    @property
    def pixels(self) -> int:
        """Number of output pixels in all images."""
        return self.images * self.out_height * self.out_width

    def sums_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the largest number of convolution rows and columns that an output tile needs.

        The convolution's results are the input of the fused pool, if there is one. Without a pool,
        the result is the size of the tile itself.

        Args:
            height: output rows of the tile.
            width: output columns of the tile.
        """
        if self.pool is None:
            return height, width
        rows = sums_covered(height, self.pool.stride_h, self.pool.kernel_h)
        columns = sums_covered(width, self.pool.stride_w, self.pool.kernel_w)
        return min(rows, self.sums_height), min(columns, self.sums_width)

    @property
    def least_sums(self) -> tuple[int, int]:
        """Minimum number of rows and of columns of convolution results that are computed per image.

        With a fused max-pool, results that lie only in the gaps between pooling windows are not
        needed.
        """
        rows, columns = self.sums_of(self.out_height, self.out_width)
        if self.pool is None:
            return rows, columns
        p = self.pool
        return (
            max(1, min(rows, self.out_height * p.kernel_h) - p.pad_top - p.pad_bottom),
            max(1, min(columns, self.out_width * p.kernel_w) - p.pad_left - p.pad_right),
        )

    def sizes(self) -> dict[str, int]:
        """Return the size of each tensor in bytes, by role: `data`, `weight`, `output`, `bias`, ….

        `bias`, `residual` and `identity` are absent if the epilogue does not need them.
        """
        tensor_bytes = {
            "data": self.images * self.height * self.width * self.data_stride,
            "weight": self.groups * self.kernel_h * self.kernel_w * self.tap_bytes,
            "output": self.pixels * self.output_stride,
        }
        if self.epilogue.loads_sums:
            tensor_bytes["bias"] = 4 * self.groups * self.weight_stride
        if self.epilogue.residual:
            tensor_bytes["residual"] = self.pixels * self.residual_stride
            tensor_bytes["identity"] = len(self.identities) * DIM * self.weight_stride
        return tensor_bytes

    def in_order(self, base: int) -> dict[str, int]:
        """Return addresses that place the tensors one after the other, each on its own page.

        Args:
            base: address of the first tensor.

        Returns:
            Address of each tensor, by role.

        Raises:
            WorkloadError: the tensors exceed the memory.
        """
        addresses, at = {}, base
        for role, size in self.sizes().items():
            addresses[role] = at
            at += round_up(size, PAGE_BYTES)
        if at > MEMORY_BASE + MEMORY_BYTES:
            raise WorkloadError(
                f"its tensors take {at - base >> 20} MiB, but the memory of the machine has "
                f"{MEMORY_BYTES >> 20} MiB; split the workload, or run it on the CPU"
            )
        return addresses


def _groups_together(w: Workload) -> int:
    """Return the number of adjacent channel groups that are merged into one group.

    It is the smallest power of two for which the merged channels fill whole blocks of 16. If there
    is none, all groups are merged.

    Args:
        w: the workload.
    """
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    count = 1
    while count < w.groups and (count * per_in % DIM or count * per_out % DIM):
        count *= 2
    return min(count, w.groups)


def summed_inputs(g: BlockGeometry, columns: int) -> int:
    """Return the number of input channels of a block that contribute to one output channel.

    If several channel groups share a block, only the channels of one group contribute, because the
    weights of the other groups are zero.

    Args:
        g: geometry of the workload.
        columns: number of input channels of the block.
    """
    return min(columns, g.in_channels // g.merged)


def chain_ends(inputs: Sequence[int], most: int) -> list[bool]:
    """Divide blocks of products into chains, each of which the array adds up before writing.

    Each chain is as long as possible.

    Args:
        inputs: number of products that each block adds to an output, in block order.
        most: maximum number of products per chain.

    Returns:
        For each block, whether it is the last block of a chain.
    """
    ends, total = [False] * len(inputs), 0
    for place, count in enumerate(inputs):
        if place and total + count > most:
            ends[place - 1], total = True, 0
        total += count
    return [*ends[:-1], True]


def has_chains(g: BlockGeometry) -> bool:
    """Return whether the array can add up the products of several blocks before it writes a result.

    Such a chain of blocks saves additions in the accumulator. The scale of the epilogue is ignored:
    workloads that differ only in the scale share their schedules (`targets.workload.canonical`), so
    they need the same schedule space. If a small scale forbids chains, each block of an
    output-stationary program is a chain of its own.

    Args:
        g: geometry of the workload.
    """
    inputs = list(_inputs(g))
    adds = g.epilogue.loads_sums or g.epilogue.residual
    most = MOST_CHAINED if adds else ALL_CHAINED
    return sum(chain_ends(inputs, most)) < len(inputs)


def _inputs(g: BlockGeometry) -> Iterator[int]:
    """Yield the number of products that each block of input channels adds to an output.

    The order is: kernel positions, then blocks of input channels.

    Args:
        g: geometry of the workload.
    """
    for _ in range(g.kernel_h * g.kernel_w):
        for block in range(blocks(g.in_channels)):
            yield summed_inputs(g, min(DIM, g.in_channels - block * DIM))
