"""Finds an image whose shape changes, whose axes are moved, and whose shape changes again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax

from tilewright.networks.relax.bindings import Binding, FlatGraph

RESHAPE, PERMUTE = "relax.reshape", "relax.permute_dims"


@dataclass(frozen=True, eq=False)
class MovedImage:
    """`source` (n, c, h, w) is split to the shape of `split`, whose `axes` then have that order."""

    source: Binding
    split: Binding
    axes: tuple[int, ...]


def moved_image(flat: FlatGraph, binding: Binding) -> MovedImage | None:
    """What an operator gives that way; None for others, and where somebody else reads a form in
    between."""
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
    axes: Any = permute.value.attrs.axes
    alone = all(len(flat.users.get(each.var, [])) == 1 for each in (permute, split))
    if not alone or axes is None or len(source.shape or ()) != 4:
        return None
    return MovedImage(source, split, tuple(map(int, axes)))
