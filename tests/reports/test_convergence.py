"""Tests the convergence plots of a run: their curves, legends and axis ticks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.reports.outcomes import outcome
from tilewright.reports import run_pictures as pictures
from tilewright.reports.plot_style import (
    SizeScale,
    round_ticks,
    scale_factors,
    scale_latency,
    scale_seconds,
    trial_ticks,
)
from tilewright.tuning.results import TunedWorkload


def trials_of(outcomes: Sequence[TunedWorkload]) -> pd.DataFrame:
    rows = [
        {"workload": outcome.workload.id, "round": k, "status": "valid" if k else "timeout",
         "cycles": 4000 - 300 * k, "seconds": (4000 - 300 * k) * 1e-8}
        for outcome in outcomes
        for k in range(8)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def legend(axes: Axes) -> list[str]:
    result = axes.get_legend()
    assert result is not None
    return [text.get_text() for text in result.get_texts()]


def gains(outcomes: Sequence[TunedWorkload]) -> list[str]:
    axes = Figure().subplots()
    pictures._draw_gains(axes, outcomes, pictures._common_limit(outcomes))
    return legend(axes)


def test_the_legend_names_the_four_figures_in_order() -> None:
    assert gains([outcome()]) == ["fallback", "rule", "tuned", "bound"]
    assert gains([outcome(source=None)]) == ["tuned", "bound"]


def test_layers_are_compared_with_the_bound_where_all_have_one() -> None:
    assert gains([outcome(), outcome(o=32, bound=None)])[-1] == "roofline"


def test_layers_are_in_one_hue_the_darker_the_larger() -> None:
    sizes = SizeScale([10, 1_000, 100_000])
    light = [sum(to_rgb(sizes.colour(macs))) for macs in (10, 1_000, 100_000)]
    assert light == sorted(light, reverse=True)
    axes = Figure().subplots()
    outcomes = [outcome(o=32), outcome()]
    pictures._draw_curves(axes, outcomes, trials_of(outcomes), "bound")
    drawn = [line.get_color() for line in axes.get_lines()[:2]]
    assert sum(to_rgb(str(drawn[0]))) > sum(to_rgb(str(drawn[1])))


@pytest.mark.parametrize(("low", "high"), [(1, 1.02), (0.97, 1.2), (1, 3.7), (1, 40), (0.9, 9e5)])
@pytest.mark.parametrize("counted", [True, False])
def test_ticks_are_several_and_do_not_collide(low: float, high: float, counted: bool) -> None:
    figure = Figure(figsize=(6, 3.6))
    canvas = FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.plot([1, 2], [low, high])
    scale_factors(left)
    right.cla()
    right.plot([1, 2], [low * 1000, high * 1000])
    scale_latency(right, counted=counted)
    canvas.draw()
    for axes in (left, right):
        ends = axes.get_ylim()
        labels = [t for t in axes.get_yticklabels() if ends[0] <= t.get_position()[1] <= ends[1]]
        assert 3 <= len(labels) <= 9
        boxes = sorted(label.get_window_extent().intervaly.tolist() for label in labels)
        assert all(below[1] < above[0] for below, above in pairwise(boxes))
        assert len({label.get_text() for label in labels}) == len(labels)


@pytest.mark.parametrize("most", [1, 2, 8, 10, 64, 100, 5000])
def test_trials_are_counted_in_powers_of_two_up_to_the_last(most: int) -> None:
    axes = Figure().subplots()
    axes.plot([1, most], [1, 2])
    axes.set_xscale("log")
    trial_ticks(axes.xaxis, most)
    ticks = axes.xaxis.get_major_locator().tick_values(1, most)
    assert ticks[0] == 1
    assert ticks[-1] == most
    assert len(ticks) <= 9
    assert np.all(np.diff(ticks) > 0) or most == 1


def test_round_ticks_lie_between_the_ends() -> None:
    assert round_ticks(1, 100) == [1, 3, 10, 30, 100]
    assert round_ticks(1, 20) == [1, 2, 5, 10, 20]
    assert round_ticks(1.0, 900_000)[0] == 1


def test_pictures_of_any_outcome_are_png() -> None:
    for item in (outcome(), outcome(source=None, bound=None), outcome(chosen=False)):
        assert pictures.convergence(item, trials_of([item])).startswith(b"\x89PNG")
        assert pictures.network_convergence("n", [item], trials_of([item])).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "seconds", [[0.003, 0.081], [0.05, 0.06], [1e-4, 40.0], [0.7, 0.7], [90.0, 4000.0]]
)
def test_labels_of_an_axis_of_seconds_lie_beside_each_other(seconds: list[float]) -> None:
    figure = Figure(figsize=(5.1, 1.4), layout="constrained")
    axes = figure.subplots()
    axes.scatter(seconds, range(len(seconds)))
    scale_seconds(axes)
    FigureCanvasAgg(figure).draw()
    low, high = axes.get_xlim()
    labels = [
        label
        for minor in (False, True)
        for place, label in zip(
            axes.get_xticks(minor=minor), axes.get_xticklabels(minor=minor), strict=True
        )
        if low <= place <= high and label.get_text()
    ]
    assert len(labels) >= 2
    assert not any("$" in label.get_text() for label in labels)
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
