"""Splits the examples of slow tests between `make test` and `make test-all`.

A property test whose examples take long (for example because each one compiles code) draws a fifth
of its examples in `make test`. A test with many parameters runs only the first few there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

FEWER, LEAST = 5, 4


class _Suite:
    draws_fewer = False


def draw_fewer() -> None:
    """Reduce the number of examples. Call this before the test modules are imported."""
    _Suite.draws_fewer = True


def examples(count: int) -> int:
    """Return the number of examples to draw now, if the nightly tests draw `count`."""
    return min(count, max(LEAST, count // FEWER)) if _Suite.draws_fewer else count


def nightly_after(count: int, values: Iterable[object], seconds: float = 1) -> list[Any]:
    """Return the parameters of a test. `make test` runs the first `count`, and `make test-all` all.

    A tuple holds the values of several arguments. `seconds` is the time per parameter.
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    nightly = pytest.mark.nightly(seconds=seconds)
    return [pytest.param(*row, marks=() if k < count else nightly) for k, row in enumerate(rows)]
