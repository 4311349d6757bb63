"""Finds shuffles of channels, and writes them on blocks of channels.

A shuffle (Zhang et al., ShuffleNet, arXiv 1707.01083) is a change of shape, of axes, and of shape
again: (n, g * k, h, w) → (n, g, k, h, w) → (n, k, g, h, w) → (n, g * k, h, w). TVM unpacks an image
for it and packs it again. Here each block of channels is put together from those that have them,
vector by vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilewright.networks.compiled.moved_axes import moved_image
from tilewright.networks.relax.bindings import Binding, FlatGraph

_AXES = (0, 2, 1, 3, 4)
WORTH_THREADS = 1 << 14
"""Numbers of an image whose copy takes longer than waking threads."""


@dataclass(frozen=True, eq=False)
class ChannelShuffle:
    """Of the image `source` of `shape` (n, c, h, w), whose channels lie in `groups`."""

    source: Any
    shape: tuple[int, ...]
    groups: int

    @property
    def channels(self) -> NDArray[np.int64]:
        """The channel of the source that each of the result is, (c,)."""
        return np.arange(self.shape[1], dtype=np.int64).reshape(self.groups, -1).T.ravel()


def channel_shuffles(flat: FlatGraph) -> dict[Any, ChannelShuffle]:
    """All in a network, by the variable of the result, (n, c, h, w)."""
    found = {}
    for binding in flat.bindings:
        if (made := _of(flat, binding)) is not None:
            found[binding.var] = made
    return found


def _of(flat: FlatGraph, binding: Binding) -> ChannelShuffle | None:
    moved = moved_image(flat, binding)
    if moved is None or moved.axes != _AXES:
        return None
    shape, apart = moved.source.shape or (), moved.split.shape or ()
    if binding.shape != shape or apart[3:] != shape[2:]:
        return None
    return ChannelShuffle(moved.source.var, shape, apart[1])


def shuffle_function(found: ChannelShuffle, block: int) -> Any:
    """A function of TensorIR of an image and the result, (n, c / block, h, w, block), float32."""
    n, channels, height, width = found.shape
    shape = n, channels // block, height, width, block
    sources = found.channels.reshape(-1, block)
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
    images: tuple[Any, Any], at: tuple[Any, int], pixel: tuple[Any, Any], places: NDArray[np.int64]
) -> None:
    """Writes block `at` (image, block) of a pixel, whose channels are these of the source."""
    (image, result), block = images, len(places)
    channels = tirx.Ramp(0, 1, block)
    needed, vector = np.unique(places // block, return_inverse=True)
    loaded = [tirx.BufferLoad(image, [at[0], int(each), *pixel, channels]) for each in needed]
    chosen = tirx.Shuffle(loaded, [int(i) for i in vector * block + places % block])
    T.buffer_store(result, chosen, [*at, *pixel, channels])
