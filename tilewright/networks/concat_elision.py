"""Removes the work of concatenations whose inputs are written side by side.

`networks.integer.tensor_views` says where that is possible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.networks.graph import Shape
from tilewright.networks.model_analysis import Examined
from tilewright.targets.capabilities import Blocks


def concatenations(
    examined: Examined, writers: Mapping[str, Sequence[str]], owned: Collection[str], blocks: Blocks
) -> set[str]:
    """The operators that join whole blocks of channels, all of them results of fused calls (whose
    operators are `owned`) or of such operators again. `writers` are those of what an operator
    reads."""
    found: set[str] = set()
    if blocks.in_channels != blocks.out_channels or blocks.out_channels == 1:
        return found
    for operator in examined.operators:  # in order: writers before what reads them
        name = operator.name
        parts = [examined.shapes.get(part, ()) for part in writers.get(name, ())]
        if (
            operator.op_type in ("Concat", "cat")
            and len(set(writers.get(name, ()))) == len(parts) > 1
            and all(part in owned or part in found for part in writers[name])
            and _side_by_side(parts, examined.shapes.get(name, ()), blocks)
        ):
            found.add(name)
    return found


def _side_by_side(parts: Sequence[Shape], whole: Shape, blocks: Blocks) -> bool:
    """Whether images differ in their channels alone, and all have whole blocks of them."""
    return (
        len(whole) == 4
        and whole[0] <= blocks.batch
        and all(len(p) == 4 and (p[0], *p[2:]) == (whole[0], *whole[2:]) for p in parts)
        and all(part[1] % blocks.out_channels == 0 for part in parts)
        and sum(part[1] for part in parts) == whole[1]
    )
