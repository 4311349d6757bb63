"""Tests the authentication of both servers, by real clients over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websockets
from websockets.typing import Origin, Subprotocol

from tests.sharing import ANSWER_SECONDS, free_port
from tilewright.services.credentials import CHALLENGE, PROOF, Credentials
from tilewright.services.mlflow_database import provide_mlflow_database
from tilewright.services.mlflow_server import start_mlflow_server
from tilewright.services.prefect_server import (
    Login,
    announced,
    announcing,
    login_at,
    start_prefect_pages,
)
from tilewright.services.request_checks import Hosts
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace

pytestmark = [pytest.mark.slow(seconds=0.3), pytest.mark.attack]

EVIL = "http://evil.example"
JSON = {"Content-Type": "application/json"}
PREFECT_ROUTES = (
    "/", "/v2/", "/ui-settings", "/docs", "/api/health", "/api/ready", "/api/version",
    "/api/admin/settings", "/api/flow_runs/filter", "/nothing", "//api/health",
)  # fmt: skip
MLFLOW_ROUTES = (
    "/", "/health", "/version", "/server-info", "/static-files/index.html", "/graphql",
    "/api/2.0/mlflow/experiments/search", "/ajax-api/2.0/mlflow/experiments/search",
    "/api/2.0/mlflow-artifacts/artifacts", "/get-artifact", "/v1/traces",
)  # fmt: skip


@dataclass(frozen=True)
class Pages:
    """Both servers of a workspace, up."""

    workspace: Workspace
    credentials: Credentials
    prefect: str
    mlflow: str

    def client(self, server: str, **headers: str) -> httpx.Client:
        """Without the secret unless the headers have it."""
        return httpx.Client(base_url=getattr(self, server), headers=headers, timeout=ANSWER_SECONDS)

    @property
    def socket(self) -> str:
        return self.prefect.replace("http", "ws") + "/api/events"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    workspace = Workspace(tmp_path_factory.mktemp("guarded"))
    workspace.prefect_database.parent.mkdir()
    workspace.mlflow_artifacts.mkdir(parents=True)
    provide_mlflow_database(workspace.mlflow_database)
    environment = {
        "MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(workspace.root / "prefect"),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{workspace.prefect_database}",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        credentials = Credentials.of(workspace)
        prefect = start_prefect_pages(workspace, LOOPBACK, free_port(), credentials)
        mlflow = start_mlflow_server(workspace, LOOPBACK, free_port(), credentials)
    try:
        for process in (prefect.process, mlflow):
            process.wait()
        with announcing(workspace, prefect):
            yield Pages(
                workspace, credentials, prefect.pages, mlflow.health.removesuffix("/health")
            )
    finally:
        prefect.process.stop()
        mlflow.stop()


SERVERS = pytest.mark.parametrize("server", ["prefect", "mlflow"])
A_READ = {"prefect": "/api/health", "mlflow": "/health"}
A_WRITE = {
    "prefect": ("/api/flow_runs/filter", {}),
    "mlflow": ("/api/2.0/mlflow/experiments/create", {"name": "planted"}),
}


@SERVERS
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_without_the_secret_every_route_is_401(pages: Pages, server: str, method: str) -> None:
    with pages.client(server) as client:
        for route in PREFECT_ROUTES + MLFLOW_ROUTES:
            reply = client.request(method, route, headers=JSON)
            assert reply.status_code == 401, (method, route)
            assert reply.headers["WWW-Authenticate"].startswith("Bearer")


def wrong_logins(pages: Pages) -> list[str]:
    secret, key = pages.credentials.secret, pages.credentials.key
    texts = [":", "tilewright:", f"{secret}:", f"x:{secret[:-1]}", f"x:{secret}0", f"x:{key}"]
    basics = [f"Basic {base64.b64encode(text.encode()).decode()}" for text in texts]
    return [*basics, "", "Basic", "Basic !!", "Basic /w==", "Bearer", f"Bearer {secret[1:]}",
            f"Bearer {key}", f"Digest {secret}", secret, "Bearer \xff"]  # fmt: skip


@SERVERS
def test_a_wrong_secret_is_401_and_the_right_one_opens(pages: Pages, server: str) -> None:
    route, secret = A_READ[server], pages.credentials.secret
    with pages.client(server) as client:
        for login in wrong_logins(pages):
            reply = client.get(route, headers={"Authorization": login.encode("latin-1")})
            assert reply.status_code == 401, login
        assert client.get(route, auth=("anybody", secret)).status_code == 200
        bearer = {"Authorization": f"Bearer {secret}"}
        assert client.get(route, headers=bearer).status_code == 200


@SERVERS
def test_a_link_logs_a_browser_in_and_leaves_no_trace(pages: Pages, server: str) -> None:
    key = pages.credentials.key
    with pages.client(server) as browser:
        reply = browser.get("/", params={"key": key, "x": "1 &"})
        assert reply.status_code == 303
        assert reply.headers["Location"] == "/?x=1+%26"
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        cookie = reply.headers["Set-Cookie"]
        assert {"httponly", "samesite=strict", "path=/"} <= set(re.split("; *", cookie.lower()))
        assert browser.get(A_READ[server]).status_code == 200
        route, body = A_WRITE[server]
        assert browser.post(route, json={**body, "name": "mine"}).status_code == 200
    for wrong in key[:-1], key + "0", "", pages.credentials.secret:
        with pages.client(server) as browser:
            assert browser.get("/", params={"key": wrong}).status_code == 401
            assert not browser.cookies
    with pages.client(server, Cookie=f"{pages.credentials.cookie}=guess") as browser:
        assert browser.get(A_READ[server]).status_code == 401


@SERVERS
@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%5C%5Cevil.example",
                                  "/%0d%0aX:%20y", "/http://evil.example"])  # fmt: skip
def test_a_link_leads_nowhere_else(pages: Pages, server: str, path: str) -> None:
    with httpx.Client(timeout=ANSWER_SECONDS) as browser:
        address = f"{getattr(pages, server)}{path}?key={pages.credentials.key}"
        reply = browser.get(httpx.URL(address))
    assert reply.status_code == 303
    assert httpx.URL(getattr(pages, server)).join(reply.headers["Location"]).host == LOOPBACK
    assert "X" not in reply.headers


def test_a_person_without_the_link_is_told_where_it_is(pages: Pages) -> None:
    with pages.client("prefect", Accept="text/html,*/*") as browser:
        reply = browser.get("/dashboard")
    assert reply.status_code == 401
    assert reply.headers["Content-Type"].startswith("text/html")
    assert "tilewright ui" in reply.text
    assert "secret" not in reply.text


@SERVERS
@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example",
                                  "localhost.evil.example", "192.0.2.1:{port}", "0.0.0.0:{port}",
                                  "", "a@127.0.0.1", "127.0.0.1:80:80", "127.0.0.1/x"])  # fmt: skip
def test_another_name_is_refused_even_with_the_secret(pages: Pages, server: str, host: str) -> None:
    address = httpx.URL(getattr(pages, server))
    headers = {**pages.credentials.headers, "Host": host.format(port=address.port)}
    with pages.client(server) as client:
        assert client.get(A_READ[server], headers=headers).status_code in (400, 421)
        for own in "localhost", f"LOCALHOST:{address.port}", "127.0.0.1", "[::1]:1":
            reply = client.get(A_READ[server], headers={**headers, "Host": own})
            assert reply.status_code == 200, own


@SERVERS
@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1", "http://127.0.0.1:1", "",
                                    "https://{own}", "http://{own}.evil.example"])  # fmt: skip
def test_a_page_of_another_origin_is_refused_even_with_the_secret(
    pages: Pages, server: str, origin: str
) -> None:
    own = httpx.URL(getattr(pages, server)).netloc.decode()
    headers = {**pages.credentials.headers, "Origin": origin.format(own=own)}
    route, body = A_WRITE[server]
    with pages.client(server) as client:
        for method in "GET", "POST", "OPTIONS":
            reply = client.request(method, route, json=body, headers=headers)
            assert reply.status_code == 403, method
            assert not [name for name in reply.headers if name.startswith("access-control")]
        reply = client.get(A_READ[server], headers={**headers, "Origin": f"http://{own}"})
        assert reply.status_code == 200
        assert not [name for name in reply.headers if name.startswith("access-control")]


@SERVERS
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_elsewhere_embeds_nothing_though_the_cookie_comes_along(
    pages: Pages, server: str, site: str
) -> None:
    """A cookie is sent to every port of a machine, so another user's page there has it sent."""
    cookie = f"{pages.credentials.cookie}={pages.credentials.key}"
    with pages.client(server, **{"Cookie": cookie, "Sec-Fetch-Site": site}) as browser:
        for mode, dest in [("no-cors", "script"), ("no-cors", "image"), ("navigate", "iframe")]:
            headers = {"Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
            assert browser.get(A_READ[server], headers=headers).status_code == 403
        followed = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert browser.get(A_READ[server], headers=followed).status_code == 200
        assert browser.post(A_READ[server], headers=followed | JSON).status_code == 403


@SERVERS
@pytest.mark.parametrize("kind", ["text/plain", "text/plain; charset=utf-8", "TEXT/PLAIN",
                                  "application/x-www-form-urlencoded", "multipart/form-data; b=x",
                                  None])  # fmt: skip
def test_what_a_form_can_send_is_no_json(pages: Pages, server: str, kind: str | None) -> None:
    route, body = A_WRITE[server]
    headers = pages.credentials.headers | ({"Content-Type": kind} if kind else {})
    with pages.client(server) as client:
        for content in json.dumps(body).encode(), iter([json.dumps(body).encode()]):
            assert client.post(route, content=content, headers=headers).status_code == 415


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_pages_may_ask_no_other_machine(pages: Pages, server: str) -> None:
    """`tests/browser` sees a browser keep to it."""
    with pages.client(server, **pages.credentials.headers) as client:
        policy = client.get("/").headers["content-security-policy"]
    assert "connect-src 'self' " in policy
    assert "http" not in policy


def test_servers_open_to_others_know_their_names() -> None:
    import socket

    hosts = Hosts("0.0.0.0")
    for own in "127.0.0.1:4200", "192.168.7.1", "[2001:db8::1]:80", socket.gethostname():
        assert hosts.include(own), own
    assert not hosts.include("evil.example:4200")
    assert Hosts("board.lan").include("board.lan:4200")


# -- WebSockets --------------------------------------------------------------------------------


def talk(url: str, first: object = None, subprotocol: str = "prefect", **options: object) -> object:
    """What comes back: the HTTP status of a refusal, the code of an end, or an answer."""

    async def once() -> object:
        protocols = [Subprotocol(subprotocol)] if subprotocol else None
        try:
            async with websockets.connect(
                url, subprotocols=protocols, proxy=None, open_timeout=ANSWER_SECONDS, **options
            ) as socket:  # type: ignore[arg-type]
                if first is not None:
                    await socket.send(json.dumps(first))
                return json.loads(await asyncio.wait_for(socket.recv(), 30))
        except websockets.InvalidStatus as refused:
            return refused.response.status_code
        except websockets.ConnectionClosed as closed:
            return closed.rcvd and closed.rcvd.code

    return asyncio.run(once())


def auth(token: object) -> dict[str, object]:
    return {"type": "auth", "token": token}


SUCCESS = {"type": "auth_success"}


@pytest.mark.parametrize("route", ["/in", "/out"])
def test_sockets_want_the_secret_in_a_header_a_cookie_or_the_first_message(
    pages: Pages, route: str
) -> None:
    url, credentials = pages.socket + route, pages.credentials
    assert talk(url, auth(credentials.login)) == SUCCESS
    assert talk(url, auth("x"), additional_headers=credentials.headers) == SUCCESS
    cookie = {"Cookie": f"{credentials.cookie}={credentials.key}"}
    assert talk(url, auth(None), additional_headers=cookie) == SUCCESS
    for token in None, "", "x", credentials.key, credentials.login[:-1], 7, [credentials.login]:
        assert talk(url, auth(token)) == 1008, token
    for message in {"type": "x"}, [], "auth", {"type": "filter", "token": credentials.login}:
        assert talk(url, message) == 1008, message
    assert talk(url, subprotocol="") == 401
    assert talk(url, subprotocol="other") == 401


def test_sockets_of_foreign_pages_and_names_are_refused(pages: Pages) -> None:
    url, credentials = pages.socket + "/out", pages.credentials
    login = auth(credentials.login)
    assert talk(url, login, origin=Origin(EVIL), additional_headers=credentials.headers) == 403
    assert talk(url, login, origin=Origin(pages.prefect)) == SUCCESS
    assert talk(url.replace(LOOPBACK, "localhost"), login) == SUCCESS
    assert talk(url, login, additional_headers={"Host": "evil.example"}) in (400, 421)


def test_mlflow_has_no_socket_to_enter(pages: Pages) -> None:
    url = pages.mlflow.replace("http", "ws") + "/api/events/in"
    assert talk(url, auth(pages.credentials.login)) == 401


# -- our own clients ---------------------------------------------------------------------------

LOG = """
import sys
from pathlib import Path
import mlflow
mlflow.set_experiment(experiment_id=mlflow.create_experiment("proxied", "mlflow-artifacts:/p"))
with mlflow.start_run() as run:
    mlflow.log_metric("m", 1.0)
    mlflow.log_text("kept", "note.txt")
assert mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/note.txt") == "kept"
print(mlflow.get_run(run.info.run_id).data.metrics)
"""


def test_mlflows_client_logs_runs_and_artifacts_through_it(pages: Pages, tmp_path: Path) -> None:
    login = {"MLFLOW_TRACKING_URI": pages.mlflow, "MLFLOW_TRACKING_USERNAME": "tilewright",
             "MLFLOW_TRACKING_PASSWORD": pages.credentials.secret}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LOG], env=os.environ | login, cwd=tmp_path, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "{'m': 1.0}"
    assert list(pages.workspace.mlflow_artifacts.rglob("note.txt"))


def test_a_server_proves_who_it_is_before_it_is_told_the_secret(pages: Pages) -> None:
    api, workspace = f"{pages.prefect}/api", pages.workspace
    assert announced(workspace) == Login(api, Credentials(pages.credentials.secret))
    assert login_at(api, workspace) == announced(workspace)
    with pages.client("prefect") as client:
        reply = client.get("/api/health", headers={CHALLENGE: "7"})
        assert reply.status_code == 401
        own, other = (httpx.URL(address).netloc.decode() for address in (api, pages.mlflow))
        assert reply.headers[PROOF] == pages.credentials.proof("7", own)
        assert reply.headers[PROOF] != pages.credentials.proof("7", other)


RELAY = """
import http.client, http.server, sys
seen = open(sys.argv[2], "a")
class Relay(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.headers, file=seen, flush=True)
        upstream = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
        headers = {name: value for name, value in self.headers.items() if name != "Host"}
        upstream.request("GET", self.path, headers=headers)
        reply = upstream.getresponse()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.read())
server = http.server.HTTPServer(("127.0.0.1", 0), Relay)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def test_who_stands_between_learns_nothing(pages: Pages, tmp_path: Path) -> None:
    """A stranger's server on a port that was this workspace's passes the question on."""
    seen = tmp_path / "seen"
    port = str(httpx.URL(pages.prefect).port)
    with subprocess.Popen(
        [sys.executable, "-c", RELAY, port, str(seen)], stdout=subprocess.PIPE, text=True
    ) as relay:
        try:
            assert relay.stdout is not None
            own = int(relay.stdout.readline())
            assert login_at(f"http://{LOOPBACK}:{own}/api", pages.workspace) is None
        finally:
            relay.kill()
    assert CHALLENGE in seen.read_text()
    assert "Authorization" not in seen.read_text()
