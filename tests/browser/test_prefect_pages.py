"""Tests Prefect's pages in a browser: a run, its artifacts, and the form of a deployment."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.slow(seconds=60)]
Picture = Callable[[str], None]


def test_the_page_of_a_run(site: Site, page: Page, picture: Picture) -> None:
    run = site.runs["default"]["prefect_flow_run_id"]
    page.goto(f"{site.address('Prefect')}/runs/flow-run/{run}")
    expect(page.get_by_text("digits_cnn on vta-pynq, default, seed 0")).to_be_visible()
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    for tag in "default", "digits_cnn", "vta-pynq":
        expect(page.get_by_text(tag, exact=True).first).to_be_visible()
    expect(page.get_by_text("Beginning flow run", exact=False)).to_be_visible()
    picture("prefect-run")
    _tab(page, "Parameters").click()
    expect(page.get_by_text('"tuner": "default"')).to_be_visible()
    _tab(page, "Subflow Runs").click()
    expect(page.get_by_text("fc - dense 128-16")).to_be_visible()


def test_its_artifacts_lead_to_mlflow_and_back(site: Site, page: Page, picture: Picture) -> None:
    run = site.runs["default"]["prefect_flow_run_id"]
    _open_artifact(site, page, run, "layers")
    for row in site.runs["default"]["workloads"]:
        expect(
            page.get_by_text(f"{row['tuned_cycles']:,}")
            .or_(page.get_by_text(str(row["tuned_cycles"])))
            .first
        ).to_be_visible()
    _open_artifact(site, page, run, "summary")
    expect(page.get_by_text("fallback").first).to_be_visible()
    picture("prefect-summary")
    _open_artifact(site, page, run, "mlflow-run")
    there = page.locator(f"a[href*='/runs/{site.runs['default']['mlflow_run_id']}']").first
    expect(there).to_be_visible()
    page.goto(str(there.get_attribute("href")))
    expect(page.get_by_text("digits_cnn on vta-pynq, default").first).to_be_visible()
    expect(page.locator(f"a[href*='/runs/flow-run/{run}']").first).to_be_visible()


def test_a_deployment_takes_a_good_value_and_no_bad_one(
    site: Site, page: Page, picture: Picture
) -> None:
    deployment = site.deployment()["id"]
    form = f"{site.address('Prefect')}/deployments/deployment/{deployment}/run"
    page.goto(form)
    trials = page.locator(".p-label:has-text('Trials (Optional)') input").first
    expect(page.get_by_text("measurements per workload")).to_be_visible()
    expect(trials).to_have_value("8")
    trials.fill("0")
    page.get_by_role("button", name="Submit").click()
    refused = page.get_by_text("'trials'. Failure reason: 0 is less than the minimum of 1")
    expect(refused.first).to_be_visible()
    trials.evaluate("field => field.scrollIntoView({block: 'center'})")
    picture("prefect-form")
    assert site.runs_of(deployment, "COMPLETED", "FAILED", "RUNNING") == []
    trials.fill("4")
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile(f"/deployments/deployment/{deployment}"))
    run = site.ended(deployment)
    assert run["state_type"] == "COMPLETED"
    page.reload()
    _tab(page, "Runs").click()
    expect(page.get_by_text("digits_cnn on vta-pynq, default, seed 0").first).to_be_visible()
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    picture("prefect-deployment")
    assert run["parameters"]["trials"] == 4
    assert site.place.json("served/summary.json")["prefect_flow_run_id"] == run["id"]


def test_the_other_pages_of_prefect_tell_nobody(site: Site, page: Page) -> None:
    """Prefect's second interface tries to contact an analytics service, which must be blocked.

    The fixture `elsewhere` collects requests that get through.
    """
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(f"{site.address('Prefect')}/v2/dashboard")
    expect(page.get_by_text("Flow Runs").first).to_be_visible()
    page.wait_for_timeout(2000)
    assert any("amplitude" in text and "Content Security Policy" in text for text in refused)


def _tab(page: Page, name: str) -> Locator:
    return page.locator(".p-tabs a, .p-tabs button, .p-tabs li").filter(has_text=name).first


def _open_artifact(site: Site, page: Page, run: str, key: str) -> None:
    """Open the page of the latest artifact with this key that the run created."""
    asked = {
        "artifacts": {"key": {"any_": [key]}, "flow_run_id": {"any_": [run]}},
        "sort": "CREATED_DESC",
    }
    result = site.ask("artifacts/filter", asked)
    assert result, f"the run left no artifact {key}"
    page.goto(f"{site.address('Prefect')}/artifacts/artifact/{result[0]['id']}")
