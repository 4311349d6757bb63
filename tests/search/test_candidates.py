"""Tests the drawing of candidates from a schedule space."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.search import candidates
from tilewright.targets.base import Knob, Space

SPACE = Space("grid", (Knob("a", tuple(range(30))), Knob("b", tuple(range(40)))))
LISTED = Space("part", SPACE.knobs, tuple(range(5, 1200, 7)))


@pytest.mark.parametrize("space", [SPACE, LISTED])
@given(st.integers(1, 2000), st.integers(0, 2**32))
def test_what_is_drawn_is_distinct_ascending_and_of_the_space(
    space: Space, n: int, seed: int
) -> None:
    members = np.arange(space.size) if space.listed is None else np.array(space.listed)
    drawn = candidates.draw_configs(space, n, np.random.default_rng(seed))
    assert (np.diff(drawn) > 0).all()
    assert np.isin(drawn, members).all()
    if n >= len(members):
        np.testing.assert_array_equal(drawn, members)
    else:
        assert 1 <= len(drawn) <= n


def test_a_sample_is_spread_over_the_space() -> None:
    drawn = candidates.draw_configs(SPACE, 300, np.random.default_rng(0))
    assert len(drawn) > 240
    assert np.histogram(drawn, 4, (0, SPACE.size))[0].min() > 40
