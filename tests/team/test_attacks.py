"""Attacks a team's servers through nginx and around it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from tests.processes import Address, listening
from tests.services.test_login_middleware import EVIL, MLFLOW_ROUTES, NOBODY, PREFECT_ROUTES
from tests.team.conftest import PREFIX, UPLOAD_LIMIT, USERS, Team, encoded, eventually

pytestmark = [pytest.mark.team, pytest.mark.attack, pytest.mark.slow(seconds=1)]

SERVERS = pytest.mark.parametrize("server", ["prefect", "mlflow"])
A_READ = {"prefect": "/api/version", "mlflow": "/api/2.0/mlflow/experiments/get?experiment_id=0"}
API = "/api/2.0/mlflow"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
SECRET = "nobody may read this"
GIBIBYTE = 1 << 30


# -- logins --------------------------------------------------------------------------------------


@SERVERS
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_no_route_answers_without_a_login(team: Team, server: str, method: str) -> None:
    with team.client(server) as client:
        for route in (*PREFECT_ROUTES, *MLFLOW_ROUTES, "/", "/api/health", "/ui-settings", "/docs"):
            assert client.request(method, route).status_code == 401, route


@SERVERS
def test_only_the_whole_password_of_a_user_logs_in(team: Team, server: str) -> None:
    wrong = (":", "ada:", "ada", f"ada:{team.secret[:-1]}", f"ada:{team.secret}0",
             f"bob:{team.secret}", f":{team.secret}", team.token)  # fmt: skip
    for user in wrong:
        with team.client(server, user) as client:
            assert client.get(A_READ[server]).status_code == 401, user
    with team.client(server, team.ada) as client:
        assert client.get(A_READ[server]).status_code == 200


@SERVERS
def test_a_user_who_was_removed_is_refused_at_the_next_request(team: Team, server: str) -> None:
    team.htpasswd("-i", "-B", team.users, "bob", password="s3cret")
    with team.client(server, "bob:s3cret") as client:
        assert client.get(A_READ[server]).status_code == 200
        team.htpasswd("-D", team.users, "bob")
        assert client.get(A_READ[server]).status_code == 401


def test_nothing_answers_without_tls(team: Team) -> None:
    for server in "prefect", "mlflow":
        address = team.address(server).replace("https", "http")
        assert httpx.get(address, auth=("ada", team.secret)).status_code == 400


def connected(team: Team, path: str, token: str, **headers: str) -> object:
    """Return the status of a refused WebSocket, or Prefect's first answer."""
    origin = Origin(headers.pop("Origin")) if "Origin" in headers else None
    address = f"wss://localhost:{team.ports['prefect']}{path}"
    try:
        with connect(
            address, ssl=team.context, additional_headers=headers, origin=origin, proxy=None,
            subprotocols=[Subprotocol("prefect")],
        ) as client:  # fmt: skip
            client.send(json.dumps({"type": "auth", "token": token}))
            with suppress(TimeoutError):
                return json.loads(client.recv(timeout=60))["type"]
            return None
    except InvalidStatus as refused:
        return refused.response.status_code


@pytest.mark.parametrize("path", ["/api/events/in", "/api/events/out", "/api/logs/out"])
def test_sockets_want_a_login_and_prefects_token(team: Team, path: str) -> None:
    login = {"Authorization": f"Basic {encoded(team.ada)}"}
    assert connected(team, path, team.token, **login) == "auth_success"
    assert connected(team, path, team.token) == 401
    assert connected(team, path, team.token, Origin=EVIL, **login) == 403
    with pytest.raises(Exception, match="1008"):
        connected(team, path, "wrong", **login)


# -- pages of other origins ------------------------------------------------------------------------


@SERVERS
@pytest.mark.parametrize("origin", [EVIL, "null", "https://evil.example", "http://localhost",
                                    "https://localhost", "https://localhost.evil.example",
                                    "http://{own}", "https://{own}.evil.example"])  # fmt: skip
def test_a_page_of_another_origin_is_refused(team: Team, server: str, origin: str) -> None:
    own = f"localhost:{team.ports[server]}"
    with team.client(server, team.ada, Origin=origin.format(own=own)) as client:
        for method in "GET", "POST", "OPTIONS":
            reply = client.request(method, A_READ[server])
            assert reply.status_code == 403, method
            assert "access-control-allow-origin" not in reply.headers
        headers = {"Origin": f"https://{own}"}
        assert client.get(A_READ[server], headers=headers).status_code == 200


@SERVERS
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_elsewhere_embeds_nothing(team: Team, server: str, site: str) -> None:
    with team.client(server, team.ada, **{"Sec-Fetch-Site": site}) as client:
        for mode, kind in [("no-cors", "script"), ("no-cors", "image"), ("navigate", "iframe")]:
            headers = {"Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": kind}
            assert client.get(A_READ[server], headers=headers).status_code == 403
        followed = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert client.get(A_READ[server], headers=followed).status_code == 200
        assert client.post(A_READ[server], headers=followed).status_code == 403


@SERVERS
@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:{port}",
                                  "localhost.evil.example", "a@localhost"])  # fmt: skip
def test_another_host_name_is_refused(team: Team, server: str, host: str) -> None:
    name = host.format(port=team.ports[server])
    with team.client(server, team.ada, Host=name) as client:
        assert client.get(A_READ[server]).status_code in (400, 421)


def test_prefect_wants_its_token_against_forged_requests(team: Team) -> None:
    with team.client("prefect", team.ada) as client:
        assert client.post("/api/flow_runs/filter", json={}).status_code == 403
    assert isinstance(team.ask("flow_runs/filter", {}), list)


@SERVERS
def test_pages_may_ask_no_other_machine(team: Team, server: str) -> None:
    with team.client(server, team.ada) as client:
        reply = client.get("/")
        assert "connect-src 'self' " in reply.headers["content-security-policy"]
        assert reply.headers["x-frame-options"] == "SAMEORIGIN"


def test_prefects_pages_ask_for_no_second_login(team: Team) -> None:
    with team.client("prefect", team.ada) as client:
        settings = client.get("/ui-settings").json()
    assert (settings["auth"], settings["api_url"]) == (None, "/api")


# -- uploads -------------------------------------------------------------------------------------


def test_an_upload_of_ten_gigabytes_is_refused_before_it_is_sent(team: Team) -> None:
    head = (
        f"PUT {FILES}/large HTTP/1.1\r\nHost: localhost:{team.ports['mlflow']}\r\n"
        f"Authorization: Basic {encoded(team.ada)}\r\nContent-Length: {10 * GIBIBYTE}\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", team.ports["mlflow"])) as plain,
        team.context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(head.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_an_upload_of_unknown_length_ends_at_the_limit(team: Team) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(2 * UPLOAD_LIMIT // 65536):
            yield bytes(65536)

    with team.client("mlflow", team.ada) as client:
        try:
            status = client.put(f"{FILES}/endless", content=parts()).status_code
        except httpx.WriteError:  # nginx closed the connection while we were sending
            status = 413
        assert status == 413
        small = client.put(f"{FILES}/small", content=iter([b"x" * 1000]))
        assert small.status_code == 200
        assert len(client.get(f"{FILES}/small").content) == 1000
        assert client.get(f"{FILES}/endless").status_code in (404, 500)


# -- paths outside the root ------------------------------------------------------------------------


@pytest.fixture
def private() -> Iterator[Path]:
    """Yield a folder of root that other users may enter, but whose file they cannot read.

    Others cannot write to the folder either.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        file = Path(folder) / "secret"
        file.write_text(SECRET)
        file.chmod(0o600)
        yield Path(folder)
        assert [path.name for path in Path(folder).iterdir()] == ["secret"]
        assert file.read_text() == SECRET


def new_run(client: httpx.Client, place: str = "") -> str:
    """Make an MLflow run in a new experiment that keeps its files in `place`."""
    experiment = {"name": os.urandom(8).hex()} | ({"artifact_location": place} if place else {})
    made = client.post(f"{API}/experiments/create", json=experiment)
    assert made.status_code == 200, made.text
    number = made.json()["experiment_id"]
    run = client.post(f"{API}/runs/create", json={"experiment_id": number}).json()
    return str(run["run"]["info"]["run_id"])


def attempts(client: httpx.Client, run: str) -> list[httpx.Response]:
    """Try to read a file of a run, to overwrite it, and to write two more."""
    upload = f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path="
    headers = {"Content-Type": "application/json"}
    return [
        client.get(f"/get-artifact?run_id={run}&path=secret"),
        client.post(f"{upload}secret", content=b"planted", headers=headers),
        client.post(f"{upload}planted", content=b"planted", headers=headers),
        client.post(f"{upload}below/planted", content=b"planted", headers=headers),
    ]


def test_an_experiment_elsewhere_opens_no_file_of_another_user(team: Team, private: Path) -> None:
    """MLflow records such a location, but the operating system denies access to it."""
    with team.client("mlflow", team.ada) as client:
        for place in private.as_uri(), str(private), team.state.as_uri() + "/prefect":
            for reply in attempts(client, new_run(client, place)):
                assert reply.status_code >= 400, reply.text
                assert SECRET not in reply.text
    assert not (team.state / "prefect" / "planted").exists()


@pytest.mark.parametrize("path", ["../../../{private}/secret", "%2e%2e/%2e%2e/{private}/secret",
                                  "..%2f..%2f{private}", "x/../../../{private}/secret",
                                  "%252e%252e/{private}/secret", "{private}/secret"])  # fmt: skip
def test_no_path_leaves_the_root(team: Team, private: Path, path: str) -> None:
    path = path.format(private=str(private).lstrip("/"))
    with team.client("mlflow", team.ada) as client:
        address = httpx.URL(f"{team.address('mlflow')}{FILES}/{path}")
        reply = client.get(address)
        assert reply.status_code >= 300
        assert SECRET not in reply.text
        client.delete(address)  # MLflow answers 200 even for missing files; `private` checks
        run = new_run(client)
        for route in f"/get-artifact?run_id={run}&path={path}", f"{FILES}?path={path}":
            assert SECRET not in client.get(route).text


def test_no_link_below_the_root_leads_out(team: Team, private: Path) -> None:
    """Only an administrator could make such a link. MLflow follows it and is denied access."""
    with team.client("mlflow", team.ada) as client:
        client.put(f"{FILES}/linked/own", content=b"own")
        link = team.state / "mlflow" / "artifacts" / "linked" / "link"
        link.symlink_to(private)
        assert client.get(f"{FILES}/linked/link/secret").status_code >= 400
        assert client.put(f"{FILES}/linked/link/planted", content=b"x").status_code >= 400
        assert client.get(f"{FILES}/linked/own").content == b"own"


# -- another user of the machine -------------------------------------------------------------------


def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    dropped = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    return subprocess.run(
        [*dropped, *command], cwd="/", capture_output=True, text=True, check=False
    )


def test_another_user_gets_past_nginx_nowhere(team: Team) -> None:
    sent = ["curl", "--silent", "--show-error", "--output", "/dev/null", "--write-out",
            "%{http_code}"]  # fmt: skip
    internal = f"http://127.0.0.1:{team.ports['internal']}/api"
    for route in "version", "admin/settings", "flow_runs/filter":
        assert as_nobody(*sent, f"{internal}/{route}").stdout == "401"
    mlflow = str(team.place / "run" / "mlflow" / "socket")
    refused = as_nobody(*sent, "--unix-socket", mlflow, "http://localhost/health")
    assert refused.returncode == 7, "it connected"
    for role in f"{PREFIX}-mlflow", "postgres":
        command = ("psql", "-p", str(team.ports["database"]), "-U", role, f"{PREFIX}-mlflow")
        assert "Peer authentication failed" in as_nobody(*command, "-c", "SELECT 1").stderr


def test_another_user_reads_neither_files_nor_secrets(team: Team) -> None:
    files = ["etc/users", "etc/prefect-token", "etc/worker-password", "site.conf", "state/logs",
             *(f"state/{user}" for user in USERS)]  # fmt: skip
    for name in files:
        assert "Permission denied" in as_nobody("ls", "-1", f"{team.place}/{name}/").stderr + (
            as_nobody("cat", f"{team.place}/{name}").stderr
        )
    words = "\n".join(" ".join(process.cmdline()) for process in _processes(team))
    for secret in team.token, team.secret, encoded(team.token), _worker_password(team):
        assert secret not in words
    assert "mlflow" in words


def _worker_password(team: Team) -> str:
    return (team.place / "etc" / "worker-password").read_text().strip()


def _processes(team: Team) -> list[psutil.Process]:
    processes = []
    for process in psutil.Process(team.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.cmdline()
            processes.append(process)
    return processes


def test_each_server_is_a_user_of_its_own_without_rights(team: Team) -> None:
    def users() -> dict[str, set[str]]:
        users: dict[str, set[str]] = {}
        for process in _processes(team):
            with suppress(psutil.NoSuchProcess):
                words = process.cmdline()
                if "-P" in words:
                    users.setdefault(words[words.index("-m") + 1], set()).add(process.username())
        return users

    wanted = {"prefect": {f"{PREFIX}-prefect", f"{PREFIX}-worker"}, "mlflow": {f"{PREFIX}-mlflow"}}
    assert eventually("all servers", lambda: users() == wanted)
    for process in _processes(team):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            if process.username().startswith(PREFIX):
                status = Path(f"/proc/{process.pid}/status").read_text()
                assert "CapEff:\t0000000000000000" in status
                assert "NoNewPrivs:\t1" in status


def test_servers_listen_on_loopback_and_mlflow_on_no_port(team: Team) -> None:
    result = listening(team.process.pid)
    assert Address("127.0.0.1", team.ports["internal"]) in result
    assert {address.ip for address in result} == {"127.0.0.1"}
    servers = [process for process in _processes(team) if "mlflow" in process.cmdline()]
    assert servers
    assert not any(listening(process.pid) for process in servers)
