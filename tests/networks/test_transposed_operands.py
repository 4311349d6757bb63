"""Tests products that read a transposed operand in place, against numpy's transposition."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest

from tilewright.networks.compiled.operands_in_place import MovedAxes

SHAPE = (2, 3, 4, 5)


@pytest.mark.parametrize("first", list(permutations(range(3))))
def test_a_number_is_where_numpy_has_it(first: tuple[int, ...]) -> None:
    """This includes permutations that are not their own inverse, unlike those of attention."""
    axes = (*first, 3)
    moved = MovedAxes(SHAPE, axes)
    tensor = np.arange(math.prod(SHAPE)).reshape(SHAPE)
    matrices = tensor.transpose(axes)
    matrices = matrices.reshape(-1, *matrices.shape[2:])
    assert moved.fits(matrices.shape)
    for place in product(*map(range, matrices.shape)):
        assert tensor[tuple(map(int, moved.place(place)))] == matrices[place]


def test_vectors_that_would_be_scattered_do_not_fit() -> None:
    assert not MovedAxes(SHAPE, (0, 1, 3, 2)).fits((6, 5, 4))
