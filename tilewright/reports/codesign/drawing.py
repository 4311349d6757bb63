"""Draws the page of a co-design run into its folder."""

from __future__ import annotations

from pathlib import Path

from tilewright.core.files import write_atomically
from tilewright.hardware_search.output_folder import PAGE
from tilewright.hardware_search.results import CodesignOutcome
from tilewright.reports.codesign.page import front_page


def draw_front(place: Path, outcome: CodesignOutcome) -> None:
    """Write `codesign.html`. Raises `OSError`."""
    write_atomically(place / PAGE, front_page(outcome))
