"""Checks that pages show their data escaped, and that the verdict is the same everywhere."""

from __future__ import annotations

import jinja2
import pytest

from tilewright.evaluation.compare.leaderboard import ConfidenceInterval, LeaderboardRow
from tilewright.evaluation.compare.summary import ComparisonVerdict, RelativeTrials
from tilewright.reports.comparison import invalid_note, leaderboard_columns, spoken
from tilewright.reports.plot_style import line_styles
from tilewright.reports.templates import render


def _row(tuner: str, regret: float, trials: float, reached: float = 1.0) -> LeaderboardRow:
    def of(middle: float) -> ConfidenceInterval:
        return ConfidenceInterval(middle, middle, middle)

    return LeaderboardRow(
        tuner=tuner, regret=of(regret), worst=("one", regret), reached=reached, trials=of(trials),
        first_within=of(trials), invalid_share=of(0.25), invalid=of(3), compiled=of(10),
        failed=of(1), seconds=of(2), seconds_to_goal=of(1), stack_to_goal=of(0),
    )  # fmt: skip


def _plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_what_is_put_into_a_page_is_escaped() -> None:
    page = render("page.html.jinja", title="<b>&").decode()
    assert "<title>&lt;b&gt;&amp;</title>" in page


def test_a_page_that_is_not_given_all_it_shows_is_a_defect() -> None:
    with pytest.raises(jinja2.UndefinedError, match="title"):
        render("page.html.jinja")


def test_a_verdict_tells_distance_trials_rivals_and_the_yardstick() -> None:
    best, next_best = _row("a", 0.0, 1), _row("b", 0.2, 30.5, reached=0.5)
    assert _plain(
        spoken(ComparisonVerdict(best, (next_best,), RelativeTrials("autotvm", 0.25, True)))
    ) == (
        "ends at the optimum and is within 1 % of it in 100 % of its runs, after 1 trial. "
        "Next: b 30 (50 % of runs). That is at most 25 % of the trials that autotvm needs."
    )
    assert _plain(spoken(ComparisonVerdict(next_best, (), None))) == (
        "ends 20 % above the optimum and is within 1 % of it in 50 % of its runs, after 30 trials."
    )
    assert "infinitely far from the optimum" in spoken(
        ComparisonVerdict(_row("c", float("inf"), 8), (), None)
    )


def test_the_best_figures_of_a_column_are_marked_and_open_ones_are_bounds() -> None:
    columns = leaderboard_columns([_row("a", 0.0, 1), _row("b", 0.2, 32, reached=0.5)])
    by_name = {" ".join(column.heading): column.cells for column in columns}
    assert [cell.best for cell in by_name["regret"]] == [True, False]
    assert [cell.best for cell in by_name["failed compiles"]] == [False, False]
    assert [cell.bound for cell in by_name[next(n for n in by_name if n.startswith("trials"))]] == [
        False, True,
    ]  # fmt: skip
    alone = leaderboard_columns([_row("a", 0.0, 1)])
    assert not any(cell.best for column in alone for cell in column.cells)


def test_the_share_of_invalid_trials_is_told_with_those_that_mattered() -> None:
    said = _plain(invalid_note([_row("a", 0.0, 1), _row("random", 0.2, 32)]))
    assert "within 1 %: a 25 % (3), random 25 % (3)." in said


def test_no_two_curves_look_alike_and_none_hides_another() -> None:
    styles = line_styles(list("abcdef"))
    assert len({(each.colour, each.dashes) for each in styles}) == len(styles)
    widths = [each.width for each in styles]
    assert widths == sorted(set(widths), reverse=True)
    assert line_styles(["alone"])[0].drawn["linestyle"] == "-"
