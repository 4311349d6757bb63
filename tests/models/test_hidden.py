"""What lowering reveals, as columns; and the draft that puts a price on each count."""

from __future__ import annotations

import numpy as np

from models.draft import Draft
from models.revealed import revealed

NAMES = ("inp_bytes", "wgt_bytes", "gemm_iterations", "tokens")


def test_columns_are_what_one_works_out_by_hand() -> None:
    matrix, names = revealed(np.array([[7.0, 24.0, 15.0, np.nan]]), NAMES)
    row = dict(zip(names, matrix[0].tolist(), strict=True))
    half = 0.5  # of the log2, so that columns are on one scale
    expected = {
        "hidden inp_bytes": half * 3, "hidden gemm_iterations": half * 4, "hidden tokens": 0.0,
        "hidden bytes": half * 5, "hidden iterations": half * 4,
        "hidden inp_bytes per iteration": half * (3 - 4),
        "hidden bytes per iteration": half * (5 - 4),
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_without_iterations_nothing_is_per_iteration() -> None:
    _, names = revealed(np.ones((2, 2)), ("inp_bytes", "tokens"))
    assert names == ("hidden inp_bytes", "hidden tokens", "hidden bytes")


def test_the_draft_finds_the_prices_of_a_sum_and_gives_no_negative_ones() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 1000, (12, 4)).astype(float)
    cycles = counts @ np.array([3.0, 0.0, 0.5, 40.0])
    draft = Draft(0, False, {})
    draft.fit(counts, np.log2(cycles))
    assert (draft.prices >= 0).all()
    np.testing.assert_allclose(draft.prices, [3.0, 0.0, 0.5, 40.0], atol=0.1)
    np.testing.assert_allclose(draft.predict(counts), np.log2(cycles), atol=0.01)
