"""Finds channels that become pixels beside each other, and writes them on blocks of channels.

What `networks.onnx_transposed` writes, and a depth-to-space of the same order, is a change of
shape, of axes, and of shape again: (n, sy * sx * o, h, w) → (n, sy, sx, o, h, w) → (n, o, h, sy, w,
sx) → (n, o, h * sy, w * sx). Blocks of the o channels stay whole, so only their places change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of

RESHAPE, PERMUTE = "relax.reshape", "relax.permute_dims"
_AXES = [0, 3, 4, 1, 5, 2]


@dataclass(frozen=True, eq=False)
class PixelsBeside:
    """`rows` × `columns` pixels of `channels` each that come from one pixel of `source`; `inside`
    are the operators before the one that gives them, `first` reads the source."""

    source: Any
    first: Any
    inside: tuple[Any, ...]
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
    chain = [binding]
    for operator in (RESHAPE, PERMUTE, RESHAPE):
        last = chain[-1]
        if last.op != operator or not isinstance(last.args[0], relax.Var):
            return None
        before = flat.by_var.get(last.args[0])
        if before is None:
            return None
        chain.append(before)
    _, permute, split, source = chain
    alone = all(len(flat.users.get(each.var, [])) == 1 for each in (permute, split))
    shapes = [each.shape or () for each in (source, split, binding)]
    if not alone or tuple(map(len, shapes)) != (4, 6, 4):
        return None
    axes = permute.value.attrs.axes
    (n, _, h, w), (batch, rows, columns, channels, *size), after = shapes
    fits = (batch, *size) == (n, h, w) and after == (n, channels, h * rows, w * columns)
    if axes is None or list(map(int, axes)) != _AXES or not fits:
        return None
    inside = split.var, permute.var
    return PixelsBeside(source.var, split.var, inside, rows, columns, channels)


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
