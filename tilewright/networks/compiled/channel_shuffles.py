"""Finds shuffles of channels, and writes them on blocks of channels.

A shuffle (Zhang et al., ShuffleNet, arXiv 1707.01083) is a change of shape, of axes, and of shape
again: (n, g * k, h, w) → (n, g, k, h, w) → (n, k, g, h, w) → (n, g * k, h, w). TVM unpacks an image
for it and packs it again. Here each block gathers its channels, by a table of their places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from tilewright.networks.compiled.moved_axes import moved_image
from tilewright.networks.relax.bindings import Binding, FlatGraph

_AXES = (0, 2, 1, 3, 4)


@dataclass(frozen=True, eq=False)
class ChannelShuffle:
    """Of the image `source` of `shape` (n, c, h, w), whose channels lie in `groups`."""

    source: Any
    shape: tuple[int, ...]
    groups: int

    def places(self, block: int) -> NDArray[np.int32]:
        """Where the channels of the result are read in an image of the source, a pixel's in blocks:
        (c / block, block), in numbers."""
        _, channels, height, width = self.shape
        made = np.arange(channels).reshape(self.groups, -1).T.ravel()
        return (
            (made // block * height * width * block + made % block)
            .astype(np.int32)
            .reshape(-1, block)
        )


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


def shuffled(rows: Any, places: Any, size: tuple[int, int]) -> Any:
    """The result (n, c / block, h, w, block) of images (n, c * h * w) in blocks; `places` are those
    of `ChannelShuffle.places`, `size` is (h, w)."""
    blocks, block = map(int, places.shape)

    def value(n: Any, c: Any, y: Any, x: Any, i: Any) -> Any:
        return rows[n, places[c, i] + (y * size[1] + x) * block]

    return te.compute((int(rows.shape[0]), blocks, *size, block), value, name="shuffled")
