"""Tests HTML reports: inserted data is escaped, and all places state the same verdict."""

from __future__ import annotations

import jinja2
import pytest

from tilewright.evaluation.compare.leaderboard import (
    OPTIMUM,
    Leaderboard,
    LeaderboardRow,
    RelativeTrials,
)
from tilewright.reports.comparison import invalid_note
from tilewright.reports.leaderboard import leaderboard_columns, leaderboard_rows, verdict
from tilewright.reports.plot_style import line_styles
from tilewright.reports.templates import render


def _row(tuner: str, regret: float | None, trials: float, reached: float = 1.0) -> LeaderboardRow:
    return LeaderboardRow(
        tuner=tuner, seeds=2, gain=None, tuned_cycles=None, tuned_seconds=None, fastest_on=1,
        regret=regret, within_goal=reached, trials_to_goal=trials, invalid_share=0.25,
        wall_seconds=2, first_within=trials, invalid_to_goal=3, compiles_to_goal=10,
        failed_compiles=1, seconds_to_goal=1, worst_workload="one", worst_regret=regret,
    )  # fmt: skip


def _board(*rows: LeaderboardRow, relative: RelativeTrials | None = None) -> Leaderboard:
    winners = (rows[0].tuner,) if rows[0].regret is not None else ()
    return Leaderboard("one", "vta", OPTIMUM, rows, winners, relative)


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
    relative = RelativeTrials("autotvm", 0.25, True)
    assert _plain(verdict(_board(best, next_best, relative=relative))) == (
        "one on vta: a ends at the optimum and is within 1 % of it in 100 % of its runs, after "
        "1 trial. Next: b 30 (50 % of runs). That is at most 25 % of the trials that autotvm needs."
    )
    assert _plain(verdict(_board(next_best))) == (
        "one on vta: b ends 20 % above the optimum and is within 1 % of it in 50 % of its runs, "
        "after 30 trials."
    )
    assert "no tuner found a valid schedule" in verdict(_board(_row("c", None, 8)))


def test_the_best_figures_of_a_column_are_marked_and_open_ones_are_bounds() -> None:
    columns = leaderboard_columns(_board(_row("a", 0.0, 1), _row("b", 0.2, 32, reached=0.5)))
    by_name = {" ".join(column.heading): column.cells for column in columns}
    assert [cell.best for cell in by_name["regret"]] == [True, False]
    assert [cell.best for cell in by_name["failed compiles"]] == [False, False]
    assert [cell.bound for cell in by_name[next(n for n in by_name if n.startswith("trials"))]] == [
        False, True,
    ]  # fmt: skip
    alone = leaderboard_columns(_board(_row("a", 0.0, 1)))
    assert not any(cell.best for column in alone for cell in column.cells)


def test_unknown_figures_have_no_column_and_a_tuner_without_a_schedule_an_infinite_regret() -> None:
    good, none = leaderboard_rows([_board(_row("a", 0.0, 1), _row("b", None, 8, reached=0.0))])
    assert (good["regret"], none["regret"]) == ("0\xa0%", "none valid")
    assert (good[""], none[""]) == ("wins", "")
    assert not {"gain", "cycles", "ms", "network"} & set(good)


def test_the_share_of_invalid_trials_is_told_with_those_that_mattered() -> None:
    said = _plain(invalid_note([_row("a", 0.0, 1), _row("random", 0.2, 32)]))
    assert "within 1 % of the optimum: a 25 % (3), random 25 % (3)." in said


def test_no_two_curves_look_alike_and_none_hides_another() -> None:
    styles = line_styles(list("abcdef"))
    assert len({(style.colour, style.dashes) for style in styles}) == len(styles)
    widths = [style.width for style in styles]
    assert widths == sorted(set(widths), reverse=True)
    assert line_styles(["alone"])[0].line_options["linestyle"] == "-"
