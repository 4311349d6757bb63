"""Common style of the pictures in reports: colours, fonts, line styles and axis ticks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_hex
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from tilewright.reports.number_format import mega

# Names of layers may use scripts that the font lacks. They are drawn as boxes, without a warning.
warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")

INK, MUTED, GRID = "#1f2933", "#8895a1", "#e3e8ec"
ACCENT = "#0b6e4f"
_SERIES = (
    ACCENT, "#c0562f", "#2f5d9b", "#b8860b", "#7b4ea3", "#2a9d9d", "#c2417c", "#5f6b3a",
    "#8d5524", "#4b5563", "#d17a22", "#3a86c8", "#9b2d30", "#6a8d2f",
)  # fmt: skip
_HEAT = LinearSegmentedColormap.from_list("heat", ["#dcefe6", "#f5ecd0", "#e8b487", "#b4532a"])


def house_style() -> AbstractContextManager[None]:
    """Return a context manager that gives pictures the common style.

    In SVG pictures, text stays text instead of being converted to paths.
    """
    return mpl.rc_context(
        {
            "font.size": 9.0,
            "font.family": ["sans-serif"],
            "svg.fonttype": "none",
            "text.parse_math": False,
            "axes.edgecolor": MUTED,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.color": INK,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "xtick.minor.size": 0.0,
            "ytick.minor.size": 0.0,
        }
    )


_DASHES = ("", "6 2", "2 1.5", "8 2 2 2")
_WIDEST, _NARROWEST = 3.2, 1.4


@dataclass(frozen=True)
class LineStyle:
    """Style of a curve.

    Attributes:
        colour: colour as `#rrggbb`.
        dashes: value of SVG's `stroke-dasharray` for lines of width 1; "" for a solid line.
        width: width of the line in points.
    """

    colour: str
    dashes: str
    width: float

    @property
    def line_options(self) -> dict[str, Any]:
        """Keyword arguments with which matplotlib draws a line in this style."""
        pattern = [float(length) for length in self.dashes.split()]
        style = (0, [length / self.width for length in pattern]) if pattern else "-"
        return {"color": self.colour, "linestyle": style, "lw": self.width}


def colours(names: Sequence[str]) -> list[str]:
    """Return one colour per name. The colour depends only on the position of the name."""
    return [_SERIES[place % len(_SERIES)] for place in range(len(names))]


def line_styles(names: Sequence[str]) -> list[LineStyle]:
    """Return one line style per name. The style depends only on the position of the name.

    Later lines are narrower and are drawn on top, so that a line remains visible where others cross
    it.

    Args:
        names: names of the lines, in the order in which they are drawn.

    Returns:
        One style per name.
    """
    step = (_WIDEST - _NARROWEST) / max(len(names) - 1, 1)
    return [
        LineStyle(colour, _DASHES[place % len(_DASHES)], _WIDEST - place * step)
        for place, colour in enumerate(colours(names))
    ]


def heat(share: float) -> tuple[str, str]:
    """Return the background colour and a legible text colour for a cell of a heat map.

    Args:
        share: position on the colour scale, from 0 (good) to 1 (bad). Values outside are clipped.

    Returns:
        Background and text colour as `#rrggbb`.
    """
    red, green, blue, _ = (float(part) for part in _HEAT(min(max(share, 0.0), 1.0)))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
    return to_hex((red, green, blue)), "#ffffff" if dark else INK


_SIZES = LinearSegmentedColormap.from_list("sizes", ["#c3e3d4", "#3f9a78", "#0b4a35"])
_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0))
"""Mantissas of ticks, from coarse to fine."""
_FEWEST, _MOST = 4, 9  # wanted minimum and default maximum number of ticks
_NARROW = 4.0  # ratio of the ends of an axis below which it is linear
_POWERS = 9  # maximum number of powers of two on an axis


def round_ticks(low: float, high: float, most: int = _MOST) -> list[float]:
    """Return round numbers as ticks for a logarithmic axis.

    Args:
        low: lower end of the axis; it must be positive.
        high: upper end of the axis.
        most: maximum number of ticks.

    Returns:
        The ticks in ascending order.
    """
    shown_ticks: list[float] = []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in _STEPS:
        ticks = [float(f"{m}e{power}") for power in powers for m in mantissas]
        shown_ticks = [tick for tick in ticks if low <= tick <= high]
        if len(shown_ticks) >= _FEWEST:
            break
    return shown_ticks[:: math.ceil(len(shown_ticks) / most)] if shown_ticks else shown_ticks


def scale_factors(axes: Axes) -> None:
    """Show the values of the vertical axis as factors such as `1.5×`.

    The axis becomes logarithmic if the ratio of its ends is at least `_NARROW`.
    """
    _scale_vertical(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))


def scale_latency(axes: Axes, *, counted: bool) -> None:
    """Show the values of the vertical axis as latencies.

    The axis becomes logarithmic if the ratio of its ends is at least `_NARROW`.

    Args:
        axes: the axes to change.
        counted: True for latencies in cycles, such as `1,500`; False for seconds, such as `1.5 ms`.
    """
    _scale_vertical(axes)
    whole = FuncFormatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(whole if counted else EngFormatter(unit="s"))


def scale_seconds(axes: Axes) -> None:
    """Show the values of the horizontal axis as durations such as `1.5 ms`.

    The axis becomes logarithmic if the ratio of its ends is at least `_NARROW`.
    """
    _scale(axes.xaxis, axes.set_xscale, axes.get_xlim, _FEWEST)
    axes.xaxis.set_major_formatter(EngFormatter(unit="s"))


def _scale_vertical(axes: Axes) -> None:
    _scale(axes.yaxis, axes.set_yscale, axes.get_ylim, _MOST)


def _scale(
    axis: Axis, set_scale: Callable[[str], object], limits: Callable[[], tuple[float, float]],
    most: int,
) -> None:  # fmt: skip
    """Make an axis logarithmic if the ratio of its ends is at least `_NARROW`, else linear.

    Args:
        axis: the axis to change.
        set_scale: function that sets the scale of the axis, "log" or "linear".
        limits: function that returns the lower and the upper end of the axis.
        most: approximate maximum number of round ticks on the axis.
    """
    set_scale("log")
    low, high = limits()
    if high / low < _NARROW:
        set_scale("linear")
        axis.set_major_locator(MaxNLocator(min(most, 7), steps=[1, 2, 2.5, 5, 10]))
    else:
        fix_ticks(axis, round_ticks(low, high, most))


def trial_ticks(axis: Axis, most: int) -> None:
    """Set the ticks of a logarithmic axis of trial numbers: powers of two, and the last trial.

    Args:
        axis: the axis to change.
        most: number of the last trial.
    """
    powers = [2**k for k in range(most.bit_length()) if 2**k <= most]
    shown = powers[:: math.ceil(len(powers) / _POWERS)]
    ticks = [tick for tick in shown if tick < 0.7 * most or tick == most]
    fix_ticks(axis, [*(tick for tick in ticks if tick < most), most])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


class SizeScale:
    """Colour scale for layers: layers with more multiply-accumulates get a darker colour.

    Args:
        macs: number of multiply-accumulates of each layer.
    """

    def __init__(self, macs: Sequence[int]) -> None:
        known = [mac for mac in macs if mac > 0] or [1]
        low, high = min(known), max(known)
        self._norm = LogNorm(low, high if high > low else 2 * low)
        self._ends = (low, high)

    def colour(self, macs: int) -> str:
        """Return the colour of a layer with `macs` multiply-accumulates, as `#rrggbb`."""
        if self._ends[0] == self._ends[1]:
            return to_hex(_SIZES(1.0))
        return to_hex(_SIZES(float(self._norm(max(macs, 1)))))

    def draw_scale(self, axes: Axes) -> None:
        """Draw the colour scale as a bar beside the axes, unless all layers have one size."""
        low, high = self._ends
        if low == high or axes.figure is None:
            return
        bar = axes.figure.colorbar(
            ScalarMappable(self._norm, _SIZES), ax=axes, pad=0.02, fraction=0.04, aspect=30
        )
        middle = float(np.sqrt(low * high))
        ticks = [low, middle, high] if high / low > 4 else [low, high]
        bar.set_ticks(ticks, labels=[mega(round(tick)) for tick in ticks])
        bar.minorticks_off()
        bar.outline.set_visible(False)
        bar.set_label("million multiply-accumulates per call", fontsize=8)


def fix_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    """Set the ticks of an axis, and remove its minor ticks, whose labels could overlap."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
