"""Fixtures of the browser tests: both servers with finished runs, and a browser.

Only `make browser-test` uses them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from tests.cli.conftest import Place
from tests.cli.test_servers import post, printed_links, read_until
from tests.sharing import free_port
from tests.warm import Started

CHROMIUM = "/usr/bin/chromium"
PICTURES = Path(__file__).parents[2] / "docs" / "images" / "pages"
LIMIT_MILLISECONDS = 120_000  # per step; a busy machine takes up to 30 s
RUN_SECONDS = 900
LONG = ("--trials", "256", "--batch", "4")
"""Options of a run that takes more than a minute: 256 rounds with five Prefect tasks each. Such
long runs used to log system metrics, and MLflow's comparison then opened on those."""
LONG_SECONDS = 1800
COLOURS = 96


@dataclass
class Site:
    """The start page, and Prefect's and MLflow's pages, with finished runs of `digits_cnn`.

    There are runs by two tuners, one of which takes more than a minute, and a comparison.
    """

    place: Place
    links: dict[str, str]
    password: str
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def address(self, server: str) -> str:
        parts = urlsplit(self.links[server])
        return f"{parts.scheme}://{parts.netloc}"

    def ask(self, path: str, asked: object) -> Any:
        """Post a request to Prefect's API and return the answer."""
        api = f"{self.address('Prefect')}/api"
        return post(f"{api}/{path}", asked, self.place.login(api).credentials.headers)

    def deployment(self) -> Any:
        """Return the deployment that `serve` registered. Wait until it exists."""
        deadline = time.monotonic() + LIMIT_MILLISECONDS / 1000
        while not (result := self.ask("deployments/filter", {})):
            assert time.monotonic() < deadline, "no deployment was registered"
            time.sleep(0.2)
        return result[0]

    def runs_of(self, deployment: str, *states: str) -> list[Any]:
        """Return the runs of a deployment that are in one of the given states."""
        asked = {
            "flow_runs": {"state": {"type": {"any_": list(states)}}},
            "deployments": {"id": {"any_": [deployment]}},
        }
        result: list[Any] = self.ask("flow_runs/filter", asked)
        return result

    def ended(self, deployment: str) -> Any:
        """Wait until a run of the deployment has ended, and return it."""
        deadline = time.monotonic() + RUN_SECONDS
        while not (runs := self.runs_of(deployment, "COMPLETED", "FAILED", "CRASHED")):
            assert time.monotonic() < deadline, "the run did not end"
            time.sleep(1)
        return runs[0]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = Place(tmp_path_factory.mktemp("browser"))
    named = ("--port", "--prefect-port", "--mlflow-port")
    ports = [item for name in named for item in (name, str(free_port()))]
    pages = place.start("ui", *ports)
    serving: list[subprocess.Popen[str]] = []
    long_run: Started | None = None
    try:
        printed = read_until(pages, "Ctrl-C")
        password = re.search(r"for a password: (\S+)", printed)
        assert password is not None
        site = Site(place, printed_links(printed), password[1])
        long_run = place.fork(
            "tune", "digits_cnn", "--tuner", "random", *LONG, "--out", "random",
            MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL="1",
        )  # fmt: skip
        done = place.run(
            "tune", "digits_cnn", "--tuner", "default", "--trials", "48", "--out", "default"
        )
        assert done.returncode == 0, done.stderr
        done = place.run(
            "compare", "--tuners", "ml2tuner-published,random", "--network", "digits_cnn",
            "--workloads", "2",
            "--space", "template", "--trials", "24", "--batch", "8", "--seeds", "0", "--jobs", "1",
            "--out", "compared",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        _, errors = long_run.communicate(timeout=LONG_SECONDS)
        assert long_run.returncode == 0, errors
        for tuner in "default", "random":
            site.runs[tuner] = place.json(f"{tuner}/summary.json")
        serving.append(
            place.start(
                "serve", "digits_cnn", "--trials", "8", "--cron", "0 2 * * *", "--out", "served"
            )
        )
        read_until(serving[0], "serving")
        yield site
    finally:
        if long_run is not None:
            long_run.send_signal(signal.SIGINT)
            long_run.communicate(timeout=120)
        for process in [*serving, pages]:
            os.kill(process.pid, signal.SIGINT)
            process.communicate(timeout=120)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert shutil.which(CHROMIUM), "no chromium: make browser-test installs it"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def elsewhere() -> list[str]:
    """Return a list that collects the requests of pages to other machines that were not blocked."""
    return []


@pytest.fixture
def page(browser: Browser, site: Site, elsewhere: list[str]) -> Iterator[Page]:
    """Yield a browser page that has opened the login link printed by `ui`."""
    expect.set_options(timeout=LIMIT_MILLISECONDS)
    page = browser.new_page(viewport={"width": 1200, "height": 760})
    page.set_default_timeout(LIMIT_MILLISECONDS)

    def judge(request: Request) -> None:
        if not re.match(r"(http://127\.0\.0\.1:|data:|blob:)", request.url):
            elsewhere.append(request.url)

    page.on("requestfinished", judge)
    page.on("requestfailed", lambda request: request.failure == "csp" or judge(request))
    page.goto(site.links["Runs"])
    _log_in_to_prefect(site, page)
    yield page
    page.close()
    assert elsewhere == [], "a page asks other machines"


def _log_in_to_prefect(site: Site, page: Page) -> None:
    """Type the password that `ui` printed into Prefect's own form."""
    page.goto(site.links["Prefect"])
    page.locator("input[type=password]").fill(site.password)
    page.get_by_role("button", name="Login").click()
    page.wait_for_url(re.compile(r"/dashboard"))


@pytest.fixture
def picture(request: pytest.FixtureRequest, page: Page, tmp_path: Path) -> Callable[[str], None]:
    """Return a function that takes a screenshot, for the docs if `--update-golden` is set."""
    update = request.config.getoption("--update-golden")
    folder = PICTURES if update else tmp_path

    def take(name: str) -> None:
        page.mouse.move(0, 0)
        page.wait_for_timeout(400)  # wait for animations to end
        folder.mkdir(parents=True, exist_ok=True)
        shown = Image.open(BytesIO(page.screenshot())).convert("RGB")
        assert len(shown.getcolors(1 << 24) or ()) > 16, "an empty page"
        shown.quantize(COLOURS).save(folder / f"{name}.png", optimize=True)
        assert update or (PICTURES / f"{name}.png").exists(), f"docs lack {name}.png"

    return take
