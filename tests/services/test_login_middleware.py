"""Attacks the servers of one user: Prefect with its own login, and MLflow behind the login guard.

All requests go through real sockets.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websockets
from websockets.typing import Origin, Subprotocol

from tests.sharing import ANSWER_SECONDS, free_port
from tilewright.services.mlflow_database import provide_mlflow_database
from tilewright.services.mlflow_server import start_mlflow_server
from tilewright.services.page_addresses import is_own_listener
from tilewright.services.prefect_server import (
    Login,
    announce_server,
    find_announced_server,
    login_at,
    start_prefect_pages,
)
from tilewright.services.server_credentials import Credentials, opens_local_server
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace

pytestmark = [pytest.mark.slow(seconds=0.3), pytest.mark.attack]

EVIL = "http://evil.example"
NOBODY = 65534
JSON = {"Content-Type": "application/json"}
PREFECT_ROUTES = (
    "/api/version", "/api/admin/version", "/api/admin/settings", "/api/flow_runs/filter",
    "/api/csrf-token", "/api/nothing",
)  # fmt: skip
"""Routes of Prefect's API. The pages themselves contain no data and need no login."""
MLFLOW_ROUTES = (
    "/", "/health", "/version", "/server-info", "/static-files/index.html", "/graphql",
    "/api/2.0/mlflow/experiments/search", "/ajax-api/2.0/mlflow/experiments/search",
    "/api/2.0/mlflow-artifacts/artifacts", "/get-artifact", "/v1/traces", "//health", "/nothing",
)  # fmt: skip
READ = "/api/2.0/mlflow/experiments/get?experiment_id=0"
WRITE = "/api/2.0/mlflow/experiments/create"


@dataclass(frozen=True)
class Pages:
    """Both running servers of a workspace."""

    workspace: Workspace
    credentials: Credentials
    prefect: str
    mlflow: str

    def client(self, server: str, **headers: str) -> httpx.Client:
        """Return a client that sends exactly these headers."""
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
        credentials = Credentials.for_workspace(workspace)
        prefect = start_prefect_pages(workspace, LOOPBACK, free_port(), credentials)
        mlflow = start_mlflow_server(workspace, LOOPBACK, free_port(), credentials)
    try:
        for process in (prefect.process, mlflow):
            process.wait()
        with announce_server(workspace, prefect):
            yield Pages(
                workspace, credentials, prefect.pages, mlflow.health.removesuffix("/health")
            )
    finally:
        prefect.process.stop()
        mlflow.stop()


# -- Prefect: PREFECT_SERVER_API_AUTH_STRING and PREFECT_SERVER_CORS_ALLOWED_ORIGINS ------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_prefect_answers_no_route_of_its_api_without_the_secret(pages: Pages, method: str) -> None:
    with pages.client("prefect") as client:
        for route in PREFECT_ROUTES:
            assert client.request(method, route, headers=JSON).status_code == 401, route


def test_prefect_answers_with_the_whole_secret_only(pages: Pages) -> None:
    with pages.client("prefect") as client:
        for login in wrong_logins(pages):
            header = {"Authorization": login.encode("latin-1")}
            assert client.get("/api/version", headers=header).status_code == 401, login
        assert client.get("/api/version", headers=pages.credentials.headers).status_code == 200


def test_prefect_lets_no_page_of_another_origin_read(pages: Pages) -> None:
    """A page of another origin cannot read an answer of Prefect, even if it knows the secret.

    A browser does not send the login for such a page by itself, because Prefect's pages keep the
    login in their own storage.
    """
    with pages.client("prefect", **pages.credentials.headers) as client:
        for origin in EVIL, "null", "http://127.0.0.1:1":
            reply = client.get("/api/version", headers={"Origin": origin})
            assert "access-control-allow-origin" not in reply.headers
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            assert client.options("/api/flow_runs/filter", headers=asked).status_code == 400


@pytest.mark.parametrize("route", ["/in", "/out"])
def test_prefects_sockets_want_the_secret_in_the_first_message(pages: Pages, route: str) -> None:
    url, credentials = pages.socket + route, pages.credentials
    assert talk(url, auth(credentials.login)) == SUCCESS
    for token in None, "", "x", credentials.key, credentials.login[:-1]:
        assert talk(url, auth(token)) == 1008, token
    for message in {"type": "x"}, {"type": "filter", "token": credentials.login}:
        assert talk(url, message) == 1008, message
    assert talk(url, auth("x"), additional_headers=credentials.headers) == 1008
    assert talk(url, auth("x"), origin=Origin(EVIL)) == 1008
    for other in "", "other":
        assert talk(url, subprotocol=other) in (403, 1002)


# -- MLflow: its settings for hosts and origins, behind the guard --------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_mlflow_answers_no_route_without_the_secret(pages: Pages, method: str) -> None:
    with pages.client("mlflow") as client:
        for route in MLFLOW_ROUTES:
            reply = client.request(method, route, headers=JSON)
            assert reply.status_code == 401, (method, route)
            assert reply.headers["WWW-Authenticate"].startswith("Bearer")


def wrong_logins(pages: Pages) -> list[str]:
    secret, key = pages.credentials.secret, pages.credentials.key
    texts = [":", "tilewright:", f"{secret}:", f"x:{secret[:-1]}", f"x:{secret}0", f"x:{key}"]
    basics = [f"Basic {base64.b64encode(text.encode()).decode()}" for text in texts]
    return [*basics, "", "Basic", "Basic !!", "Basic /w==", "Bearer", f"Bearer {secret[1:]}",
            f"Bearer {key}", f"Digest {secret}", secret, "Bearer \xff"]  # fmt: skip


def test_mlflow_answers_with_the_whole_secret_only(pages: Pages) -> None:
    secret = pages.credentials.secret
    with pages.client("mlflow") as client:
        for login in wrong_logins(pages):
            reply = client.get(READ, headers={"Authorization": login.encode("latin-1")})
            assert reply.status_code == 401, login
        assert client.get(READ, auth=("anybody", secret)).status_code == 200
        bearer = {"Authorization": f"Bearer {secret}"}
        assert client.get(READ, headers=bearer).status_code == 200


def test_a_link_logs_a_browser_in_and_leaves_no_trace(pages: Pages) -> None:
    key = pages.credentials.key
    with pages.client("mlflow") as browser:
        reply = browser.get("/", params={"key": key, "x": "1 &"})
        assert reply.status_code == 303
        assert reply.headers["Location"] == "/?x=1+%26"
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        cookie = reply.headers["Set-Cookie"]
        assert {"httponly", "samesite=strict", "path=/"} <= set(re.split("; *", cookie.lower()))
        assert browser.get(READ).status_code == 200
        assert browser.post(WRITE, json={"name": "mine"}).status_code == 200
    for wrong in key[:-1], key + "0", "", pages.credentials.secret:
        with pages.client("mlflow") as browser:
            assert browser.get("/", params={"key": wrong}).status_code == 401
            assert not browser.cookies
    with pages.client("mlflow", Cookie=f"{pages.credentials.cookie}=guess") as browser:
        assert browser.get(READ).status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%5C%5Cevil.example",
                                  "/%0d%0aX:%20y", "/http://evil.example"])  # fmt: skip
def test_a_link_leads_nowhere_else(pages: Pages, path: str) -> None:
    with httpx.Client(timeout=ANSWER_SECONDS) as browser:
        reply = browser.get(httpx.URL(f"{pages.mlflow}{path}?key={pages.credentials.key}"))
    assert reply.status_code == 303
    assert httpx.URL(pages.mlflow).join(reply.headers["Location"]).host == LOOPBACK
    assert "X" not in reply.headers


def test_a_person_without_the_link_is_told_where_it_is(pages: Pages) -> None:
    with pages.client("mlflow", Accept="text/html,*/*") as browser:
        reply = browser.get("/")
    assert reply.status_code == 401
    assert reply.headers["Content-Type"].startswith("text/html")
    assert "tilewright ui" in reply.text
    assert pages.credentials.secret not in reply.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example",
                                  "localhost.evil.example", "192.0.2.1:{port}", "0.0.0.0:{port}",
                                  "", "a@127.0.0.1", "127.0.0.1:80:80", "127.0.0.1/x"])  # fmt: skip
def test_mlflow_refuses_another_name_even_with_the_secret(pages: Pages, host: str) -> None:
    port = httpx.URL(pages.mlflow).port
    headers = {**pages.credentials.headers, "Host": host.format(port=port)}
    with pages.client("mlflow") as client:
        assert client.get(READ, headers=headers).status_code in (400, 403)
        for own in "localhost", f"localhost:{port}", "127.0.0.1", f"127.0.0.1:{port}":
            reply = client.get(READ, headers={**headers, "Host": own})
            assert reply.status_code == 200, own


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1", "http://127.0.0.1:1", "",
                                    "https://{own}", "http://{own}.evil.example"])  # fmt: skip
def test_a_page_of_another_origin_is_refused_even_with_the_secret(
    pages: Pages, origin: str
) -> None:
    """MLflow alone would allow a page from any port of this machine."""
    own = httpx.URL(pages.mlflow).netloc.decode()
    headers = {**pages.credentials.headers, "Origin": origin.format(own=own)}
    with pages.client("mlflow") as client:
        for method in "GET", "POST", "OPTIONS":
            reply = client.request(method, WRITE, json={"name": "planted"}, headers=headers)
            assert reply.status_code == 403, method
            assert "access-control-allow-origin" not in reply.headers
        reply = client.get(READ, headers={**headers, "Origin": f"http://{own}"})
        assert reply.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_elsewhere_embeds_nothing_though_the_cookie_comes_along(
    pages: Pages, site: str
) -> None:
    """Browsers send a cookie to every port of a host.

    The cookie therefore also accompanies requests from another user's page on this host.
    """
    cookie = f"{pages.credentials.cookie}={pages.credentials.key}"
    with pages.client("mlflow", **{"Cookie": cookie, "Sec-Fetch-Site": site}) as browser:
        for mode, dest in [("no-cors", "script"), ("no-cors", "image"), ("navigate", "iframe")]:
            headers = {"Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
            assert browser.get(READ, headers=headers).status_code == 403
        followed = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert browser.get(READ, headers=followed).status_code == 200
        assert browser.post(READ, headers=followed | JSON).status_code == 403


def test_mlflow_has_no_socket_to_enter(pages: Pages) -> None:
    url = pages.mlflow.replace("http", "ws") + "/api/events/in"
    assert talk(url, auth(pages.credentials.login)) in (403, 1008)
    assert talk(url, auth("x"), additional_headers=pages.credentials.headers) in (403, 1008)


# -- both servers --------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_pages_may_ask_no_other_machine(pages: Pages, server: str) -> None:
    """`tests/browser` checks that a real browser obeys this policy."""
    with pages.client(server, **pages.credentials.headers) as client:
        policy = client.get("/").headers["content-security-policy"]
    assert "connect-src 'self' " in policy
    assert "http" not in policy


def talk(url: str, first: object = None, subprotocol: str = "prefect", **options: object) -> object:
    """Open a WebSocket. Return the HTTP status of a refusal, a close code, or an answer."""

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


# -- clients of this project -------------------------------------------------------------------

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


def test_a_command_finds_the_servers_of_its_workspace(pages: Pages) -> None:
    api, workspace = f"{pages.prefect}/api", pages.workspace
    assert find_announced_server(workspace) == Login(api, Credentials(pages.credentials.secret))
    assert login_at(api, workspace) == find_announced_server(workspace)
    assert login_at("http://192.0.2.1:4200/api", workspace) is None
    assert opens_local_server(f"{pages.mlflow}/health", pages.credentials)
    other = Credentials("0" * 64)
    assert not opens_local_server(f"{pages.mlflow}/health", other)
    assert not opens_local_server(f"{api}/version", other)


def test_a_server_that_asks_for_no_login_is_not_told_the_secret(pages: Pages) -> None:
    """Prefect's health route answers everybody."""
    assert not opens_local_server(f"{pages.prefect}/api/health", pages.credentials)


@contextmanager
def listener_of_nobody() -> Iterator[int]:
    """Yield the port of a socket on which another user of this machine listens."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with socket.create_server((LOOPBACK, 0)) as server:
            os.write(writer, str(server.getsockname()[1]).encode())
            server.accept()
        os._exit(0)
    try:
        yield int(os.read(reader, 16))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_a_port_that_another_user_took_is_not_asked(pages: Pages) -> None:
    with listener_of_nobody() as port:
        assert not is_own_listener(port)
        assert login_at(f"http://{LOOPBACK}:{port}/api", pages.workspace) is None
    assert is_own_listener(int(httpx.URL(pages.prefect).port or 0))
    assert not is_own_listener(free_port())
