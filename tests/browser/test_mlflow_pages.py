"""Tests MLflow's pages in a browser: the table of runs, a comparison of two runs, and a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Error, Locator, Page, expect

from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.slow(seconds=60)]
Picture = Callable[[str], None]
KIND = "workflowType=machine_learning"


def test_the_table_of_runs(site: Site, page: Page, picture: Picture) -> None:
    page.goto(site.links["MLflow"])
    page.goto(f"{site.address('MLflow')}/#/experiments/1/runs?{KIND}&viewStateShareKey=tilewright")
    _without_assistant(page)
    for tuner, summary in site.runs.items():
        expect(page.get_by_text(f"{tuner}, seed 0").first).to_be_visible()
        gain = summary["total"]["rule_cycles"] / summary["total"]["tuned_cycles"]
        expect(page.get_by_text(f"{gain:.6g}", exact=True).first).to_be_visible()
    for column in "above_bound", "gain", "tuned_ms", "tuner":
        head = page.get_by_role("columnheader", name=column, exact=True).first
        expect(head).to_be_in_viewport(ratio=1)
    picture("mlflow-runs")


def test_the_usual_page_of_runs_leads_to_the_table_with_the_gain(site: Site, page: Page) -> None:
    """MLflow fixes the columns of its default page, so the gain is two clicks away."""
    page.set_viewport_size({"width": 1440, "height": 800})
    runs = f"{site.address('MLflow')}/#/experiments/1/runs?{KIND}"
    page.goto(runs)
    _without_assistant(page)
    # MLflow opens links in a description in a new tab.
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Runs with distance from the bound").click()
    opened.value.set_viewport_size({"width": 1440, "height": 800})
    expect(opened.value.get_by_role("columnheader", name="gain").first).to_be_in_viewport()
    opened.value.close()
    page.get_by_text("Views", exact=True).click()
    page.get_by_text("tuner, gain and bound").click()
    expect(page.get_by_role("columnheader", name="gain").first).to_be_in_viewport()


def test_two_runs_compared(site: Site, page: Page, picture: Picture) -> None:
    """The comparison opens with the gain, although one of the runs takes more than a minute.

    Long runs once had system metrics, which MLflow then selected first.
    """
    runs = [summary["mlflow_run_id"] for summary in site.runs.values()]
    asked = f"runs={quote(json.dumps(runs))}&experiments={quote(json.dumps(['1']))}"
    page.goto(f"{site.address('MLflow')}/#/compare-runs?{asked}&{KIND}")
    _without_assistant(page)
    expect(page.get_by_text("Comparing 2 Runs from 1 Experiment")).to_be_visible()
    expect(page.get_by_text("Parallel Coordinates Plot")).to_be_visible()
    # The differing parameters are preselected, and the gain as the metric.
    for axis in "batch", "trials", "tuner", "gain":
        expect(page.locator("svg text").get_by_text(axis, exact=True).first).to_be_visible()
    picture("mlflow-compare")
    for summary in site.runs.values():
        tuned = page.get_by_text(str(summary["total"]["tuned_cycles"]), exact=True)
        tuned.first.scroll_into_view_if_needed()
        expect(tuned.first).to_be_visible()


def test_a_registered_model_is_shown(site: Site, page: Page, picture: Picture) -> None:
    page.goto(f"{site.address('MLflow')}/#/models?{KIND}")
    _without_assistant(page)
    name = page.get_by_role("link", name="tilewright.vta-pynq.template").first
    expect(name).to_be_visible()
    name.click()
    expect(page.get_by_text("champion").first).to_be_visible()
    expect(page.get_by_text("trained by tuner ml2tuner-published").first).to_be_visible()
    picture("mlflow-model")
    page.get_by_text("Version 1", exact=True).first.click()
    expect(page.get_by_text("Schema").first).to_be_visible()
    expect(page.get_by_text("Source Run").or_(page.get_by_text("Source run")).first).to_be_visible()
    page.get_by_text("Inputs (").first.click()
    expect(page.get_by_text("log2_", exact=False).first).to_be_visible()


def _without_assistant(page: Page) -> None:
    """Close MLflow's chat panel and pop-up news, which cover the page."""
    close = page.locator("[data-component-id='mlflow.assistant.chat_panel.close']")
    news = page.get_by_role("dialog")  # news about MLflow, which may pop up at any time
    page.add_locator_handler(news, lambda: _closed(news), no_wait_after=True)
    close.click()


def _closed(news: Locator) -> None:
    """Close a dialog by its cross, or by the Escape key if it has none.

    The dialog may already be gone or still be appearing. The caller checks again while it waits for
    the element beneath it.
    """
    cross = news.locator("[aria-label='Close'], .du-bois-light-modal-close").first
    try:
        cross.click(timeout=2000)
    except Error:
        news.page.keyboard.press("Escape")
