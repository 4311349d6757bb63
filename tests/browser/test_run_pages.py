"""Opens every page of a run in both of Prefect's interfaces. A console error fails the test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.slow(seconds=60)]

INTERFACES = pytest.mark.parametrize("interface", ["", "/v2"], ids=["first", "second"])
SETTLE_MILLISECONDS = 1000
"""Time in ms that a page gets for further requests to the server after its first picture."""
TABS = ".p-tabs__tab, .p-tabs li, [role=tab]"
EXPECTED = re.compile(
    r"amplitude\.com"  # requested whatever the settings say, and blocked
    r"|/favicon\.ico|/\w+\.svg\)"  # favicons that Prefect lacks
)


@pytest.fixture
def errors(page: Page) -> Iterator[list[str]]:
    """Yield a list of the pages' console errors, each with the address of its page."""
    errors: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        text = f"{page.url}: {message.text} ({message.location['url']})"
        if message.type == "error" and not EXPECTED.search(text):
            errors.append(text)

    page.on("console", hear)
    page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
    yield errors
    assert errors == []


@pytest.mark.nightly(seconds=140)  # most of it waits for pages to settle
@INTERFACES
def test_the_pages_of_a_run_open_without_an_error(
    site: Site, page: Page, errors: list[str], interface: str
) -> None:
    run = site.runs["default"]["prefect_flow_run_id"]
    root = f"{site.address('Prefect')}{interface}"
    below = site.ask(
        "flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}, "limit": 1}
    )
    for flow_run in (run, below[0]["id"]):
        _open_with_tabs(page, f"{root}/runs/flow-run/{flow_run}")
    of_run = {"flow_runs": {"id": {"any_": [run, below[0]["id"]]}}}
    kinds = {task["task_key"]: task["id"] for task in site.ask("task_runs/filter", of_run)}
    for task_run in kinds.values():
        _open_with_tabs(page, f"{root}/runs/task-run/{task_run}")
    artifacts = site.ask("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}})
    kept = {artifact["key"]: artifact["id"] for artifact in artifacts if artifact["key"]}
    assert {"layers", "summary", "mlflow-run"} <= set(kept)
    for key, artifact in kept.items():
        _open_with_tabs(page, f"{root}/artifacts/artifact/{artifact}")
        _open_with_tabs(page, f"{root}/artifacts/key/{key}")


@pytest.mark.nightly(seconds=45)  # most of it waits for pages to settle
@INTERFACES
def test_the_pages_that_list_runs_open_without_an_error(
    site: Site, page: Page, errors: list[str], interface: str
) -> None:
    root, deployment = f"{site.address('Prefect')}{interface}", site.deployment()
    paths = (
        "dashboard", "runs", "flows", f"flows/flow/{deployment['flow_id']}", "deployments",
        f"deployments/deployment/{deployment['id']}",
        f"deployments/deployment/{deployment['id']}/run", "work-pools", "artifacts", "events",
        "automations", "blocks", "variables", "concurrency-limits", "settings",
    )  # fmt: skip
    for path in paths:
        _open_with_tabs(page, f"{root}/{path}")


@INTERFACES
def test_the_task_list_of_a_run_is_complete(
    site: Site, page: Page, errors: list[str], interface: str
) -> None:
    run = site.runs["default"]["prefect_flow_run_id"]
    asked = {
        "flow_runs": {"id": {"any_": [run]}},
        "task_runs": {"subflow_runs": {"exists_": False}},
    }
    count = site.ask("task_runs/count", asked)
    assert count > 1
    page.goto(f"{site.address('Prefect')}{interface}/runs/flow-run/{run}")
    page.locator(TABS).filter(has_text="Task Runs").first.click()
    expect(page.get_by_text(f"{count} Task runs").last).to_be_visible()
    expect(page.get_by_text("artifacts of the network").last).to_be_visible()


def _open_with_tabs(page: Page, address: str) -> None:
    """Open a page and each of its tabs."""
    page.goto(address)
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    tabs = page.locator(TABS)
    for number in range(tabs.count()):
        if tabs.nth(number).is_visible():
            tabs.nth(number).click()
            page.wait_for_timeout(SETTLE_MILLISECONDS)
