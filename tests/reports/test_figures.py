"""Tests how pages and the terminal format numbers."""

from __future__ import annotations

import math

from tilewright.evaluation.compare.leaderboard import ConfidenceInterval
from tilewright.reports.number_format import (
    count,
    decimal,
    duration,
    integer_text,
    interval_text,
    mega,
    percent,
    pluralise,
    speedup,
)

SPACE = "\N{NO-BREAK SPACE}"


def test_numbers_read_as_people_write_them() -> None:
    texts = [percent(x).replace("\N{NO-BREAK SPACE}", " ") for x in (0, 2e-4, 0.01, 0.013, 2.14)]
    assert texts == ["0 %", "<0.1 %", "1 %", "1.3 %", "214 %"]
    assert percent(math.inf) == "none valid"
    assert [count(x) for x in (7.0, 7.42, 1234.4)] == ["7", "7.4", "1,234"]
    assert [duration(x) for x in (0.0451, 1.234, 45.2, 185.0)] == [
        "45 ms", "1.2 s", "45 s", "3:05 min",
    ]  # fmt: skip
    assert interval_text(ConfidenceInterval(8, 7, 12), count) == "7–12"
    assert interval_text(ConfidenceInterval(8, 8, 8), count) == ""
    assert interval_text(ConfidenceInterval(0.1, 0.02, 0.5), percent) == f"2.0–50{SPACE}%"


def test_what_is_not_known_is_a_dash_or_left_out() -> None:
    assert decimal(math.nan) == percent(math.nan) == "–"
    assert integer_text(None) == speedup(100, None) == speedup(None, 100) == mega(0) == ""


def test_whole_numbers_are_grouped_and_large_ones_in_millions() -> None:
    assert (integer_text(1234567), decimal(0.125), speedup(366, 200)) == (
        "1,234,567",
        "0.12",
        "1.83×",
    )
    assert (mega(115_605_504), mega(16_384)) == ("115.6", "0.016")
    assert [pluralise(n, "trial") for n in (0, 1, 1.5)] == ["trials", "trial", "trials"]
