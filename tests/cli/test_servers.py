"""Tests `tilewright ui` and `tilewright serve` with real servers and a scheduled run."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests import warm
from tests.cli.conftest import Place
from tests.processes import listening
from tests.sharing import ANSWER_SECONDS, free_port
from tilewright.services.server_process import LOOPBACK, is_answering

pytestmark = pytest.mark.nightly(seconds=30)

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 900  # generous: the machine may be busy compiling


def post(url: str, document: object, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(document).encode(), {"Content-Type": "application/json"} | dict(headers)
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
        return json.loads(reply.read())


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read the output of a process up to a line that contains `text`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(seen)


def printed_links(printed: str) -> dict[str, str]:
    """Return the printed addresses by the name of their page."""
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
        _use_the_printed_variables(place, f"http://{LOOPBACK}:{prefect}")
        _open_beside(place, {runs, prefect, mlflow})
    finally:
        assert stop(pages) == 0
    assert not is_answering(f"http://{LOOPBACK}:{prefect}/api/health")
    assert not is_answering(f"http://{LOOPBACK}:{mlflow}/")
    kept = place.json("home/pages.json")
    assert kept == {
        "runs": f"http://{LOOPBACK}:{runs}",
        "prefect": f"http://{LOOPBACK}:{prefect}", "mlflow": f"http://{LOOPBACK}:{mlflow}",
    }  # fmt: skip


def _use_the_printed_variables(place: Place, address: str) -> None:
    """Check that Prefect's own command needs the variables printed by `ui --env` to log in."""
    done = place.script("ui", "--env")
    assert done.returncode == 0, done.stderr
    variables = dict(re.findall(r"^export (\w+)=(.*)$", done.stdout, re.MULTILINE))
    assert variables["PREFECT_API_URL"] == f"{address}/api"
    automation = place.folder / "automation.yaml"
    automation.write_text((ROOT / "deployments" / "regression.yaml").read_text())
    command = [sys.executable, "-P", "-m", "prefect", "automation", "create", "--from-file"]
    for more, status in (variables, 0), ({"PREFECT_API_URL": f"{address}/api"}, 1):
        made = subprocess.run(
            [*command, str(automation)], cwd=place.folder, capture_output=True, text=True,
            env=place.environment | {"PREFECT_HOME": str(place.folder / "own")} | more,
        )  # fmt: skip
        assert made.returncode == status, made.stdout + made.stderr
    with httpx.Client(
        auth=(variables["MLFLOW_TRACKING_USERNAME"], variables["MLFLOW_TRACKING_PASSWORD"])
    ) as client:
        health = client.get(f"{variables['MLFLOW_TRACKING_URI']}/health", timeout=ANSWER_SECONDS)
        assert health.status_code == 200


def _open_beside(place: Place, taken: set[int]) -> None:
    """Check that a second workspace with the same recorded ports chooses other ports."""
    other = Place(place.folder / "other")
    (other.folder / "home").mkdir(parents=True, mode=0o700)
    (other.folder / "home" / "pages.json").write_text(json.dumps(
        {name: f"http://{LOOPBACK}:{port}"
         for name, port in zip(("runs", "prefect", "mlflow"), sorted(taken), strict=True)}
    ))  # fmt: skip
    pages = other.start("ui")
    try:
        links = printed_links(read_until(pages, "Ctrl-C"))
        ports = {urlsplit(link).port for link in links.values()}
        assert len(ports) == 3
        assert not ports & taken
        assert place.script("ui", "--env").stdout != other.script("ui", "--env").stdout
    finally:
        assert stop(pages) == 0
    kept = other.json("home/pages.json")
    assert {urlsplit(address).port for address in kept.values()} == ports


def test_without_servers_there_are_no_variables_to_print(place: Place) -> None:
    done = place.call("ui", "--env")
    assert done.returncode == 2
    assert "is running; start one with 'tilewright ui' or 'tilewright serve'" in done.stderr


def _open_in_a_browser(links: dict[str, str], password: str) -> None:
    """Open all pages, their scripts and the data that they request.

    One link logs in to the start page and to MLflow. Prefect's page sends the typed password.
    """
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
        result = browser.post(f"{prefect}/api/flow_runs/filter", json=asked, headers=typed)
        assert result.json() == []
        search = f"{mlflow}/ajax-api/2.0/mlflow/experiments/search"
        experiments = browser.post(search, json={"max_results": 5}).json()["experiments"]
        assert [experiment["name"] for experiment in experiments] == ["Default"]


@dataclass
class Serving:
    """A running `tilewright serve` with its own server, and its output so far."""

    place: Place
    process: subprocess.Popen[str]
    api: str
    lines: list[str]

    @property
    def headers(self) -> Mapping[str, str]:
        return self.place.login(self.api).credentials.headers

    def deployment(self) -> Any:
        """Wait for the deployment to be registered, and return it."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (result := post(f"{self.api}/deployments/filter", {}, self.headers)):
            assert time.monotonic() < deadline, "no deployment was registered"
            time.sleep(0.2)
        return result[0]

    def request(self, out: str) -> str:
        """Request a run whose results go to `out`. Return its ID."""
        deployment = self.deployment()
        create = f"{self.api}/deployments/{deployment['id']}/create_flow_run"
        asked = {"parameters": deployment["parameters"] | {"out": out}}
        return str(post(create, asked, self.headers)["id"])

    def ended(self, ids: Collection[str] = ()) -> list[Any]:
        """Return the runs that have ended: all of them, or only those with the given IDs."""
        states = {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}}
        asked = {"flow_runs": states | ({"id": {"any_": list(ids)}} if ids else {})}
        result: list[Any] = post(f"{self.api}/flow_runs/filter", asked, self.headers)
        return result


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place, port = Place(tmp_path_factory.mktemp("serving")), free_port()
    process = place.start(
        "serve", "digits_cnn", "--tuner", "random", "--trials", "8", "--every", "20",
        "--prefect-port", str(port), "--out", "out",
    )  # fmt: skip
    lines: list[str] = []
    try:
        printed = read_until(process, "serving")
        assert f"http://{LOOPBACK}:{port} (password tilewright:" in printed
        assert "serving tune_network/digits_cnn-vta-pynq (every 20 s)" in printed
        assert process.stdout is not None
        reader = threading.Thread(target=lines.extend, args=(process.stdout,))
        reader.start()
        yield Serving(place, process, f"http://{LOOPBACK}:{port}/api", lines)
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.wait(LIMIT_SECONDS)
        reader.join()


def test_serve_executes_a_scheduled_run(serving: Serving) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (done := [run for run in serving.ended() if run["auto_scheduled"]]):
        assert time.monotonic() < deadline, "no scheduled run ended in time"
        time.sleep(1)
    assert {run["state_type"] for run in done} == {"COMPLETED"}
    summary = serving.place.json("out/summary.json")
    assert summary["prefect_flow_run_id"] in {run["id"] for run in done}
    assert {run["name"] for run in done} == {"digits_cnn on vta-pynq, random, seed 0, 8 trials"}


def test_a_second_process_does_not_take_over_a_deployment(serving: Serving) -> None:
    serving.deployment()
    second = serving.place.start("serve", "digits_cnn", "--trials", "4", "--out", "second")
    printed, _ = second.communicate(timeout=LIMIT_SECONDS)
    assert second.returncode == 2
    assert f"process {serving.process.pid} on " in printed
    assert "already serves tune_network/digits_cnn-vta-pynq; end it, or choose another" in printed
    assert serving.deployment()["parameters"]["trials"] == 8
    environment = serving.place.environment
    listed = serving.place.folder / "listed"
    listed.mkdir()
    (listed / "prefect.yaml").write_text(json.dumps({"deployments": [
        {"name": "digits_cnn-vta-pynq", "entrypoint": "tilewright.flows.nightly.tune_network"}
    ]}))  # fmt: skip
    done = warm.run(
        [str(listed)], serving.place.folder, environment, 600, module="tilewright.flows.deploy_all"
    )
    assert done.returncode == 2
    assert f"process {serving.process.pid} on " in done.stderr
    assert "serves tune_network/digits_cnn-vta-pynq, which " in done.stderr


def test_no_run_writes_outside_of_the_root(serving: Serving) -> None:
    _leave_the_root(serving)


def test_each_run_prints_one_line(serving: Serving) -> None:
    runs = [serving.request("asked"), serving.request("/elsewhere")]
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(serving.ended(runs)) < 2 or len(serving.lines) < len(serving.ended()):
        assert time.monotonic() < deadline, serving.lines
        time.sleep(0.5)
    for line in list(serving.lines):
        assert re.match(r"[\d-]+ [\d:]+  digits_cnn on vta-pynq, random, seed 0, 8 trials: ", line)
        assert re.search(rf"http://{LOOPBACK}:\d+/runs/flow-run/[\w-]+\n$", line)
    assert any(": Completed: tuned " in line for line in serving.lines), serving.lines
    assert any(": Failed: out " in line for line in serving.lines), serving.lines


def _leave_the_root(serving: Serving) -> None:
    """Check that runs cannot write outside the root folder, neither directly nor through a link."""
    place, api = serving.place, serving.api
    elsewhere = place.folder.with_name(f"{place.folder.name}-elsewhere")
    elsewhere.mkdir()
    (place.folder / "link").symlink_to(elsewhere)
    pause = f"{api}/deployments/{serving.deployment()['id']}/pause_deployment"
    post(pause, {}, serving.headers)
    runs = {serving.request(out): out for out in (str(elsewhere), "link/x")}
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(ended := serving.ended(runs)) < len(runs) and time.monotonic() < deadline:
        time.sleep(1)
    assert [run["state_type"] for run in ended] == ["FAILED"] * len(runs)
    for run in ended:
        message = run["state"]["message"]
        assert f"out {runs[run['id']]} is {elsewhere}" in message
        assert f"is outside of {place.folder}" in message
    assert list(elsewhere.iterdir()) == []
