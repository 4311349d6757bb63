"""Computes positions of tensors that are stored inside other tensors, and finds overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

K = TypeVar("K", int, str)


def lay_out(pairs: Iterable[tuple[K, K, int]]) -> list[dict[K, int]]:
    """Compute the relative positions of tensors that are stored inside one another.

    Args:
        pairs: triples (a, b, n): tensor a begins n elements after the beginning of tensor b.

    Returns:
        One mapping per group of connected tensors, from tensor to position in elements. The
        smallest position in each group is 0.

    Raises:
        ValueError: a tensor would have two different positions. The argument is its key.
    """
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
            current = waiting.pop()
            for other, distance in beside[current]:
                if other not in begins:
                    waiting.append(other)
                if (
                    begins.setdefault(other, begins[current] + distance)
                    != begins[current] + distance
                ):
                    raise ValueError(other)
        done |= begins.keys()
        first = min(begins.values())
        groups.append({key: begin - first for key, begin in begins.items()})
    return groups


def find_overlap(begins: Mapping[K, int], sizes: Mapping[K, int]) -> tuple[K, K] | None:
    """Find two tensors whose memory overlaps.

    Args:
        begins: position of each tensor, in elements.
        sizes: size of each tensor, in elements. Tensors without a size are ignored.

    Returns:
        The keys of two overlapping tensors; None if no tensors overlap.
    """
    order = sorted((begins[key], key) for key in begins if key in sizes)
    for (begin, one), (next_begin, other) in pairwise(order):
        if begin + sizes[one] > next_begin:
            return one, other
    return None
