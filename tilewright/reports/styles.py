"""Defines colours and type of reports."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap, to_hex

# names of others in scripts that the font lacks are drawn as boxes, without a word on the terminal
warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")

INK, MUTED, GRID = "#1f2933", "#8895a1", "#e3e8ec"
_SERIES = (
    "#0b6e4f", "#c0562f", "#2f5d9b", "#b8860b", "#7b4ea3", "#2a9d9d", "#c2417c", "#5f6b3a",
    "#8d5524", "#4b5563", "#d17a22", "#3a86c8", "#9b2d30", "#6a8d2f",
)  # fmt: skip
_HEAT = LinearSegmentedColormap.from_list("heat", ["#dcefe6", "#f5ecd0", "#e8b487", "#b4532a"])


def house_style() -> AbstractContextManager[None]:
    """Pictures drawn and written within share type and lines; text stays text."""
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
    """How a curve is drawn: colour, dashes as SVG's `stroke-dasharray` in widths of 1 ("" for a
    solid line), and width."""

    colour: str
    dashes: str
    width: float

    @property
    def drawn(self) -> dict[str, Any]:
        """The same for matplotlib."""
        pattern = [float(length) for length in self.dashes.split()]
        style = (0, [length / self.width for length in pattern]) if pattern else "-"
        return {"color": self.colour, "linestyle": style, "lw": self.width}


def colours(names: Sequence[str]) -> list[str]:
    """A colour a name, by place."""
    return [_SERIES[place % len(_SERIES)] for place in range(len(names))]


def line_styles(names: Sequence[str]) -> list[LineStyle]:
    """A line a name, by place: where curves meet, the later and narrower lies on the earlier, and
    neither hides the other."""
    step = (_WIDEST - _NARROWEST) / max(len(names) - 1, 1)
    return [
        LineStyle(colour, _DASHES[place % len(_DASHES)], _WIDEST - place * step)
        for place, colour in enumerate(colours(names))
    ]


def heat(share: float) -> tuple[str, str]:
    """Background and ink of a cell, 0 good to 1 bad."""
    red, green, blue, _ = (float(part) for part in _HEAT(min(max(share, 0.0), 1.0)))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
    return to_hex((red, green, blue)), "#ffffff" if dark else INK
