"""Finds which decisions depend on each other: those of a common layer or group.

What a label saves hardly depends on labels of other segments: layers meet at barriers.
"""

from __future__ import annotations

from tilewright.networks.fusion import FusionChoice

Segments = tuple[tuple[int, ...], ...]
"""Places of decisions, each in one segment, in order of their first."""


def segments_of(offered: tuple[FusionChoice, ...]) -> Segments:
    """The segments of what may be fused."""
    owner = list(range(len(offered)))

    def root(place: int) -> int:
        while owner[place] != place:
            place = owner[place]
        return place

    first: dict[str, int] = {}
    for place, choice in enumerate(offered):
        for name in (*choice.layers, *filter(None, [f"group {choice.group}" * bool(choice.group)])):
            if name in first:
                one, other = sorted((root(first[name]), root(place)))
                owner[other] = one
            else:
                first[name] = place
    found: dict[int, list[int]] = {}
    for place in range(len(offered)):
        found.setdefault(root(place), []).append(place)
    return tuple(tuple(places) for places in found.values())


def groups_of(offered: tuple[FusionChoice, ...]) -> Segments:
    """The decisions of each group of siblings: one alone changes nothing."""
    found: dict[str, list[int]] = {}
    for place, choice in enumerate(offered):
        if choice.group:
            found.setdefault(choice.group, []).append(place)
    return tuple(tuple(places) for places in found.values())
