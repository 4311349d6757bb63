"""Arithmetic on tile sizes: divisors, equal parts, and the number of registers of a block."""

from __future__ import annotations

SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of shares into which a knob may divide a loop to run it in several threads."""
SECOND_CACHE = 1 << 21
"""Size in bytes of the second-level cache of a core with AMX."""


def divisors(number: int, at_most: int) -> tuple[int, ...]:
    """Return the divisors of a number in ascending order.

    Args:
        number: the number.
        at_most: largest divisor to return.
    """
    return tuple(d for d in range(1, min(number, at_most) + 1) if number % d == 0)


def nearest_divisor(number: int, wanted: int) -> int:
    """Return the divisor of `number` that is nearest to `wanted` in ratio.

    Args:
        number: the number.
        wanted: the wanted divisor.
    """
    return min(divisors(number, number), key=lambda d: max(d / wanted, wanted / d))


def even_parts(length: int, at_most: int) -> int:
    """Cut a length into as few equal parts as possible, and return the length of a part.

    The last part may reach beyond the end.

    Args:
        length: the length to cover.
        at_most: largest allowed length of a part.
    """
    return -(-length // -(-length // at_most))


def vectors(block: int, lanes: int) -> int:
    """Return the number of vector registers that a block of values occupies.

    Values that do not fill a vector occupy one register per power of two in their number, because
    they are loaded in pieces.

    Args:
        block: values per block.
        lanes: values per vector.
    """
    return block // lanes + (block % lanes).bit_count()
