"""Tests `tilewright ui` and `serve`: real servers, one scheduled run."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Place
from tests.processes import listening
from tests.sharing import ANSWER_SECONDS, free_port
from tilewright.services.server_process import LOOPBACK, is_answering

pytestmark = pytest.mark.nightly(seconds=30)

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 900  # a machine that compiles and serves others meanwhile is slow


def post(url: str, document: object, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(document).encode(), {"Content-Type": "application/json"} | dict(headers)
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
        return json.loads(reply.read())


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Everything printed up to a line with `text`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(seen)


def printed_links(printed: str) -> dict[str, str]:
    """The addresses of pages by what they show."""
    return dict(re.findall(r"^(\w+) +(http\S+)$", printed, re.MULTILINE))


def stop(process: subprocess.Popen[str]) -> int:
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode


def test_ui_shows_all_pages_on_loopback_until_ctrl_c(place: Place) -> None:
    runs, prefect, mlflow = free_port(), free_port(), free_port()
    pages = place.start(
        "ui", "--port", str(runs), "--prefect-port", str(prefect), "--mlflow-port", str(mlflow)
    )
    try:
        printed = read_until(pages, "Ctrl-C")
        links = printed_links(printed)
        assert links["Runs"].startswith(f"http://{LOOPBACK}:{runs}/?key=")
        assert links["Prefect"] == f"http://{LOOPBACK}:{prefect}"
        assert links["MLflow"].startswith(f"http://{LOOPBACK}:{mlflow}/?key=")
        assert links["MLflow"].endswith("#/experiments?workflowType=machine_learning")
        password = place.login(f"{links['Prefect']}/api").credentials.login
        assert f"for a password: {password}\n" in printed
        _open_in_a_browser(links, password)
        assert "warning" not in printed
        assert not is_answering(f"http://{LOOPBACK}:{prefect}/api/version")
        assert {address.ip for address in listening(pages.pid)} == {LOOPBACK}
    finally:
        assert stop(pages) == 0
    assert not is_answering(f"http://{LOOPBACK}:{prefect}/api/health")
    assert not is_answering(f"http://{LOOPBACK}:{mlflow}/")
    kept = place.json("home/pages.json")
    assert kept == {
        "runs": f"http://{LOOPBACK}:{runs}",
        "prefect": f"http://{LOOPBACK}:{prefect}", "mlflow": f"http://{LOOPBACK}:{mlflow}",
    }  # fmt: skip


def _open_in_a_browser(links: dict[str, str], password: str) -> None:
    """Open all pages, their scripts and the data that they request. One link logs in to the start
    page and to MLflow; Prefect's page sends the password that was typed into it."""
    with httpx.Client(timeout=ANSWER_SECONDS) as browser:
        opened = browser.get(links["Runs"])
        assert opened.status_code == 303
        assert opened.headers["Location"] == "/"
        names = ("Runs", "Prefect", "MLflow")
        runs, prefect, mlflow = (links[name].partition("?")[0].rstrip("/") for name in names)
        browser.headers["Accept"] = "text/html"
        for pages in runs, prefect, mlflow:
            page = browser.get(pages, follow_redirects=True)
            assert page.status_code == 200
            script = re.search(r'src="([^"]+\.js)"', page.text)
            assert script is not None
            assert browser.get(page.url.join(script[1])).status_code == 200
        browser.headers["Accept"] = "application/json"
        listed = browser.get(f"{runs}/api/runs").json()
        assert (listed["runs"], listed["pages"]["Prefect"]) == ([], prefect)
        settings = browser.get(f"{prefect}/ui-settings").json()
        assert (settings["api_url"], settings["auth"]) == ("/api", "BASIC")
        typed = {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"}
        asked: dict[str, object] = {}
        found = browser.post(f"{prefect}/api/flow_runs/filter", json=asked, headers=typed)
        assert found.json() == []
        search = f"{mlflow}/ajax-api/2.0/mlflow/experiments/search"
        experiments = browser.post(search, json={"max_results": 5}).json()["experiments"]
        assert [experiment["name"] for experiment in experiments] == ["Default"]


def test_serve_executes_a_scheduled_run(place: Place) -> None:
    port = free_port()
    server = place.start(
        "serve", "digits_cnn", "--tuner", "random", "--trials", "8", "--every", "20",
        "--prefect-port", str(port), "--out", "out",
    )  # fmt: skip
    try:
        printed = read_until(server, "serving")
        assert f"http://{LOOPBACK}:{port} (password tilewright:" in printed
        headers = place.login(f"http://{LOOPBACK}:{port}/api").credentials.headers
        deadline = time.monotonic() + LIMIT_SECONDS
        done: list[Any] = []
        while not done and time.monotonic() < deadline:
            time.sleep(1)
            states = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED"]}}}}
            runs = post(f"http://{LOOPBACK}:{port}/api/flow_runs/filter", states, headers)
            done = [run for run in runs if run["auto_scheduled"]]
        assert done, "no scheduled run ended in time"
        assert {run["state_type"] for run in done} == {"COMPLETED"}
        summary = place.json("out/summary.json")
        assert summary["prefect_flow_run_id"] in {run["id"] for run in done}
        _leave_the_root(place, f"http://{LOOPBACK}:{port}/api", headers)
    finally:
        stop(server)


def _leave_the_root(place: Place, api: str, headers: Mapping[str, str]) -> None:
    """Runs on request whose results would go elsewhere, straight and through a link."""
    elsewhere = place.folder.with_name(f"{place.folder.name}-elsewhere")
    elsewhere.mkdir()
    (place.folder / "link").symlink_to(elsewhere)
    (deployment,) = post(f"{api}/deployments/filter", {}, headers)
    wanted = deployment["parameters"]
    create, runs = f"{api}/deployments/{deployment['id']}/create_flow_run", {}
    post(f"{api}/deployments/{deployment['id']}/pause_deployment", {}, headers)
    for out in str(elsewhere), "link/x":
        asked = {"parameters": wanted | {"out": out}}
        runs[post(create, asked, headers)["id"]] = out
    deadline = time.monotonic() + LIMIT_SECONDS
    ended: list[Any] = []
    while len(ended) < len(runs) and time.monotonic() < deadline:
        time.sleep(1)
        asked = {"flow_runs": {"id": {"any_": list(runs)}}}
        found = post(f"{api}/flow_runs/filter", asked, headers)
        ended = [run for run in found if run["state_type"] in ("FAILED", "COMPLETED", "CRASHED")]
    assert [run["state_type"] for run in ended] == ["FAILED"] * len(runs)
    for run in ended:
        message = run["state"]["message"]
        assert f"out {runs[run['id']]} is {elsewhere}" in message
        assert f"lies outside of {place.folder}" in message
    assert list(elsewhere.iterdir()) == []
