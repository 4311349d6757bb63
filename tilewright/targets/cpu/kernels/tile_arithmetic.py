"""Computes sizes of tiles: divisors, even parts, vectors, and what a cache holds."""

from __future__ import annotations

SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of shares into which a knob may cut a loop between threads."""
SECOND_CACHE = 1 << 21
"""Bytes of the second cache of a core with AMX."""


def divisors(number: int, at_most: int) -> tuple[int, ...]:
    """Of `number`, rising, none above `at_most`."""
    return tuple(d for d in range(1, min(number, at_most) + 1) if number % d == 0)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted` by factor."""
    return min(divisors(number, number), key=lambda d: max(d / wanted, wanted / d))


def even_parts(length: int, at_most: int) -> int:
    """The length of each of the fewest equal parts, none longer than `at_most`, that cover
    `length`; the last one may reach over it."""
    return -(-length // -(-length // at_most))


def vectors(block: int, lanes: int) -> int:
    """Vector registers that `block` numbers take: a rest takes one for each power of two in it."""
    return block // lanes + (block % lanes).bit_count()
