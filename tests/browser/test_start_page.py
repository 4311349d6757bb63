"""Tests the start page in a browser: sorting, filtering, deleting and following runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

from tests.browser.conftest import LIMIT_MILLISECONDS, Site
from tests.sharing import free_port
from tests.trial_tables import rows
from tilewright.dashboard.start import start_dashboard
from tilewright.search import TrialStore
from tilewright.search.trial_store import FILE
from tilewright.services.server_credentials import Credentials
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace

pytestmark = [pytest.mark.browser, pytest.mark.slow(seconds=60)]
Picture = Callable[[str], None]
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def start(site: Site, page: Page) -> Page:
    """Return the open start page. Fail the test if the page reports an error."""
    wrong: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        # requests of Prefect's page, which was open before, may still be running
        if message.type == "error" and message.location["url"].startswith(site.address("Runs")):
            wrong.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.set_viewport_size({"width": 1280, "height": 960})
    page.goto(site.address("Runs"))
    expect(_rows(page).first).to_be_visible()
    page.wrong = wrong  # type: ignore[attr-defined]
    return page


def test_three_clicks_lead_to_the_settings_that_won(
    site: Site, start: Page, picture: Picture
) -> None:
    question = start.get_by_label("Network and target")
    expect(question).to_have_value("digits_cnn on vta-pynq")
    best = min(site.runs, key=lambda tuner: site.runs[tuner]["total"]["tuned_seconds"])
    first = start.locator("#leaders tbody tr").first
    expect(first).to_contain_text(best)
    expect(start.locator("#convergence svg path")).not_to_have_count(0)
    picture("runs")
    first.get_by_role("link").first.click()
    expect(start.get_by_role("heading", name=f"{best}, seed 0")).to_be_visible()
    expect(start.get_by_text("How much each knob affects the latency")).to_be_visible()
    expect(start.locator("dt", has_text="space")).to_be_visible()
    expect(start.locator("svg.wide path")).not_to_have_count(0)
    layers = site.runs[best]["workloads"]
    expect(start.locator("#run tbody tr")).to_have_count(len(layers))
    start.get_by_label("Layer").select_option(index=len(layers) - 1)
    expect(start.get_by_role("img", name=re.compile("Best latency of fc"))).to_be_visible()
    picture("run")
    link = start.locator("#run").get_by_role("link", name=re.compile("^MLflow"))
    assert site.runs[best]["mlflow_run_id"] in str(link.get_attribute("href"))
    start.go_back()
    expect(_rows(start).first).to_be_visible()
    _nothing_wrong(start)


def test_runs_are_sorted_and_filtered_by_keyboard(site: Site, start: Page) -> None:
    _rows(start).nth(1).wait_for()
    everything = _rows(start).count()
    head = start.get_by_role("button", name="Tuned ms")
    head.focus()
    for direction in "ascending", "descending":
        start.keyboard.press("Enter")
        expect(start.locator("th", has=head)).to_have_attribute("aria-sort", direction)
        expect(head).to_be_focused()
    start.get_by_label("Search").fill("random digits")
    expect(start.locator("#count")).to_contain_text(f"of {everything}")
    for row in _rows(start).all():
        expect(row).to_contain_text("random")
    start.get_by_label("Search").fill("no such run")
    expect(_rows(start)).to_have_count(0)
    _nothing_wrong(start)


def test_a_run_of_another_process_shows_up_and_grows(site: Site, start: Page) -> None:
    """The run is a copy of a killed run that gets more trials. Its name contains markup."""
    source, out = site.place.folder / "default", site.place.folder / "odd"
    out.mkdir()
    run = json.loads((source / "run.json").read_text())
    run["network"]["name"] = MARKUP
    run["workloads"][0]["names"] = [MARKUP]
    shutil.copy(source / FILE, out)
    rows(out, "update trials set rejected = 'later' where id > 3")
    with TrialStore(out / FILE):
        (out / "run.json").write_text(json.dumps(run))
        card = start.locator("#live .card")
        expect(card).to_contain_text(MARKUP)
        expect(card).to_contain_text("3 of 192 trials")
        rows(out, "update trials set rejected = null")
        expect(card).to_contain_text("192 of 192 trials")
        card.get_by_role("link").click()
        expect(start.get_by_role("heading", name=MARKUP)).to_be_visible()
        expect(start.locator("#run tbody")).to_contain_text(MARKUP)
        expect(start.locator("#run img")).to_have_count(0)
    expect(start.locator("#run .state")).to_have_text("stopped")
    _nothing_wrong(start)


def test_a_run_is_deleted_after_a_question(site: Site, start: Page) -> None:
    """The run is a copy that MLflow does not know."""
    out = site.place.folder / "unwanted"
    shutil.copytree(site.place.folder / "random", out)
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(run | {"seed": 98765}))
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(summary | {"mlflow_run_id": "", "seed": 98765}))
    start.get_by_label("Search").fill("98765")
    link = _rows(start).get_by_role("link").first
    expect(link).to_be_visible()
    link.click()
    expect(start.get_by_role("heading", name="seed 98765")).to_be_visible()
    delete = start.get_by_role("button", name="Delete this run")
    delete.click()
    dialog = start.get_by_role("dialog")
    expect(dialog).to_contain_text(f"The results and trials in {out} are deleted.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert (out / "summary.json").exists()
    delete.click()
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog).to_be_hidden()
    expect(_rows(start)).to_have_count(0)
    assert not out.exists()
    assert (site.place.folder / "random" / "summary.json").exists()
    _nothing_wrong(start)


def test_the_page_answers_what_failed_who_won_and_where_to_work(site: Site, start: Page) -> None:
    flow = site.ask("flows/", {"name": "tune_network"})
    asked = {
        "flow_id": flow["id"], "parameters": {"model": "digits_cnn", "target": "lab.json"},
        "state": {"type": "FAILED", "message": f"cannot read lab.json {MARKUP}"},
    }  # fmt: skip
    site.ask("flow_runs/", asked)
    failed = start.locator("#failures .card").first
    expect(failed).to_contain_text("digits_cnn on lab.json")
    expect(failed).to_contain_text(f"cannot read lab.json {MARKUP}")
    best = min(site.runs, key=lambda tuner: site.runs[tuner]["total"]["tuned_seconds"])
    expect(start.locator("#winner")).to_contain_text(re.compile(f"^{best} .* above the bound"))
    start.locator("#leaders tbody a").first.click()
    expect(start.locator("#run")).to_contain_text("Most can be saved at ")
    command = start.locator("#run pre")
    expect(command).to_contain_text("tilewright tune digits_cnn")
    expect(command).to_be_in_viewport()
    start.get_by_text("What the figures mean").last.click()
    expect(start.locator("#run dd", has_text="Lower bound of the latency")).to_be_visible()
    _nothing_wrong(start)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_or_hidden(site: Site, start: Page, width: int) -> None:
    start.set_viewport_size({"width": width, "height": 760})
    for address in site.address("Runs"), f"{site.address('Runs')}#run={_id(start)}":
        start.goto(address)
        expect(start.locator("main svg:visible").first).to_be_visible()
        assert start.evaluate("document.documentElement.scrollWidth") == width
    _nothing_wrong(start)


def test_an_empty_workspace_says_what_to_type(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    workspace, port = Workspace(tmp_path), free_port()
    credentials = Credentials.for_workspace(workspace)
    server = start_dashboard(workspace, LOOPBACK, port, credentials, {}, folder=tmp_path)
    try:
        server.wait()
        page = browser.new_page()
        page.goto(credentials.link(f"http://{LOOPBACK}:{port}"))
        told = page.get_by_text("tilewright tune digits_cnn")
        expect(told).to_be_visible(timeout=LIMIT_MILLISECONDS)
        expect(page.locator("#overview")).to_be_hidden()
        page.close()
    finally:
        server.stop()


def _rows(page: Page) -> Locator:
    return page.locator("#runs tbody tr")


def _id(page: Page) -> str:
    row = _rows(page).filter(has_text="finished").first
    href = str(row.get_by_role("link").first.get_attribute("href"))
    return href.partition("=")[2]


def _nothing_wrong(page: Page) -> None:
    assert page.wrong == []  # type: ignore[attr-defined]
