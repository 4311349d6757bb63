"""Encodes a schedule as a sequence: its decisions are the tokens, each with its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GROUP = "schedule "
_ABOUT = ("log2_parts_", "log2_", "waste_", "one_", "whole_")
"""How columns begin that speak of one knob: of two that fit, the first."""


@dataclass(frozen=True)
class TransferTokens:
    """Knobs in the order of their columns; of each, the places of its columns; and the places of
    all columns that speak of no knob alone."""

    knobs: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    others: tuple[int, ...]


def tokens_of(names: Sequence[str]) -> TransferTokens:
    """Columns of these names by knob. Every log2 of a knob's value makes a token, but volumes and
    numbers of parts, which follow from knobs."""
    found: dict[str, list[int]] = {}
    for name in names:
        knob = _knob(name, "log2_")
        if knob and not knob.endswith("_volume") and not _is_parts(knob, names):
            found[knob] = []
    others = []
    for place, name in enumerate(names):
        knob = next((k for k in (_knob(name, start) for start in _ABOUT) if k in found), "")
        if knob:
            found[knob].append(place)
        else:
            others.append(place)
    return TransferTokens(
        tuple(found), tuple(tuple(each) for each in found.values()), tuple(others)
    )


def _is_parts(knob: str, names: Sequence[str]) -> bool:
    """Whether `parts_X` is the number of parts that knob X makes, and no knob of that name."""
    return knob.startswith("parts_") and f"{_GROUP}log2_{knob.removeprefix('parts_')}" in names


def _knob(name: str, start: str) -> str:
    """What follows `start` in the name of a column of a schedule, else ""."""
    whole = _GROUP + start
    return name.removeprefix(whole) if name.startswith(whole) else ""
