"""Attacks a team's servers over real sockets, and uses them by their own clients with a login.

Each attack on artifacts succeeds against `mlflow server` with the options that a team's had before.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websockets
from websockets.typing import Subprotocol

from tests.services.test_guard import MLFLOW_ROUTES, PREFECT_ROUTES
from tests.sharing import ANSWER_SECONDS, OURS, free_port
from tilewright.services.mlflow_database import provide_mlflow_database
from tilewright.services.prefect_server import _template
from tilewright.services.server_process import LOOPBACK, ServerProcess, start
from tilewright.services.users import add_user, remove_user

pytestmark = [pytest.mark.slow(seconds=0.4), pytest.mark.attack]

PAGES = "https://mlflow.example.org"
SECRET_TEXT = "what only root reads"
JSON = {"Content-Type": "application/json"}
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
         "DO_NOT_TRACK": "true"}  # fmt: skip


@dataclass(frozen=True)
class Team:
    """Both servers of a team, up."""

    folder: Path
    secret: str
    prefect: str
    mlflow: str

    def client(self, server: str, login: tuple[str, str] | None = None) -> httpx.Client:
        address = getattr(self, server)
        return httpx.Client(base_url=address, auth=login, timeout=ANSWER_SECONDS, trust_env=False)

    @property
    def users(self) -> Path:
        return self.folder / "users"

    @property
    def login(self) -> tuple[str, str]:
        return "ada", self.secret

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def private(self) -> Path:
        """A folder that its owner alone can read, beside what the servers keep."""
        return self.folder / "private"

    def is_untouched(self) -> bool:
        return {each.name: each.read_text() for each in self.private.iterdir()} == {
            "secret": SECRET_TEXT
        }


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = tmp_path_factory.mktemp("team")
    for name in "artifacts", "private":
        (folder / name).mkdir(mode=0o700)
    (folder / "private" / "secret").write_text(SECRET_TEXT)
    provide_mlflow_database(folder / "mlflow.db")
    if _template().exists():
        shutil.copyfile(_template(), folder / "prefect.db")
    secret = add_user(folder / "users", "ada")
    kept = {name: "" for name in os.environ if name.startswith(OURS)}
    with pytest.MonkeyPatch.context() as patched:
        for name in kept:
            patched.delenv(name)
        servers = {name: started(folder, name, secret) for name in ("prefect", "mlflow")}
    try:
        for server in servers.values():
            server.wait()
        addresses = {
            name: server.health.removesuffix("/health").removesuffix("/api")
            for name, server in servers.items()
        }
        yield Team(folder, secret, **addresses)
    finally:
        for server in servers.values():
            server.stop()


def started(folder: Path, name: str, secret: str) -> ServerProcess:
    port = free_port()
    options = {"prefect": [], "mlflow": ["--artifacts", str(folder / "artifacts")]}[name]
    return start(
        name,
        [sys.executable, "-m", "tilewright.services.team_server", name, "--port", str(port),
         "--users", str(folder / "users"), "--pages", PAGES, *options],
        health=f"http://{LOOPBACK}:{port}{'/api' * (name == 'prefect')}/health",
        log=folder / f"{name}.log",
        environment=QUIET | {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}/prefect.db",
            "PREFECT_SERVER_UI_API_URL": "/api",
            "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/mlflow.db",
        },
        headers={"Authorization": basic("ada", secret)},
    )  # fmt: skip


def basic(name: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{secret}'.encode()).decode()}"


@pytest.fixture
def mlflow(team: Team) -> Iterator[httpx.Client]:
    with team.client("mlflow", team.login) as client:
        yield client
    assert team.is_untouched()


SERVERS = pytest.mark.parametrize("server", ["prefect", "mlflow"])
A_READ = {"prefect": "/api/health", "mlflow": "/health"}
API = "/api/2.0/mlflow"


# -- who gets in -------------------------------------------------------------------------------


@SERVERS
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_without_a_login_every_route_is_401(team: Team, server: str, method: str) -> None:
    with team.client(server) as client:
        for route in PREFECT_ROUTES + MLFLOW_ROUTES:
            reply = client.request(method, route, headers=JSON)
            assert reply.status_code == 401, route
            assert reply.headers["WWW-Authenticate"].startswith("Basic ")


@SERVERS
def test_a_login_is_name_and_secret(team: Team, server: str) -> None:
    route, secret = A_READ[server], team.secret
    wrong = [basic(*pair) for pair in (
        ("ada", secret[:-1]), ("ada", secret + "0"), ("ada", ""), ("Ada", secret), ("", secret),
        ("bob", secret), ("ada:", secret), ("ada", "x" * 1000), ("ada", "\0"), ("ada", "é"),
    )]  # fmt: skip
    hashed = team.users.read_text().strip().rpartition(":")[2]
    wrong += [basic("ada", hashed), "Basic", "Basic !!", "Basic /w==", f"Bearer {secret}", secret]
    with team.client(server) as client:
        for each in wrong:
            reply = client.get(route, headers={"Authorization": each})
            assert reply.status_code == 401, each[:80]
        right = {"Authorization": basic("ada", secret)}
        assert client.get(route, headers=right).status_code == 200
        twice = [("Authorization", basic("ada", secret)), ("Authorization", wrong[0])]
        assert client.get(route, headers=twice).status_code == 401


def test_users_come_and_go_while_the_servers_run(team: Team) -> None:
    first = add_user(team.users, "bob")
    with team.client("prefect") as prefect, team.client("mlflow") as mlflow:

        def statuses(secret: str) -> list[int]:
            headers = {"Authorization": basic("bob", secret)}
            return [
                client.get(route, headers=headers).status_code
                for client, route in ((prefect, "/api/health"), (mlflow, "/health"))
                for _ in range(2)
            ]

        assert statuses(first) == [200] * 4
        second = add_user(team.users, "bob")
        assert (statuses(first), statuses(second)) == ([401] * 4, [200] * 4)
        remove_user(team.users, "bob")
        assert statuses(second) == [401] * 4
        assert mlflow.get("/health", auth=team.login).status_code == 200


def test_a_users_file_that_others_can_read_lets_nobody_in(team: Team) -> None:
    team.users.chmod(0o644)
    try:
        with team.client("mlflow", team.login) as client:
            assert client.get("/health").status_code == 401
    finally:
        team.users.chmod(0o600)
    with team.client("mlflow", team.login) as client:
        assert client.get("/health").status_code == 200


@SERVERS
def test_pages_are_its_own_and_the_proxys(team: Team, server: str) -> None:
    """As a proxy passes them on that keeps `Host` and `Origin`."""
    with team.client(server, team.login) as client:

        def status(**headers: str) -> int:
            return client.get(A_READ[server], headers=headers).status_code

        assert status(Host="mlflow.example.org", Origin=PAGES) == 200
        assert status(Host="mlflow.example.org", Origin="http://mlflow.example.org") == 403
        assert status(Host="mlflow.example.org", Origin="https://evil.example") == 403
        assert status(Origin=PAGES) == 403
        assert status(Host="evil.example") == 421
        assert status(**{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}) == 403
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post(A_READ[server], content=b"a=b", headers=form).status_code == 415


@pytest.mark.parametrize(("token", "answer"), [("ada", {"type": "auth_success"}), ("x", 1008)])
def test_sockets_of_prefect_want_a_login(team: Team, token: str, answer: object) -> None:
    url = team.prefect.replace("http", "ws") + "/api/events/out"
    login = f"{token}:{team.secret}"
    by_header = {"additional_headers": {"Authorization": basic(token, team.secret)}}

    async def talk(said: str | None, **options: object) -> object:
        try:
            async with websockets.connect(
                url, subprotocols=[Subprotocol("prefect")], proxy=None, **options
            ) as socket:  # type: ignore[arg-type]
                await socket.send(json.dumps({"type": "auth", "token": said}))
                return json.loads(await asyncio.wait_for(socket.recv(), ANSWER_SECONDS))
        except websockets.ConnectionClosed as closed:
            return closed.rcvd and closed.rcvd.code

    assert asyncio.run(talk(login)) == answer
    assert asyncio.run(talk(None, **by_header)) == answer


# -- artifacts ---------------------------------------------------------------------------------


def error(reply: httpx.Response) -> str:
    """What a refused request is told."""
    assert reply.status_code == 403, (reply.status_code, reply.text)
    said = reply.json()
    assert said["error_code"] == "PERMISSION_DENIED"
    assert "no place for artifacts on this server" in said["message"]
    return str(said["message"])


def experiment(client: httpx.Client, name: str, **more: str) -> httpx.Response:
    return client.post(f"{API}/experiments/create", json={"name": name, **more})


def new_run(client: httpx.Client, name: str) -> str:
    number = experiment(client, name).json()["experiment_id"]
    reply = client.post(f"{API}/runs/create", json={"experiment_id": number})
    return str(reply.json()["run"]["info"]["run_id"])


PLACES = [
    "file://{private}", "file:{private}", "FILE://{private}", "file://localhost{private}",
    "{private}", "file://{artifacts}", "{artifacts}/x", "file://{link}", "x", "./x", "../x", "s3://bucket/x",
    "http://127.0.0.1:9/api/2.0/mlflow-artifacts/artifacts/x", "ftp://127.0.0.1/x", "dbfs:/x",
    "hdfs:/x", "mlflow-artifacts://127.0.0.1:9/x", "mlflow-artifacts:/../private",
    "mlflow-artifacts:/x/%2e%2e/%2e%2e/private", "mlflow-artifacts:/%252e%252e/x",
    "mlflow-artifacts:/x?y", "mlflow-artifacts:x",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("field", ["artifact_location", "artifactLocation"])
def test_an_experiment_has_its_files_on_this_server(
    team: Team, mlflow: httpx.Client, tmp_path: Path, place: str, field: str
) -> None:
    (tmp_path / "link").symlink_to(team.private)
    named = place.format(private=team.private, artifacts=team.artifacts, link=tmp_path / "link")
    reply = experiment(mlflow, f"{field} {place}", **{field: named})
    # MLflow itself refuses some before it asks where artifacts may be
    assert reply.status_code == 400 or error(reply), reply.text
    found = mlflow.get(f"{API}/experiments/get-by-name?experiment_name={field} {place}")
    assert found.status_code == 404


@pytest.mark.parametrize("place", [*PLACES, "models://host/x/1", "runs://host/x"])
def test_a_model_has_its_files_on_this_server(
    team: Team, mlflow: httpx.Client, tmp_path: Path, place: str
) -> None:
    (tmp_path / "link").symlink_to(team.private)
    mlflow.post(f"{API}/registered-models/create", json={"name": "m"})
    source = place.format(private=team.private, artifacts=team.artifacts, link=tmp_path / "link")
    run = new_run(mlflow, f"model {place}")
    for more in {}, {"run_id": run}:
        asked = {"name": "m", "source": source, **more}
        reply = mlflow.post(f"{API}/model-versions/create", json=asked)
        assert reply.status_code == 400 or error(reply), reply.text


def test_no_link_below_the_root_is_followed(team: Team, mlflow: httpx.Client) -> None:
    """Neither a folder's nor a file's, to read, write, list or remove."""
    files, run = "/api/2.0/mlflow-artifacts/artifacts", new_run(mlflow, "links")
    place = mlflow.get(f"{API}/runs/get?run_id={run}").json()["run"]["info"]["artifact_uri"]
    kept = team.artifacts / place.removeprefix("mlflow-artifacts:/")
    kept.mkdir(parents=True)
    (kept / "folder").symlink_to(team.private)
    (kept / "file").symlink_to(team.private / "secret")
    (kept / "own").mkdir()
    (kept / "own" / "up").symlink_to("../../..")
    below = kept.relative_to(team.artifacts)
    for path in "folder/secret", "file", "folder", "own/up/x":
        error(mlflow.get(f"{files}/{below}/{path}"))
        error(mlflow.get(f"/get-artifact?run_id={run}&path={path}"))
        error(mlflow.put(f"{files}/{below}/{path}", content=b"planted"))
        error(mlflow.delete(f"{files}/{below}/{path}"))
        error(mlflow.post(f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path={path}",
                          content=b"planted", headers=JSON))  # fmt: skip
    for path in "folder", "own/up":
        error(mlflow.get(f"{API}/artifacts/list?run_id={run}&path={path}"))
        error(mlflow.get(f"{files}?path={below}/{path}"))
    listed = mlflow.get(f"{API}/artifacts/list?run_id={run}").json()["files"]
    assert [each["path"] for each in listed] == ["own"]
    assert mlflow.delete(f"{files}/{below}/own").status_code == 200
    assert sorted(each.name for each in kept.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("path", ["../private/secret", "%2e%2e/private/secret", "..%2fprivate",
                                  "x/../../private/secret", "%252e%252e/private/secret",
                                  "{private}/secret"])  # fmt: skip
def test_no_path_leaves_the_root(team: Team, mlflow: httpx.Client, path: str) -> None:
    run, path = new_run(mlflow, f"path {path}"), path.format(private=team.private)
    address = httpx.URL(f"{team.mlflow}/api/2.0/mlflow-artifacts/artifacts/{path}")
    for method in "GET", "PUT", "DELETE":
        reply = mlflow.request(method, address, content=b"planted" if method == "PUT" else None)
        # the client or a proxy may have made it another path, which leads nowhere
        assert reply.status_code in (308, 400, 403, 404, 405), (method, reply.text)
    for route in (
        f"/get-artifact?run_id={run}&path={path}",
        f"{API}/artifacts/list?run_id={run}&path={path}",
        f"/api/2.0/mlflow-artifacts/artifacts?path={path}",
    ):
        reply = mlflow.get(route)
        refused = reply.status_code in (400, 403, 404)
        assert refused or "files" not in reply.json(), (route, reply.text)
        assert SECRET_TEXT not in reply.text
    upload = f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path={path}"
    assert mlflow.post(upload, content=b"planted", headers=JSON).status_code in (400, 403)


def execute(team: Team, *statements: str) -> None:
    with closing(sqlite3.connect(team.folder / "mlflow.db", timeout=60)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_records_that_name_other_places_open_none(team: Team, mlflow: httpx.Client) -> None:
    """As they may be in a database from before, or from somebody else."""
    place = team.private.as_uri()
    execute(
        team,
        "INSERT INTO experiments (experiment_id, name, artifact_location, workspace, "
        f"lifecycle_stage) VALUES (70, 'old', '{place}', 'default', 'active')",
        "INSERT INTO runs (run_uuid, experiment_id, artifact_uri, lifecycle_stage, status, "
        f"start_time, source_type, user_id) VALUES ('old', 70, '{place}', 'active', 'RUNNING', 0, "
        "'LOCAL', '')",
        "INSERT INTO logged_models (model_id, experiment_id, name, artifact_location, "
        "creation_timestamp_ms, last_updated_timestamp_ms, status, lifecycle_stage) "
        f"VALUES ('m-old', 70, 'm', '{place}', 0, 0, 1, 'active')",
        "INSERT INTO registered_models (name, workspace) VALUES ('old', 'default')",
        "INSERT INTO model_versions (name, version, source, storage_location, workspace, "
        f"current_stage) VALUES ('old', 1, '{place}', '{place}', 'default', 'None')",
    )
    ajax = "/ajax-api/2.0/mlflow"
    for route in (
        "/get-artifact?run_id=old&path=secret", f"{API}/artifacts/list?run_id=old",
        "/model-versions/get-artifact?name=old&version=1&path=secret",
        f"{ajax}/logged-models/m-old/artifacts/files?artifact_file_path=secret",
        f"{API}/logged-models/m-old/artifacts/directories",
    ):  # fmt: skip
        error(mlflow.get(route))
    upload = f"{ajax}/upload-artifact?run_uuid=old&path=planted"
    error(mlflow.post(upload, content=b"planted", headers=JSON))
    error(mlflow.post(f"{API}/runs/create", json={"experiment_id": "70"}))
    error(mlflow.post(f"{API}/logged-models", json={"experiment_id": "70", "name": "x"}))
    (team.artifacts / "link").symlink_to(team.private)
    for other in (
        str(team.private),
        f"file://localhost{team.private}",
        f"{team.artifacts.as_uri()}/link",
        f"{team.artifacts.as_uri()}/../private",
        f"{team.artifacts.as_uri()}/x/%2e%2e/%2e%2e/private",
        "mlflow-artifacts:/link",
        "mlflow-artifacts:/../private",
        "private",
        "../private",
        "mlflow-artifacts:/%2e%2e/private",
        f"mlflow-artifacts:/{team.private}",
        "s3://b/x",
        f"http://x/api/2.0/mlflow-artifacts/artifacts/{team.private}",
        f"runs:/old{team.private}",
        "http://x/api/2.0/mlflow-artifacts/artifacts/../private",
        "models:/old/1",
        "mlflow-artifacts://127.0.0.1:9/link",
    ):
        execute(team, f"UPDATE runs SET artifact_uri = '{other}' WHERE run_uuid = 'old'")
        for path in "secret", "planted":
            reply = mlflow.get(f"/get-artifact?run_id=old&path={path}")
            assert reply.status_code in (400, 403, 404, 500), (other, reply.text)
            assert SECRET_TEXT not in reply.text
        assert "secret" not in mlflow.get(f"{API}/artifacts/list?run_id=old").text
        mlflow.post(upload, content=b"planted", headers=JSON)
        assert team.is_untouched(), other
    query = {"query": 'query {mlflowListArtifacts(input: {runId: "old"}) {files {path}}}'}
    assert "secret" not in mlflow.post("/graphql", json=query).text


def test_a_trace_opens_no_other_place(team: Team, mlflow: httpx.Client) -> None:
    execute(
        team,
        "INSERT INTO trace_info (request_id, experiment_id, timestamp_ms, status, "
        "db_payload_generation) VALUES ('tr-1', 0, 0, 'OK', 0)",
        "INSERT INTO trace_tags (request_id, key, value) "
        f"VALUES ('tr-1', 'mlflow.artifactLocation', '{team.private.as_uri()}')",
    )
    tag = {"key": "mlflow.artifactLocation", "value": team.private.as_uri()}
    mlflow.patch("/api/3.0/mlflow/traces/tr-1/tags", json=tag)
    (team.private / "traces.json").write_text('{"spans": []}')
    try:
        for more in "", "&path=00000000-0000-0000-0000-000000000000":
            error(mlflow.get(f"/ajax-api/3.0/mlflow/get-trace-artifact?request_id=tr-1{more}"))
    finally:
        (team.private / "traces.json").unlink()


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/ajax-api/3.0/mlflow/assistant/config"),
    ("POST", "/ajax-api/3.0/mlflow/assistant/message"),
    ("POST", "/ajax-api/3.0/jobs/"), ("POST", "/ajax-api/3.0/jobs/search"),
    ("POST", "/ajax-api/3.0/mlflow/scorer/invoke"), ("POST", "/ajax-api/3.0/mlflow/issues/invoke"),
    ("POST", "/ajax-api/3.0/mlflow/genai/evaluate/invoke"),
    ("POST", "/api/2.0/mlflow/webhooks"), ("POST", "/gateway/openai/v1/responses"),
    ("POST", "/api/3.0/mlflow/gateway/endpoints/create"),
    ("POST", "/ajax-api/2.0/mlflow/gateway-proxy"), ("POST", "/api/3.0/mlflow/scorers/register"),
    ("POST", "/ajax-api/2.0/mlflow/runs/create-promptlab-run"),
    ("POST", "/ajax-api/3.0/mlflow/demo/generate"),
    ("POST", "//ajax-api/3.0/mlflow/assistant/message"),
    ("POST", "/ajax-api/3.0/mlflow/runs/../assistant/message"),
    ("POST", "/api/3.0/mlflow/prompt-optimization/jobs"), ("GET", "/api/3.0/mlflow/mcp-servers"),
])  # fmt: skip
def test_the_server_does_nothing_but_records(
    team: Team, mlflow: httpx.Client, method: str, path: str
) -> None:
    reply = mlflow.request(method, httpx.URL(team.mlflow + path), json={})
    assert reply.status_code == 403
    assert reply.json()["error_code"] == "FEATURE_DISABLED"


# -- use ---------------------------------------------------------------------------------------

LOG = """
import sys
from pathlib import Path
import mlflow
mlflow.set_experiment("ours")
Path("folder/below").mkdir(parents=True)
Path("folder/below/a.txt").write_text("a")
Path("note.txt").write_text("kept")
with mlflow.start_run() as run:
    mlflow.log_metric("m", 1.0)
    mlflow.log_artifact("note.txt")
    mlflow.log_artifact("note.txt")
    mlflow.log_artifacts("folder", "all")
    mlflow.log_dict({"x": 1}, "d/x.json")
number = run.info.run_id
place = mlflow.artifacts.download_artifacts(run_id=number, dst_path="back")
assert {str(p.relative_to(place)) for p in Path(place).rglob("*") if p.is_file()} == {
    "note.txt", "all/below/a.txt", "d/x.json"
}
assert mlflow.artifacts.load_text(f"runs:/{number}/note.txt") == "kept"
client = mlflow.MlflowClient()
client.create_registered_model("named")
made = client.create_model_version("named", f"{run.info.artifact_uri}/all", run_id=number)
mlflow.artifacts.download_artifacts("models:/named/1", dst_path="model")
assert Path("model/below/a.txt").read_text() == "a"
assert [f.path for f in client.list_artifacts(number, "all")] == ["all/below"]
client.create_model_version("named", f"runs:/{number}/all", run_id=number)
@mlflow.trace
def traced(x): return x + 1
traced(1)
mlflow.flush_trace_async_logging()
assert len(mlflow.search_traces(max_results=5, locations=[run.info.experiment_id])) == 1
print(client.get_run(number).data.metrics)
"""
FLOW = """
from prefect import flow, task
from prefect.client.orchestration import get_client
@task
def square(x): return x * x
@flow
def ours(): return square(3)
assert ours() == 9
with get_client(sync_client=True) as client:
    print([run.state.name for run in client.read_flow_runs()])
"""


def client_of(team: Team, program: str, folder: Path, secret: str) -> tuple[int, str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    login = {
        "MLFLOW_TRACKING_URI": team.mlflow, "MLFLOW_TRACKING_USERNAME": "ada",
        "MLFLOW_TRACKING_PASSWORD": secret, "PREFECT_API_URL": f"{team.prefect}/api",
        "PREFECT_API_AUTH_STRING": f"ada:{secret}", "PREFECT_HOME": str(folder / "prefect"),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=kept | QUIET | login, cwd=folder, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_mlflows_client_keeps_and_reads_artifacts(team: Team, tmp_path: Path) -> None:
    code, printed, errors = client_of(team, LOG, tmp_path, team.secret)
    assert code == 0, errors
    assert printed.splitlines()[-1] == "{'m': 1.0}"
    assert list(team.artifacts.rglob("note.txt"))
    for version in "1", "2":
        route = f"/model-versions/get-artifact?name=named&version={version}&path=below/a.txt"
        with team.client("mlflow", team.login) as client:
            assert client.get(route).text == "a"
    assert not [each for each in team.artifacts.rglob("*") if each.name.endswith(".tmp")]


def test_prefects_client_runs_flows(team: Team, tmp_path: Path) -> None:
    code, printed, errors = client_of(team, FLOW, tmp_path, team.secret)
    assert code == 0, errors
    assert printed.splitlines()[-1] == "['Completed']"
    assert "401" not in errors
