"""Find operators that only rearrange channels, and implement them on packed images.

Such a rearrangement is written as a reshape, a permutation of axes and another reshape. TVM would
unpack the image before the rearrangement and pack the result after it. There are two forms:

Channel shuffle (Zhang et al., ShuffleNet, arXiv 1707.01083): (n, g * k, h, w) → (n, g, k, h, w) →
(n, k, g, h, w) → (n, g * k, h, w). Each block of result channels is assembled from vectors of the
blocks that contain its source channels.

Channels to pixels, as `networks.onnx.transposed_convolutions` writes it (a depth-to-space with the
same order of channels is equal): (n, sy * sx * o, h, w) → (n, sy, sx, o, h, w) → (n, o, h, sy, w,
sx) → (n, o, h * sy, w * sx). Blocks of the o channels are moved as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsInt

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilewright.core.tvm_types import Expression, PrimFunc, RelaxExpr, RelaxVar, Tensor, TirBuffer
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of

RESHAPE, PERMUTE = "relax.reshape", "relax.permute_dims"


@dataclass(frozen=True, eq=False)
class MovedImage:
    """A rearrangement of an image: a reshape, a permutation of axes and another reshape.

    Attributes:
        source: operator that writes the source image (n, c, h, w).
        split: the first reshape, which splits the channels into several axes.
        axes: the permutation of the axes after the split.
    """

    source: Binding
    split: Binding
    axes: tuple[int, ...]


def moved_image(flat: FlatGraph, binding: Binding) -> MovedImage | None:
    """Match an image rearrangement that ends with the given operator.

    Args:
        flat: the network.
        binding: the last operator of the candidate.

    Returns:
        The rearrangement, or None if the operator does not end one or if an intermediate result has
        several readers.
    """
    chain = [binding]
    for operator in (RESHAPE, PERMUTE, RESHAPE):
        last = chain[-1]
        if last.op != operator or not isinstance(last.args[0], relax.Var):
            return None
        writer = flat.by_var.get(last.args[0])
        if writer is None:
            return None
        chain.append(writer)
    _, permute, split, source = chain
    axes: Sequence[SupportsInt] | None = permute.value.attrs.axes
    have_one_reader = all(len(flat.users.get(step.var, [])) == 1 for step in (permute, split))
    if not have_one_reader or axes is None or len(source.shape or ()) != 4:
        return None
    return MovedImage(source, split, tuple(map(int, axes)))


# -- shuffles ----------------------------------------------------------------------------------


_SHUFFLED = (0, 2, 1, 3, 4)
WORTH_THREADS = 1 << 14
"""Number of elements of an image from which on copying it takes longer than waking threads. The
value is the same as in `default_schedules`; `python -m benchmarks.cpu.networks --networks
shufflenet --threads 2` measures it."""


@dataclass(frozen=True, eq=False)
class ChannelShuffle:
    """A shuffle of an image's channels.

    Attributes:
        source: variable of the source image.
        shape: shape (n, c, h, w) of the image.
        groups: number of channel groups.
    """

    source: RelaxVar
    shape: tuple[int, ...]
    groups: int

    @property
    def channels(self) -> NDArray[np.int64]:
        """Index of the source channel of each result channel, of shape (c,)."""
        return np.arange(self.shape[1], dtype=np.int64).reshape(self.groups, -1).T.ravel()


def channel_shuffles(flat: FlatGraph) -> dict[RelaxVar, ChannelShuffle]:
    """Find all channel shuffles of a network.

    Args:
        flat: the network.

    Returns:
        The shuffles, by variable of the result (n, c, h, w).
    """
    shuffles = {}
    for binding in flat.bindings:
        if (shuffle := _shuffle_of(flat, binding)) is not None:
            shuffles[binding.var] = shuffle
    return shuffles


def _shuffle_of(flat: FlatGraph, binding: Binding) -> ChannelShuffle | None:
    moved = moved_image(flat, binding)
    if moved is None or moved.axes != _SHUFFLED:
        return None
    shape, apart = moved.source.shape or (), moved.split.shape or ()
    if binding.shape != shape or apart[3:] != shape[2:]:
        return None
    return ChannelShuffle(moved.source.var, shape, apart[1])


def shuffle_function(shuffle: ChannelShuffle, block: int) -> PrimFunc:
    """Build a TensorIR function that shuffles the channels of a packed float32 image.

    Args:
        shuffle: the shuffle.
        block: number of channels per block.

    Returns:
        A function with two parameters, the image and the result, both of shape (n, c / block, h, w,
        block).
    """
    n, channels, height, width = shuffle.shape
    shape = n, channels // block, height, width, block
    sources = shuffle.channels.reshape(-1, block)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        image, result = (T.arg(name, T.buffer(shape, "float32")) for name in ("image", "result"))
        large = n * channels * height * width >= WORTH_THREADS
        lines = (T.parallel if large else T.serial)(0, n * height)
        with T.sblock("root"), lines as line:  # without a block, TVM cannot tell it from a reshape
            for number, places in enumerate(sources):
                with T.serial(0, width) as x:
                    _put_together(
                        (image, result), (tirx.indexdiv(line, height), number),
                        (tirx.indexmod(line, height), x), places,
                    )  # fmt: skip
    return builder.get()


def _put_together(
    images: tuple[TirBuffer, TirBuffer],
    at: tuple[Expression, int],
    pixel: tuple[Expression, Expression],
    places: NDArray[np.int64],
) -> None:
    """Emit the statement that assembles one block of a result pixel from its source channels.

    Args:
        images: buffers of the source image and of the result.
        at: index of the image in the batch, and index of the block in the result.
        pixel: row and column.
        places: index of the source channel of each channel in the block.
    """
    (image, result), block = images, len(places)
    channels = tirx.Ramp(0, 1, block)
    needed, vector = np.unique(places // block, return_inverse=True)
    loaded = [tirx.BufferLoad(image, [at[0], int(channel), *pixel, channels]) for channel in needed]
    chosen = tirx.Shuffle(loaded, [int(i) for i in vector * block + places % block])
    T.buffer_store(result, chosen, [*at, *pixel, channels])


# -- pixels beside each other ------------------------------------------------------------------


_BESIDE = (0, 3, 4, 1, 5, 2)


@dataclass(frozen=True, eq=False)
class PixelsBeside:
    """A rearrangement of channels to pixels, as in depth-to-space.

    Attributes:
        source: variable of the source image.
        first: variable of the rearrangement's first operator, which reads the source image.
        rows: number of result rows per source row.
        columns: number of result columns per source column.
        channels: number of channels of the result.
    """

    source: RelaxVar
    first: RelaxVar
    rows: int
    columns: int
    channels: int


def pixels_beside(flat: FlatGraph) -> dict[RelaxVar, PixelsBeside]:
    """Find all rearrangements of channels to pixels in a network.

    Args:
        flat: the network.

    Returns:
        The rearrangements, by variable of the result (n, o, h * rows, w * columns).
    """
    rearrangements = {}
    for binding in flat.bindings:
        if (rearrangement := _pixels_of(flat, binding)) is not None:
            rearrangements[binding.var] = rearrangement
    return rearrangements


def _pixels_of(flat: FlatGraph, binding: Binding) -> PixelsBeside | None:
    moved = moved_image(flat, binding)
    if moved is None or moved.axes != _BESIDE:
        return None
    (n, _, h, w), apart = moved.source.shape or (), moved.split.shape or ()
    batch, rows, columns, channels, *size = apart
    fits = (batch, *size) == (n, h, w)
    if not fits or binding.shape != (n, channels, h * rows, w * columns):
        return None
    return PixelsBeside(moved.source.var, moved.split.var, rows, columns, channels)


def put_beside(packed: RelaxExpr, beside: PixelsBeside) -> Callable[[Tensor], Tensor]:
    """Return a TE function that rearranges channels of a packed image to pixels.

    The function maps (n, rows * columns * o / block, h, w, block) to (n, o / block, h * rows, w *
    columns, block). The source channels are ordered by row of the pixel, then column, then result
    channel, as in ONNX's DepthToSpace with mode DCR.

    Args:
        packed: the packed source image, from which the sizes are read.
        beside: the rearrangement.
    """
    n, _, height, width, block = shape_of(packed) or ()
    blocks = beside.channels // block

    def computed(image: Tensor) -> Tensor:
        def value(
            n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
        ) -> Expression:
            pixel = tirx.indexmod(y, beside.rows) * beside.columns + tirx.indexmod(
                x, beside.columns
            )
            place = tirx.indexdiv(y, beside.rows), tirx.indexdiv(x, beside.columns)
            return image[(n, pixel * blocks + c, *place, i)]

        shape = n, blocks, height * beside.rows, width * beside.columns, block
        return te.compute(shape, value, name="beside")

    return computed
