"""Starts a team's servers and workers as bare processes; `compose.yaml` has them as containers.

    export TILEWRIGHT_DATABASE_PASSWORD=… TILEWRIGHT_LOGIN=team:…
    .venv/bin/python deployments/team.py --folder /srv/tilewright --workers 2

Starts PostgreSQL (Debian's), Prefect's and MLflow's servers on it, and workers of the pool
`tilewright`, on loopback, until Ctrl-C. What ends by itself is started again. The same command goes
on with the folder it was given. docs/guides/team.md says how others get in.
"""

from __future__ import annotations

import argparse
import base64
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tilewright.core.errors import TilewrightError
from tilewright.services.ports import check_ports
from tilewright.services.server_process import LOOPBACK, ServerProcess, start

PASSWORD, LOGIN = "TILEWRIGHT_DATABASE_PASSWORD", "TILEWRIGHT_LOGIN"
POOL = ROLE = "tilewright"
DATABASES = ("prefect", "mlflow")
START_SECONDS = 120.0
PROGRAMS = Path("/usr/lib/postgresql")
AGAIN = 'trap "over=1" INT TERM; until [ "$over" ]; do "$@"; [ "$over" ] || sleep 1; done'
"""For a shell: a command, again whenever it ends; the shell outlives it."""
QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
}
PATIENT = {
    # a server whose database is away answers 500: asked again until it is back
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,502,504",
    "PREFECT_CLIENT_MAX_RETRIES": "60",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "10",
}


class TeamError(TilewrightError):
    """Something that the servers need is missing."""


@dataclass(frozen=True)
class Team:
    """What was asked for."""

    folder: Path
    workers: int
    prefect_port: int
    mlflow_port: int
    database_port: int
    password: str
    login: str
    """`name:password` of Prefect's server; empty where only a proxy with logins reaches it."""

    @property
    def prefect(self) -> str:
        """The address of Prefect's pages."""
        return f"http://{LOOPBACK}:{self.prefect_port}"

    @property
    def mlflow(self) -> str:
        """The address of MLflow's pages."""
        return f"http://{LOOPBACK}:{self.mlflow_port}"

    def database(self, driver: str, name: str) -> str:
        """The address of a database."""
        return (
            f"postgresql+{driver}://{ROLE}:{quote(self.password, safe='')}"
            f"@{LOOPBACK}:{self.database_port}/{name}"
        )

    def start(
        self, name: str, command: list[str], environment: dict[str, str], health: str = ""
    ) -> ServerProcess:
        """A process of the team, started again whenever it ends."""
        encoded = base64.b64encode(self.login.encode()).decode()
        return start(
            name, ["sh", "-c", AGAIN, name, *command],
            health=health, log=self.folder / "logs" / f"{name}.log",
            environment=QUIET | environment,
            headers={"Authorization": f"Basic {encoded}"} if self.login else {},
        )  # fmt: skip


def main() -> None:
    """Until Ctrl-C or SIGTERM."""
    for number in signal.SIGTERM, signal.SIGINT:  # the latter also where a script started this
        signal.signal(number, signal.default_int_handler)
    try:
        team = _asked()
        ports = (team.prefect_port, team.mlflow_port, team.database_port)
        check_ports(
            dict(zip(("--prefect-port", "--mlflow-port", "--database-port"), ports, strict=True))
        )
        with ExitStack() as stack, suppress(KeyboardInterrupt):
            _start_all(team, stack)
            print(f"Prefect  {team.prefect}\nMLflow   {team.mlflow}")
            print(f"{team.workers} workers of the pool {POOL}; Ctrl-C stops all", flush=True)
            while True:
                time.sleep(1)
    except TilewrightError as error:
        sys.exit(f"error: {error}")


def _asked() -> Team:
    """Options and variables. Raises `TeamError`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where all of it is kept")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, 2 by default")
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--database-port", type=int, default=5432)
    options = parser.parse_args()
    password, login = os.environ.pop(PASSWORD, ""), os.environ.pop(LOGIN, None)
    if not password:
        raise TeamError(f"{PASSWORD} is not set; give the databases a password")
    if login is None or (login and ":" not in login):
        raise TeamError(
            f"{LOGIN} is not NAME:PASSWORD; set it, to nothing only if a proxy asks everybody"
        )
    given = vars(options) | {"folder": options.folder.resolve()}
    return Team(**given, password=password, login=login)


def _start_all(team: Team, stack: ExitStack) -> None:
    """Database, servers, workers, in that order; `stack` ends them in the other. Raises
    `TeamError` or `ServerError`."""
    for name in "logs", "mlflow", "tuned":
        (team.folder / name).mkdir(parents=True, exist_ok=True)
    data = _provide_database(team)
    database = _postgresql(
        "postgres", "-D", str(data), "-h", LOOPBACK, "-p", str(team.database_port),
        "-c", "unix_socket_directories=", "-c", "max_connections=200",
    )  # fmt: skip
    stack.callback(team.start("postgresql", database, {}).stop)
    _create_databases(team)
    servers = [_prefect(team), _mlflow(team)]
    for server in servers:
        stack.callback(server.stop)
    for server in servers:
        server.wait()
    for number in range(team.workers):
        stack.callback(_worker(team, number).stop)


# -- the database ------------------------------------------------------------------------------


def _postgresql(program: str, *arguments: str) -> list[str]:
    """A command of PostgreSQL's, as its own user where this one is root. Raises `TeamError`."""
    found = sorted(PROGRAMS.glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
    path = str(found[-1]) if found else shutil.which(program)
    if path is None:
        raise TeamError("PostgreSQL is missing; sudo apt-get install postgresql")
    own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
    return [*own * (os.geteuid() == 0), path, *arguments]


def _provide_database(team: Team) -> Path:
    """The folder of a cluster whose only role asks for the password. Raises `TeamError`."""
    data = team.folder / "postgresql"
    if (data / "PG_VERSION").exists():
        return data
    data.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=team.folder) as secret:
        secret.write(team.password)
        secret.flush()
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            for path in (data, Path(secret.name)):
                os.chown(path, user.pw_uid, user.pw_gid)
        done = subprocess.run(
            _postgresql(
                "initdb", "-D", str(data), "-U", ROLE, "--auth=scram-sha-256", "-E", "UTF8",
                "--locale=C", f"--pwfile={secret.name}",
            ),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise TeamError(f"no database in {data}: {done.stderr.strip()}")
    return data


def _create_databases(team: Team) -> None:
    """Once it answers. Raises `TeamError`."""
    import psycopg2

    deadline = time.monotonic() + START_SECONDS
    where = {"host": LOOPBACK, "port": team.database_port, "user": ROLE, "dbname": "postgres"}
    while True:
        try:
            connection = psycopg2.connect(**where, password=team.password)
            break
        except psycopg2.OperationalError as error:
            if "password" in str(error) or time.monotonic() > deadline:
                raise TeamError(f"PostgreSQL does not let us in: {error}".strip()) from None
            time.sleep(0.2)
    with closing(connection):
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("SELECT datname FROM pg_database")
        there = {name for (name,) in cursor.fetchall()}
        for name in DATABASES:
            if name not in there:
                cursor.execute(f"CREATE DATABASE {name}")


# -- servers and workers -----------------------------------------------------------------------


def _prefect(team: Team) -> ServerProcess:
    command = [
        sys.executable, "-m", "prefect", "server", "start", "--host", LOOPBACK,
        "--port", str(team.prefect_port),
    ]  # fmt: skip
    environment = {
        "PREFECT_HOME": str(team.folder / "prefect"),
        "PREFECT_API_DATABASE_CONNECTION_URL": team.database("asyncpg", "prefect"),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_POOL_SIZE": "20",
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_MAX_OVERFLOW": "20",
        "PREFECT_SERVER_UI_API_URL": "/api",
        **_login(team, "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"),
    }
    return team.start("prefect", command, environment, f"{team.prefect}/api/health")


def _mlflow(team: Team) -> ServerProcess:
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK,
        "--port", str(team.mlflow_port), "--workers", "2",
        "--artifacts-destination", (team.folder / "mlflow").as_uri(),
    ]  # fmt: skip
    environment = {"MLFLOW_BACKEND_STORE_URI": team.database("psycopg2", "mlflow")}
    return team.start("mlflow", command, environment, f"{team.mlflow}/health")


def _worker(team: Team, number: int) -> ServerProcess:
    """One run at a time. All share one cache of finished stages, and write below one folder."""
    name = f"worker-{number}"
    command = [
        sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process",
        "--name", name, "--limit", "1",
    ]  # fmt: skip
    environment = {
        **PATIENT,
        "PREFECT_API_URL": f"{team.prefect}/api",
        "MLFLOW_TRACKING_URI": team.mlflow,
        "PREFECT_HOME": str(team.folder / name),
        "TILEWRIGHT_HOME": str(team.folder / "home"),
        "TILEWRIGHT_OUTPUT_ROOT": str(team.folder / "tuned"),
        **_login(team, "PREFECT_API_AUTH_STRING"),
    }
    return team.start(name, command, environment)


def _login(team: Team, *names: str) -> dict[str, str]:
    return {name: team.login for name in names if team.login}


if __name__ == "__main__":
    main()
