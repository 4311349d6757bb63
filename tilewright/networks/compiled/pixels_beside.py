"""Finds channels that become pixels beside each other, and writes them on blocks of channels.

What `networks.onnx.transposed_convolutions` writes, and a depth-to-space of the same order, is a
change of shape, of axes, and of shape again: (n, sy * sx * o, h, w) → (n, sy, sx, o, h, w) → (n, o,
h, sy, w, sx) → (n, o, h * sy, w * sx). Blocks of the o channels stay whole, so only their places
change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tilewright.networks.compiled.moved_axes import moved_image
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of

_AXES = (0, 3, 4, 1, 5, 2)


@dataclass(frozen=True, eq=False)
class PixelsBeside:
    """`rows` × `columns` pixels of `channels` each that come from one pixel of `source`; `first` is
    the variable of the operator that reads it."""

    source: Any
    first: Any
    rows: int
    columns: int
    channels: int


def pixels_beside(flat: FlatGraph) -> dict[Any, PixelsBeside]:
    """All in a network, by the variable of the result, (n, o, h * rows, w * columns)."""
    found = {}
    for binding in flat.bindings:
        if (made := _of(flat, binding)) is not None:
            found[binding.var] = made
    return found


def _of(flat: FlatGraph, binding: Binding) -> PixelsBeside | None:
    moved = moved_image(flat, binding)
    if moved is None or moved.axes != _AXES:
        return None
    (n, _, h, w), apart = moved.source.shape or (), moved.split.shape or ()
    batch, rows, columns, channels, *size = apart
    fits = (batch, *size) == (n, h, w)
    if not fits or binding.shape != (n, channels, h * rows, w * columns):
        return None
    return PixelsBeside(moved.source.var, moved.split.var, rows, columns, channels)


def put_beside(packed: Any, beside: PixelsBeside) -> Any:
    """(n, rows * columns * o / block, h, w, block) → (n, o / block, h * rows, w * columns,
    block)."""
    n, _, height, width, block = shape_of(packed) or ()
    blocks = beside.channels // block

    def computed(image: Any) -> Any:
        def value(n: Any, c: Any, y: Any, x: Any, i: Any) -> Any:
            pixel = tirx.indexmod(y, beside.rows) * beside.columns + tirx.indexmod(
                x, beside.columns
            )
            place = tirx.indexdiv(y, beside.rows), tirx.indexdiv(x, beside.columns)
            return image[(n, pixel * blocks + c, *place, i)]

        shape = n, blocks, height * beside.rows, width * beside.columns, block
        return te.compute(shape, value, name="beside")

    return computed
