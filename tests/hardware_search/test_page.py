"""Checks that the report of a co-design run is self-contained and shows every machine and layer."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.hardware_search.runs import options, run
from tilewright.hardware_search.results import CodesignOutcome
from tilewright.reports.codesign import BOTTOM, HEIGHT, TOP, front_page


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> CodesignOutcome:
    return run(options(tmp_path_factory.mktemp("page")))


class Elements(HTMLParser):
    """HTML parser that collects all start tags of a page and the text of its sections."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = False
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._inside = True
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "section"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


def test_it_asks_nobody_for_anything(outcome: CodesignOutcome) -> None:
    page = front_page(outcome)
    assert not re.search(rb"https?:|@import|url\(", page)
    assert not [tag for tag, given in Elements(page).tags if {"src", "href"} & given.keys()]


def test_each_machine_is_a_dot_a_section_and_a_row(outcome: CodesignOutcome) -> None:
    elements = Elements(front_page(outcome))
    kinds = [tag for tag, given in elements.tags if "data-machine" in given]
    count = len(outcome.front)
    assert count > 1
    assert sorted(kinds) == sorted(["g", "section", "tr"] * count)
    dots = [given for tag, given in elements.tags if (given.get("class") or "").startswith("dot ")]
    assert [dot["class"] for dot in dots] == [f"dot {row['bottleneck']}" for row in outcome.front]
    places = [(float(dot["cx"] or 0), float(dot["cy"] or 0)) for dot in dots]
    assert places == sorted(places), "less area is further left, and takes longer, further up"
    for row, text in zip(outcome.front, elements.texts, strict=True):
        assert row["name"] in text
        assert f"{row['area']:.3f}" in text
        for layer in row["layers"]:
            assert f"{layer['cycles']:,}" in text
            assert layer["names"]["digits_cnn"][0] in text


def test_names_of_others_stay_text(outcome: CodesignOutcome, tmp_path: Path) -> None:
    row = outcome.front[0] | {"name": "<script>alert(1)</script>"}
    page = front_page(CodesignOutcome(outcome.summary, [row], outcome.beaten, outcome.trials))  # type: ignore[list-item]
    assert b"<script>alert" not in page
    assert b"&lt;script&gt;alert" in page


def test_labels_of_axes_have_room_beside_a_tick_at_any_place(outcome: CodesignOutcome) -> None:
    """The positions of ticks depend on latencies, some of which are measured times of CPU work."""
    text = front_page(outcome).decode()
    placed = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>([^<]*)</text>', text)
    baselines = {label: float(y) for y, label in placed}
    font = 21.0  # the size on narrow screens, in units of the picture
    above, below = 0.95 * font, 0.25 * font
    highest_tick = TOP + 4
    assert baselines["latency, ms"] - above >= 0
    assert baselines["latency, ms"] + below <= highest_tick - above
    ticks_of_area = HEIGHT - BOTTOM + 18
    assert ticks_of_area in baselines.values()
    assert ticks_of_area + below <= baselines["area, default machine = 1"] - above
    assert baselines["area, default machine = 1"] + below <= HEIGHT
