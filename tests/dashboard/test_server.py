"""Tests the server of the start page: logins, deletion requests, and names chosen by strangers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from tests.sharing import ANSWER_SECONDS, free_port
from tilewright.dashboard.listing import KnownRuns
from tilewright.dashboard.server import FILES, PAGE, application
from tilewright.services.login_middleware import Guard
from tilewright.services.server_credentials import Credentials
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace

pytestmark = pytest.mark.attack

CREDENTIALS = Credentials("the-secret", "the-key")
MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'`${alert(3)}"
ROUTES = (
    *FILES,
    "/health",
    "/api/runs",
    "/api/comparisons",
    "/api/curves?id=x",
    "/api/knobs?id=x&layer=y",
    "/api/deletion?id=x",
    "/none",
)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """Yield an HTTP client without the secret."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = {
        "version": 1, "network": {"name": MARKUP, "place": "", "digest": ""},
        "target": {"name": MARKUP, "place": "", "digest": ""}, "layers": [], "tuner": MARKUP,
        "seed": 0, "trials": 4, "begun": "2026-11-25T17:02:34+00:00", "workloads": [],
    }  # fmt: skip
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text(json.dumps(run))
    app, port = application(KnownRuns(Workspace(tmp_path / "home"), tmp_path)), free_port()
    guard = Guard(app, CREDENTIALS)
    server = uvicorn.Server(uvicorn.Config(guard, LOOPBACK, port, log_level="error"))
    running = threading.Thread(target=server.run)
    running.start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://{LOOPBACK}:{port}"
    with httpx.Client(base_url=address, timeout=ANSWER_SECONDS, trust_env=False) as client:
        yield client
    server.should_exit = True
    running.join()


def test_nobody_gets_an_answer_without_the_secret(client: httpx.Client) -> None:
    for route in ROUTES:
        for method in "GET", "HEAD", "POST", "DELETE":
            reply = client.request(method, route, headers={"Content-Type": "application/json"})
            assert reply.status_code == 401, (method, route)
            assert MARKUP not in reply.text
    elsewhere = CREDENTIALS.headers | {"Origin": "http://evil.example"}
    assert client.get("/api/runs", headers=elsewhere).status_code == 403


def test_the_link_logs_a_browser_in(client: httpx.Client) -> None:
    assert client.get("/", params={"key": "the-key"}).headers["Location"] == "/"
    assert client.get("/api/runs").status_code == 200
    assert client.post("/api/runs", json={}).status_code == 405


def test_only_a_page_of_this_server_deletes_a_run(client: httpx.Client, tmp_path: Path) -> None:
    held = tmp_path / "out" / "run.json"
    client.headers.update(CREDENTIALS.headers)
    (run,) = client.get("/api/runs").json()["runs"]
    address = f"/api/deletion?id={run['id']}"
    foreign = (
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    )  # fmt: skip
    for headers in foreign:
        assert client.delete(address, headers=headers).status_code == 403
    assert client.get(address).status_code == 200
    for method in "POST", "PUT", "PATCH":
        assert client.request(method, address).status_code == 405
    assert client.delete("/api/deletion?id=../out").status_code == 404
    assert held.exists()
    assert client.delete(address).status_code == 200
    assert not held.exists()
    assert client.delete(address).status_code == 404
    assert client.get("/api/runs").json()["runs"] == []


def test_names_of_others_are_data_and_nothing_else(client: httpx.Client) -> None:
    client.headers.update(CREDENTIALS.headers)
    reply = client.get("/api/runs")
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    (run,) = reply.json()["runs"]
    assert (run["network"], run["tuner"]) == (MARKUP, MARKUP)
    for route in "/none", f"/api/knobs?id={MARKUP}", f"/api/curves?id={MARKUP}":
        reply = client.get(route)
        assert "html" not in reply.headers["Content-Type"]
    page = client.get("/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; " in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_makes_no_markup_of_text_and_asks_no_other_machine() -> None:
    """The page's code must not insert text as markup. `tests/browser` tests it in a browser."""
    scripts = "".join(path.read_text() for path in PAGE.glob("*.js"))
    page, style = ((PAGE / name).read_text() for name in ("index.html", "dashboard.css"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", scripts)
    assert not re.search(r"<script(?! src=\"\w+\.js\")|\son\w+=|style=", page)
    addresses = re.findall(r"https?://[\w./]*", scripts + page + style)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # an XML namespace
