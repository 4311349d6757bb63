"""Opens the HTML reports in a browser on wide and narrow screens and checks their layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.slow(seconds=60)]
WIDE, NARROW = 1280, 390
PAGES = (
    "compared/report.html",
    "default/explain.html",
    "designed/front.html",
    "fused.html",
    "joined/timeline.html",
)
CUT = """() => {
  const found = [], room = box => box.getBoundingClientRect();
  for (const svg of document.querySelectorAll("figure svg")) {
    const all = room(svg);
    const texts = [...svg.querySelectorAll("text")].filter(each => room(each).width);
    for (const text of texts) {
      const box = room(text);
      if (box.left < all.left - 1 || box.right > all.right + 1
          || box.top < all.top - 1 || box.bottom > all.bottom + 1)
        found.push(`cut: ${text.textContent}`);
    }
    texts.forEach((one, place) => {
      for (const other of texts.slice(place + 1)) {
        const a = room(one), b = room(other);
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
          found.push(`${one.textContent} on ${other.textContent}`);
      }
    });
  }
  for (const image of document.images)
    if (!image.naturalWidth) found.push(`no image: ${image.alt}`);
  if (document.body.innerHTML.includes("mathdefault")) found.push("a formula as a label");
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) found.push(`the page is ${wide} pixels too wide`);
  return found;
}"""
"""JavaScript that returns a list of layout errors: texts outside their plot or on top of each
other, missing images, formulas as labels, and a page that is too wide."""
SCROLLING = """() => [...document.querySelectorAll(".scroll")]
  .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.innerText)"""
"""JavaScript that returns the text of all tables that are too wide for the page."""


@pytest.fixture(scope="module")
def folder(site: Site) -> Path:
    """Return a folder with all reports named in `PAGES`."""
    np.savez(site.place.folder / "x.npz", input=np.zeros((1, 1, 8, 8), np.float32))
    bounds = ("--bound", "log_block_in=4:4", "--bound", "log_block_out=4:5")
    for command in (
        ("explain", "default", "--samples", "64"),
        ("codesign", "--networks", "digits_cnn", "--budget", "1", "--trials", "48", "--method",
         "random", *bounds, "--out", "designed", "--bare"),
        ("inspect", "digits_cnn", "--fusion", "fused.html"),
        ("build", "digits_cnn", "--out", "joined", "--schedules", "default"),
        ("run", "joined", "--input", "x.npz", "--output", "y.npz", "--timeline",
         "joined/timeline.html"),
    ):  # fmt: skip
        done = site.place.run(*command)
        assert done.returncode == 0, done.stderr
    return site.place.folder


@pytest.fixture(params=[WIDE, NARROW])
def window(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": request.param, "height": 900})
    yield page
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_and_nothing_lies_on_something_else(
    folder: Path, window: Page, name: str, tmp_path: Path
) -> None:
    errors: list[str] = []
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.goto((folder / name).as_uri())
    window.screenshot(path=tmp_path / "page.png", full_page=True)  # for inspection by a person
    assert window.evaluate(CUT) == []
    assert errors == []
    if (window.viewport_size or {})["width"] == WIDE:
        assert window.evaluate(SCROLLING) == []
