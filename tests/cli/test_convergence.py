"""Tests the convergence curve in a terminal."""

from __future__ import annotations

import numpy as np

from tilewright.cli.views.convergence import ROWS, WIDTH, draw_curve


def _bars(lines: list[str]) -> list[str]:
    return [line.partition("┤")[2] for line in lines[1:-1]]


def test_a_curve_fits_into_a_small_terminal_and_names_its_ends() -> None:
    curve = np.geomspace(40_000, 3_000, 500)
    head, *lines = draw_curve(curve, "cycles", bound=2_500)
    assert len(lines) == ROWS + 1
    assert max(map(len, (head, *lines))) <= WIDTH
    assert head == "cycles per inference after each trial, above the bound"
    assert lines[0].startswith("40,000 ┤")
    assert lines[-2].startswith(" 2,500 ┤")
    assert lines[-1].endswith("500 trials")


def test_the_blocks_fall_with_the_latency_and_stay_above_the_bound() -> None:
    curve = np.repeat([8.0, 6.0, 4.0, 3.0], 5)
    bars = _bars(draw_curve(curve, "cycles", bound=2.0))
    heights = [sum(" ▁▂▃▄▅▆▇█".index(row[k : k + 1] or " ") for row in bars) for k in range(20)]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == 8 * ROWS
    assert heights[-1] == np.ceil(8 * ROWS / 6)


def test_unknown_values_and_odd_curves_are_drawn() -> None:
    assert draw_curve(np.array([np.nan, np.nan]), "cycles") == []
    assert draw_curve(np.array([]), "cycles") == []
    begun = draw_curve(np.array([np.nan, 5e-3, 4e-3]), "seconds")
    assert begun[0] == "ms per inference after each trial, above the last value"
    assert _bars(begun)[0] == " █"
    assert draw_curve(np.array([7.0, 7.0]), "cycles", bound=9.0)
