"""Tests numba arguments without reference counts: shared arrays and records of tuples."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.numba_decorators import as_record, rarely, unowned


class Pair(NamedTuple):
    first: NDArray[np.int64]
    factor: int
    second: NDArray[np.float64]


@nb.njit
def _fill(array: NDArray[np.int64], value: int) -> int:
    array[:] = value
    return array.shape[0]


@nb.njit
def _scale(pair: Pair) -> None:
    for k in range(pair.first.shape[0]):
        pair.second[k] = pair.first[k] * pair.factor


@nb.njit
def _through(array: NDArray[np.int64], pair: Pair) -> int:
    count = _fill(unowned(array), 7) + _fill(unowned(array[1:]), 9)
    _scale(unowned(pair))
    return count


@nb.njit
def _owner_stays(rounds: int) -> int:
    total = 0
    for k in range(rounds):
        own = np.empty(1000, np.int64)
        _fill(unowned(own), k)
        total += own.sum()
    return total


def test_what_is_written_through_an_unowned_array_is_there_and_references_are_as_before() -> None:
    array, pair = np.zeros(4, np.int64), Pair(np.arange(3), 5, np.zeros(3))
    counts = [sys.getrefcount(a) for a in (array, pair.first, pair.second)]
    for _ in range(3):
        assert _through(array, pair) == 7
    assert array.tolist() == [7, 9, 9, 9]
    assert pair.second.tolist() == [0.0, 5.0, 10.0]
    assert [sys.getrefcount(a) for a in (array, pair.first, pair.second)] == counts


def test_the_owner_lives_until_its_last_use() -> None:
    assert _owner_stays(50) == 1000 * sum(range(50))


class Three(NamedTuple):
    a: int
    b: int
    c: int


@nb.njit
def _weigh(numbers: Three) -> int:
    return numbers.a + 10 * numbers.b + 100 * numbers.c


def test_a_record_reads_as_its_tuple() -> None:
    for numbers in (Three(1, 2, 3), Three(-4, 1 << 40, 0), Three(1, 2, 3)):
        assert _weigh(as_record(numbers)) == _weigh(numbers)


@nb.njit
def _rare(value: int) -> bool:
    return bool(rarely(value > 3))


def test_what_is_rare_is_as_true_as_ever() -> None:
    assert [_rare(value) for value in (3, 4)] == [False, True]
