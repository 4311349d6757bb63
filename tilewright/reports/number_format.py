"""Formats numbers for people, on pages and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

UNKNOWN = "–"
_PERCENT = "\N{NO-BREAK SPACE}%"


class Ends(Protocol):
    """Interface of an interval with a lower and an upper end, such as a confidence interval."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        ...

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        ...


def percent(share: float) -> str:
    """Return a fraction as a percentage such as `0 %`, `<0.1 %`, `1.3 %` or `214 %`.

    NaN gives a dash. Infinity gives `none valid`, because it is the regret of a tuner that found no
    valid schedule.

    Args:
        share: the fraction; 0.05 means 5 %.

    Returns:
        The text, with a no-break space before the percent sign.
    """
    if math.isnan(share):
        return UNKNOWN
    if math.isinf(share):
        return "none valid"
    if 0 < share < 0.0005:
        return f"<0.1{_PERCENT}"
    digits = 0 if share >= 0.0995 or round(share, 4) in (0.0, 0.01) else 1
    return f"{100 * share:,.{digits}f}{_PERCENT}"


def count(number: float) -> str:
    """Return a number rounded to an integer, or to one decimal if it is small: `7.4`, `1,234`."""
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:,.0f}"


def decimal(number: float) -> str:
    """Return a number with two decimals, such as `0.13`; NaN is a dash."""
    return UNKNOWN if math.isnan(number) else f"{number:.2f}"


def integer_text(number: int | None) -> str:
    """Return an integer such as `1,234,567`; empty if it is unknown."""
    return "" if number is None else f"{number:,}"


def milliseconds(seconds: float | None) -> str:
    """Convert seconds to milliseconds with three digits, such as `73.2`, `0.850` or `1,371`.

    The text has no unit. It is empty if `seconds` is None or NaN.
    """
    if seconds is None or math.isnan(seconds):
        return ""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def energy(microjoules: float) -> str:
    """Return an energy with three digits, such as `0.850 µJ`, `73.2 µJ` or `1.37 mJ`."""
    value, unit = (microjoules / 1e3, "mJ") if microjoules >= 999.5 else (microjoules, "µJ")
    return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:#.3g} {unit}"


def speedup(before: float | None, after: float | None) -> str:
    """Return the ratio of two latencies, `before` / `after`, such as `1.83×`.

    The text is empty if one of the latencies is unknown.

    Args:
        before: latency before an optimisation.
        after: latency after it, in the same unit.
    """
    return "" if before is None or not after else f"{before / after:.2f}×"


def mega(number: int) -> str:
    """Return a number of operations in millions, such as `115.6` or `0.016`; empty for zero."""
    if not number:
        return ""
    return f"{number / 1e6:.1f}" if number >= 100_000 else f"{number / 1e6:.3f}"


def pluralise(number: float, noun: str) -> str:
    """Return a noun, with an s appended unless the number is 1."""
    return noun if number == 1 else f"{noun}s"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 trial` or `1,234 trials`."""
    return f"{number:,} {pluralise(number, noun)}"


def duration(seconds: float) -> str:
    """Return a duration such as `45 ms`, `1.2 s`, `45 s` or `3:05 min`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def interval_text(interval: Ends, form: Callable[[float], str]) -> str:
    """Return an interval such as `7–12`; empty if both ends have the same text.

    Args:
        interval: the interval.
        form: function that converts an end to text. If it adds a percent sign, the sign is written
            only after the upper end.

    Returns:
        The text.
    """
    low, high = form(interval.low), form(interval.high)
    if low == high:
        return ""
    return f"{low.removesuffix(_PERCENT) if high.endswith(_PERCENT) else low}–{high}"
