"""Tests commands against another user of the machine, who may also prepare the folder.

The other user is a child process that gave up its rights. This needs root; without root the tests
are skipped.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Place
from tests.cli.test_servers import printed_links, read_until, stop
from tests.processes import family, listening, servers
from tests.reliability.commands import TUNE, wait_for
from tests.services.test_login_middleware import MLFLOW_ROUTES, PREFECT_ROUTES
from tests.sharing import ANSWER_SECONDS, free_port
from tilewright.services.server_credentials import secret_path, workspace_secret
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace

pytestmark = pytest.mark.attack
AS_ANOTHER = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")

NOBODY = 65534
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS")
OPEN_TO_ALL = ("/health", "/ready")
"""Routes on which Prefect reports only that it is running."""


def as_nobody(act: Callable[[], Any]) -> Any:
    """Run a function as another user and return its result as JSON.

    A fork is used because the other user may not be able to read the interpreter's files.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writer, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(child, 0)
    return json.loads(text)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "here").mkdir()
    return Place(tmp_path / "here")


@pytest.fixture
def public() -> Iterator[Place]:
    """Yield a place in a folder that every user can read."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Place(Path(folder))


def statuses(port: int, routes: list[tuple[str, str]]) -> list[tuple[str, str, int]]:
    """Return the routes and statuses of all answers other than 401."""
    statuses = []
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS)
    for method, route in routes:
        connection.request(method, route, b"{}", {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        if reply.status != 401:
            statuses.append((method, route, reply.status))
    connection.close()
    return statuses


def start_a_run(port: int) -> list[int]:
    """Try to create a flow, a deployment and a run. Return the statuses of the answers."""
    answers = []
    for route, body in (
        ("/api/flows/", {"name": "tune_network"}),
        ("/api/deployments/", {"name": "x", "entrypoint": "os.system"}),
        ("/api/flow_runs/", {"parameters": {"out": "/tmp/planted"}}),
    ):
        for kind in "application/json", "text/plain":
            connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS)
            connection.request("POST", route, json.dumps(body), {"Content-Type": kind})
            answers.append(connection.getresponse().status)
            connection.close()
    return answers


def spied(pids: list[int], workspace: Path) -> dict[str, Any]:
    """Return what another user can read of the processes and of the workspace's files."""
    arguments, environments = [], 0
    ended = (FileNotFoundError, ProcessLookupError)
    for pid in pids:
        with suppress(*ended):
            arguments.append(Path(f"/proc/{pid}/cmdline").read_text())
        with suppress(PermissionError, *ended):
            environments += len(Path(f"/proc/{pid}/environ").read_bytes())
    readable = []
    for path in workspace.rglob("*"):
        try:
            readable.append(path.read_text(errors="replace"))
        except OSError:
            continue
    try:
        secret = (workspace / "secret").read_text()
    except PermissionError:
        secret = ""
    return {"read": "".join(arguments + readable), "environments": environments, "secret": secret}


def ports(pid: int) -> set[int]:
    """Return the ports on which a process and its children listen."""
    return {address.port for address in listening(pid)}


@AS_ANOTHER
@pytest.mark.nightly(seconds=11)
def test_another_user_gets_nothing_from_the_pages(public: Place) -> None:
    runs, prefect, mlflow = free_port(), free_port(), free_port()
    options = {"--port": runs, "--prefect-port": prefect, "--mlflow-port": mlflow}
    pages = public.start("ui", *(f"{name}={port}" for name, port in options.items()))
    workspace = public.folder / "home"
    try:
        link = printed_links(read_until(pages, "Ctrl-C"))["Runs"]
        secret = workspace_secret(Workspace(workspace))
        address = f"http://{LOOPBACK}:{prefect}/openapi.json"
        schema = httpx.get(address, timeout=ANSWER_SECONDS).json()
        known = [(method.upper(), "/api" + route.replace("{", "").replace("}", ""))
                 for route, methods in schema["paths"].items() for method in methods
                 if route not in OPEN_TO_ALL]  # fmt: skip
        assert len(known) > 150
        api = [(method, route) for method in METHODS for route in PREFECT_ROUTES]
        assert as_nobody(lambda: statuses(prefect, known + api)) == []
        more = [(method, route) for method in METHODS for route in MLFLOW_ROUTES]
        assert as_nobody(lambda: statuses(mlflow, more)) == []
        assert as_nobody(lambda: statuses(runs, more)) == []
        assert as_nobody(lambda: start_a_run(prefect)) == [401] * 6
        assert ports(pages.pid) == {runs, prefect, mlflow}
        seen = as_nobody(lambda: spied(family(pages.pid), workspace))
    finally:
        assert stop(pages) == 0
    assert "tilewright.services.prefect_server" in seen["read"]
    assert secret not in seen["read"]
    assert link.partition("key=")[2] not in seen["read"]
    assert (seen["environments"], seen["secret"]) == (0, "")


@AS_ANOTHER
@pytest.mark.nightly(seconds=15)
def test_another_user_gets_nothing_from_a_run(public: Place) -> None:
    command = public.start(*TUNE)
    try:
        wait_for(lambda: bool(servers(command.pid)) and bool(ports(command.pid)), command)
        (port,) = ports(command.pid)
        routes = [(method, route) for method in METHODS for route in PREFECT_ROUTES]
        assert as_nobody(lambda: statuses(port, routes)) == []
        assert as_nobody(lambda: start_a_run(port)) == [401] * 6
        seen = as_nobody(lambda: spied(family(command.pid), public.folder / "home"))
        secret = workspace_secret(Workspace(public.folder / "home"))
    finally:
        printed, _ = command.communicate(timeout=300)
    assert command.returncode == 0, printed
    assert "tilewright.services.prefect_server" in seen["read"]
    assert secret not in seen["read"] + printed
    assert (seen["environments"], seen["secret"]) == (0, "")


# -- a folder from a stranger ------------------------------------------------------------------

ECHO = """
import http.server, sys
seen = open(sys.argv[1], "a")
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.requestline, self.headers, file=seen, flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"true")
    do_POST = do_GET
server = http.server.HTTPServer(("127.0.0.1", 0), Echo)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def listener(seen: Path) -> Iterator[int]:
    """Run an attacker's server, which answers that all is well. Yield its port."""
    with subprocess.Popen(
        [sys.executable, "-c", ECHO, str(seen)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.nightly(seconds=15)
def test_a_folder_from_a_stranger_names_neither_secret_nor_server(
    tmp_path: Path, place: Place
) -> None:
    """The folder contains a secret that the attacker knows, and the address of their server."""
    prepared = Workspace(tmp_path / "prepared")
    (prepared.root / "prefect").mkdir(parents=True)
    planted = workspace_secret(prepared)
    with listener(tmp_path / "seen") as port:
        address = f"http://{LOOPBACK}:{port}"
        (prepared.root / "prefect" / "server.json").write_text(
            json.dumps({"api_url": f"{address}/api"})
        )
        shutil.copytree(prepared.root, place.folder / "home")
        assert secret_path(Workspace(place.folder / "home")).read_text() == planted
        done = place.run(*TUNE)
    assert done.returncode == 0, done.stderr
    assert workspace_secret(Workspace(place.folder / "home")) != planted
    seen = (tmp_path / "seen").read_text()
    assert seen.count("/api/") == 1, "one question without a login, and no more"
    assert "Authorization" not in seen


@pytest.mark.slow(seconds=2.5)
def test_a_server_that_the_user_names_is_told_no_secret(tmp_path: Path, place: Place) -> None:
    with listener(tmp_path / "seen") as port:
        named = {"PREFECT_API_URL": f"http://{LOOPBACK}:{port}/api",
                 "MLFLOW_TRACKING_URI": f"http://{LOOPBACK}:{port}",
                 "PREFECT_CLIENT_MAX_RETRIES": "0"}  # fmt: skip
        program = (
            "from tilewright.services.start_servers import embedded\n"
            "import os, urllib.request\n"
            "with embedded():\n"
            "    from prefect import get_client\n"
            "    with get_client(sync_client=True) as client: client._client.get('/flows/1')\n"
            "    print([name for name in os.environ if 'AUTH' in name or 'PASSWORD' in name])"
        )
        root = str(Path(__file__).parents[2])
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], cwd=place.folder, capture_output=True, text=True,
            env=place.environment | named | {"PYTHONPATH": root},
        )  # fmt: skip
    seen = (tmp_path / "seen").read_text()
    assert "/api/flows/1" in seen, done.stderr
    assert "Authorization" not in seen
    assert done.stdout.strip().endswith("[]")
    assert workspace_secret(Workspace(place.folder / "home")) not in seen
