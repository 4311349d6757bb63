"""Starts a team's servers as `deployments/team/team.sh` does: nginx, PostgreSQL, Prefect, MLflow.

Only `make team-test` uses these fixtures. They need root, because the servers run as system users
that are created for the tests and removed afterwards. PostgreSQL runs in a new Debian cluster.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sharing import ANSWER_SECONDS, OURS, free_port

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deployments" / "team" / "team.sh"
NAME = "localhost"
PREFIX = "tilewright-test"
CLUSTER = "tilewright_test"
USERS = ("prefect", "mlflow", "worker")
UPLOAD_LIMIT = 8 << 20
LIMIT_SECONDS = 900


@dataclass
class Team:
    """The running servers of a team."""

    process: subprocess.Popen[str]
    place: Path
    ports: dict[str, int]
    secret: str
    """Password of the user "ada"."""
    deployments: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The folder with one folder per system user."""
        return self.place / "state"

    @property
    def api(self) -> str:
        return f"{self.address('prefect')}/api"

    def address(self, server: str) -> str:
        return f"https://{NAME}:{self.ports[server]}"

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.place / "certificate.pem"))

    def client(self, server: str, user: str = "", **headers: str) -> httpx.Client:
        """Return a client that logs in as `user` (`NAME:PASSWORD`), or without a login if empty."""
        if user:
            headers["Authorization"] = f"Basic {encoded(user)}"
        return httpx.Client(
            base_url=self.address(server), headers=headers, timeout=ANSWER_SECONDS,
            verify=self.context, trust_env=False,
        )  # fmt: skip

    @property
    def ada(self) -> str:
        return f"ada:{self.secret}"

    @property
    def token(self) -> str:
        """The login with which nginx authenticates to Prefect."""
        return (self.place / "etc" / "prefect-token").read_text().strip()

    def ask(self, path: str, document: object) -> Any:
        """Post to Prefect's API as the user ada, with a CSRF token."""
        with self.client("prefect", self.ada) as client:
            client_id = "00000000-0000-4000-8000-000000000000"
            token = client.get("/api/csrf-token", params={"client": client_id}).json()["token"]
            headers = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": client_id}
            reply = client.post(f"/api/{path}", json=document, headers=headers)
        reply.raise_for_status()
        return reply.json()

    def rows(self, database: str, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query, directly from PostgreSQL."""
        text = f"SELECT coalesce(json_agg(t), '[]') FROM ({query}) t"
        done = self.psql(f"{PREFIX}-{database}", text)
        assert done.returncode == 0, done.stderr
        document: list[dict[str, Any]] = json.loads(done.stdout)
        return document

    def psql(self, database: str, query: str) -> subprocess.CompletedProcess[str]:
        command = ["runuser", "-u", "postgres", "--", "psql", "-qAt", "-p",
                   str(self.ports["database"]), "-d", database, "-c", query]  # fmt: skip
        return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that docs/guides/team.md gives for a client of the servers."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        certificate = str(self.place / "certificate.pem")
        return kept | {
            "PYTHONPATH": str(ROOT),
            "PREFECT_API_URL": self.api,
            "PREFECT_API_AUTH_STRING": self.token,
            "PREFECT_CLIENT_CUSTOM_HEADERS": json.dumps(
                {"Authorization": f"Basic {encoded(self.ada)}"}
            ),
            "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
            "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,502,504",
            "PREFECT_API_SSL_CERT_FILE": certificate,
            "REQUESTS_CA_BUNDLE": certificate,
            "SSL_CERT_FILE": certificate,
            "MLFLOW_TRACKING_URI": self.address("mlflow"),
            "MLFLOW_TRACKING_USERNAME": "ada",
            "MLFLOW_TRACKING_PASSWORD": self.secret,
            "TILEWRIGHT_HOME": str(self.place / "client"),
        }

    def program(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python with these arguments in a client's environment."""
        return subprocess.Popen(
            [sys.executable, "-P", *arguments],
            cwd=self.place, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.state / "logs" / f"{name}.log").read_text()

    def htpasswd(self, *arguments: str, password: str = "") -> None:
        """Change the file with users and passwords, as an administrator does."""
        subprocess.run(
            ["htpasswd", *arguments], input=password, text=True, check=True, capture_output=True
        )

    @property
    def users(self) -> str:
        return str(self.place / "etc" / "users")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def eventually(what: str, found: Callable[[], Any]) -> Any:
    """Wait until `found` returns a true value, and return it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (result := found()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.5)
    return result


@pytest.fixture(scope="session")
def team() -> Iterator[Team]:
    assert os.geteuid() == 0, "run `make team-test` as root: servers become system users"
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="team-")))
        place.chmod(0o755)
        ports = {name: free_port() for name in ("prefect", "mlflow", "internal", "database")}
        stack.enter_context(_cluster(ports["database"]))
        write_certificate(place)
        _write_settings(place, ports, _python_for_others(place))
        stack.callback(_remove_users)
        _run(str(SCRIPT), "setup", place=place)
        secret = secrets.token_hex(16)
        users = str(place / "etc" / "users")
        subprocess.run(["htpasswd", "-i", "-B", users, "ada"], input=secret, text=True, check=True)
        stack.enter_context(_nginx(place))
        process = stack.enter_context(_servers(place))
        team = Team(process, place, ports, secret)
        eventually("the servers", lambda: _is_up(team))
        yield team


def _is_up(team: Team) -> bool:
    assert team.process.poll() is None, "the script ended"
    with team.client("prefect", team.ada) as prefect, team.client("mlflow", team.ada) as mlflow:
        return (prefect.get("/api/version").status_code, mlflow.get("/health").status_code) == (
            200,
            200,
        )


def _run(*command: str, place: Path | None = None) -> None:
    given = {"TILEWRIGHT_TEAM_CONFIG": str(place / "team.conf")} if place else {}
    done = subprocess.run(
        command, cwd="/", env=os.environ | given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


@contextmanager
def _cluster(port: int) -> Iterator[None]:
    versions = sorted(Path("/usr/lib/postgresql").iterdir(), key=lambda path: float(path.name))
    version = versions[-1].name
    subprocess.run(
        ["pg_dropcluster", "--stop", version, CLUSTER], capture_output=True, check=False
    )  # fmt: skip
    _run("pg_createcluster", version, CLUSTER, "--port", str(port))
    try:
        _run("pg_ctlcluster", version, CLUSTER, "start")
        yield
    finally:
        _run("pg_dropcluster", "--stop", version, CLUSTER)


def write_certificate(place: Path) -> None:
    _run(
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}",
        "-keyout", str(place / "key.pem"), "-out", str(place / "certificate.pem"),
    )  # fmt: skip


def _write_settings(place: Path, ports: dict[str, int], python: Path) -> None:
    settings = {
        "NAME": NAME,
        "CERTIFICATE": place / "certificate.pem", "CERTIFICATE_KEY": place / "key.pem",
        "PREFECT_PORT": ports["prefect"], "MLFLOW_PORT": ports["mlflow"],
        "PREFECT_INTERNAL_PORT": ports["internal"], "DATABASE_PORT": ports["database"],
        "UPLOAD_LIMIT": UPLOAD_LIMIT, "WORKERS": 2, "PREFIX": PREFIX, "PYTHON": python,
        "ETC": place / "etc", "STATE": place / "state", "RUN": place / "run",
        "SITE": place / "site.conf", "CA": place / "certificate.pem",
    }  # fmt: skip
    text = "".join(f"{name}='{value}'\n" for name, value in settings.items())
    text += f"export LD_LIBRARY_PATH='{place}/python/lib'\n"  # needed by a copied interpreter
    (place / "team.conf").write_text(text)


def _python_for_others(place: Path) -> Path:
    """Make a Python environment that other system users can run.

    It has the packages of this environment. If the interpreter is in root's home folder, it is
    copied.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    if not _can_be_run(base / "bin" / version):
        left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__")
        shutil.copytree(base / "lib" / version, place / "python" / "lib" / version, ignore=left_out)
        (place / "python" / "bin").mkdir()
        shutil.copy(base / "bin" / version, place / "python" / "bin")
        for library in (base / "lib").glob(f"lib{version}.so*"):
            shutil.copy(library, place / "python" / "lib")
        base = place / "python"
    _run(str(base / "bin" / version), "-m", "venv", "--without-pip", str(place / "venv"))
    packages = place / "venv" / "lib" / version / "site-packages"
    (packages / "ours.pth").write_text(f"{ROOT}\n{Path(httpx.__file__).parents[1]}\n")
    return place / "venv" / "bin" / "python"


def _can_be_run(program: Path) -> bool:
    # through a shell, because `setpriv` could still start a file that the user may not run
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c",
               f"'{program}' -c ''"]  # fmt: skip
    return subprocess.run(command, cwd="/", capture_output=True, check=False).returncode == 0


def _remove_users() -> None:
    for user in USERS:
        subprocess.run(["userdel", f"{PREFIX}-{user}"], capture_output=True, check=False)


@contextmanager
def _nginx(place: Path) -> Iterator[None]:
    (place / "nginx.conf").write_text(
        f"user www-data; pid {place}/nginx.pid; error_log {place}/nginx.log; events {{}}\n"
        f"http {{ access_log off; include {place}/site.conf; }}\n"
    )
    _run("nginx", "-c", str(place / "nginx.conf"))
    try:
        yield
    finally:
        os.kill(int((place / "nginx.pid").read_text()), signal.SIGTERM)


@contextmanager
def _servers(place: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(SCRIPT), "run"], cwd="/", text=True,
        env=os.environ | {"TILEWRIGHT_TEAM_CONFIG": str(place / "team.conf")},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        shutil.rmtree(place / "run", ignore_errors=True)
