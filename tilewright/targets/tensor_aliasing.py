"""Finds tensors that lie inside one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

K = TypeVar("K", int, str)


def lay_out(pairs: Iterable[tuple[K, K, int]]) -> list[dict[K, int]]:
    """Groups of keys, each with where a key begins, the first at 0. A pair (a, b, n) says that a
    begins n behind b. Raises `ValueError` with the key that would begin at two places."""
    beside: dict[K, list[tuple[K, int]]] = {}
    for part, whole, distance in pairs:
        beside.setdefault(part, []).append((whole, -distance))
        beside.setdefault(whole, []).append((part, distance))
    done: set[K] = set()
    groups = []
    for start in beside:
        if start in done:
            continue
        begins, waiting = {start: 0}, [start]
        while waiting:
            own = waiting.pop()
            for other, distance in beside[own]:
                if other not in begins:
                    waiting.append(other)
                if begins.setdefault(other, begins[own] + distance) != begins[own] + distance:
                    raise ValueError(other)
        done |= begins.keys()
        first = min(begins.values())
        groups.append({key: begin - first for key, begin in begins.items()})
    return groups


def overlapping(begins: Mapping[K, int], sizes: Mapping[K, int]) -> tuple[K, K] | None:
    """Two of the keys that have a size and lie over each other; None where there are none."""
    order = sorted((begins[key], key) for key in begins if key in sizes)
    for (begin, one), (next_begin, other) in pairwise(order):
        if begin + sizes[one] > next_begin:
            return one, other
    return None
