"""Starts a team's servers and workers as bare processes; `compose.yaml` has them as containers.

    .venv/bin/python deployments/team.py add-user NAME --folder /srv/tilewright
    export TILEWRIGHT_DATABASE_PASSWORD=…
    .venv/bin/python deployments/team.py --folder /srv/tilewright --workers 2

Starts PostgreSQL (Debian's), Prefect's and MLflow's servers on it, and workers of the pool
`tilewright`, on loopback, until Ctrl-C. Both servers ask every caller for the name and secret of a
user; `add-user` and `remove-user` say who is one, also while they run. What ends by itself is
started again. The same command goes on with the folder it was given. docs/guides/team.md says how
others get in.
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
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from tilewright.core.errors import TilewrightError
from tilewright.services.ports import check_ports
from tilewright.services.server_process import LOOPBACK, ServerProcess, start
from tilewright.services.users import add_user, remove_user, users_path

PASSWORD = "TILEWRIGHT_DATABASE_PASSWORD"
WORKERS = "workers"
"""The user that this command's own workers log in as, with a new secret at each start."""
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
    prefect_pages: list[str]
    mlflow_pages: list[str]
    """Addresses that a proxy has for them, beside those on loopback."""
    password: str
    secret: str = ""
    """Of the user `workers`."""

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

    @property
    def login(self) -> str:
        """What this command and its workers log in with."""
        return f"{WORKERS}:{self.secret}"

    def start(
        self, name: str, command: list[str], environment: dict[str, str], health: str = ""
    ) -> ServerProcess:
        """A process of the team, started again whenever it ends."""
        encoded = base64.b64encode(self.login.encode()).decode()
        return start(
            name, ["sh", "-c", AGAIN, name, *command],
            health=health, log=self.folder / "logs" / f"{name}.log",
            environment=QUIET | environment,
            headers={"Authorization": f"Basic {encoded}"},
        )  # fmt: skip


def main() -> None:
    """Adds or removes a user, or starts the servers: until Ctrl-C or SIGTERM."""
    try:
        if sys.argv[1:2] in (["add-user"], ["remove-user"]):
            _change_users(*sys.argv[1:])
        else:
            _run()
    except TilewrightError as error:
        sys.exit(f"error: {error}")


def _change_users(command: str, *words: str) -> None:
    """Raises `TilewrightError`."""
    parser = argparse.ArgumentParser(prog=f"team.py {command}")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--folder", type=Path, required=True, help="of the team")
    given = parser.parse_args(words)
    users = users_path(given.folder.resolve())
    try:
        if command == "remove-user":
            remove_user(users, given.name)
            return
        if given.name == WORKERS:
            raise TeamError(f"{WORKERS} are this command's own; choose another name")
        users.parent.mkdir(parents=True, exist_ok=True)
        secret = add_user(users, given.name)
    except OSError as error:
        raise TeamError(
            f"cannot write {users}: {error.strerror or error}; run this as the user who owns the "
            "folder"
        ) from None
    print(f"{given.name} logs in with this secret, which is shown once:", file=sys.stderr)
    print(secret)


def _run() -> None:
    """Raises `TilewrightError`."""
    for number in signal.SIGTERM, signal.SIGINT:  # the latter also where a script started this
        signal.signal(number, signal.default_int_handler)
    team = _asked()
    ports = (team.prefect_port, team.mlflow_port, team.database_port)
    check_ports(
        dict(zip(("--prefect-port", "--mlflow-port", "--database-port"), ports, strict=True))
    )
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        team = _start_all(team, stack)
        print(f"Prefect  {team.prefect}\nMLflow   {team.mlflow}")
        print(f"{team.workers} workers of the pool {POOL}; Ctrl-C stops all", flush=True)
        while True:
            time.sleep(1)


def _asked() -> Team:
    """Options and variables. Raises `TeamError`."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="team.py add-user NAME --folder FOLDER prints a secret for a user, once; "
        "remove-user NAME --folder FOLDER lets a user in no longer.",
    )
    parser.add_argument("--folder", type=Path, required=True, help="where all of it is kept")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, 2 by default")
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--database-port", type=int, default=5432)
    for name in "prefect", "mlflow":
        parser.add_argument(
            f"--{name}-pages", metavar="URL", action="append", default=[],
            help="https://NAME that a proxy has for it",
        )  # fmt: skip
    options = parser.parse_args()
    password = os.environ.pop(PASSWORD, "")
    if not password:
        raise TeamError(f"{PASSWORD} is not set; give the databases a password")
    given = vars(options) | {"folder": options.folder.resolve()}
    return Team(**given, password=password)


def _start_all(team: Team, stack: ExitStack) -> Team:
    """Database, servers, workers, in that order; `stack` ends them in the other. Returns the team
    with the secret of its workers. Raises `TilewrightError`."""
    for name in "logs", "mlflow", "tuned":
        (team.folder / name).mkdir(parents=True, exist_ok=True)
    (team.folder / "mlflow").chmod(0o700)
    team = replace(team, secret=add_user(users_path(team.folder), WORKERS))
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
    return team


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
    environment = {
        "PREFECT_HOME": str(team.folder / "prefect"),
        "PREFECT_API_DATABASE_CONNECTION_URL": team.database("asyncpg", "prefect"),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_POOL_SIZE": "20",
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_MAX_OVERFLOW": "20",
        "PREFECT_SERVER_UI_API_URL": "/api",
    }
    command = _guarded(team, "prefect", team.prefect_port, team.prefect_pages)
    return team.start("prefect", command, environment, f"{team.prefect}/api/health")


def _mlflow(team: Team) -> ServerProcess:
    command = [
        *_guarded(team, "mlflow", team.mlflow_port, team.mlflow_pages),
        "--workers", "2", "--artifacts", str(team.folder / "mlflow"),
    ]  # fmt: skip
    environment = {"MLFLOW_BACKEND_STORE_URI": team.database("psycopg2", "mlflow")}
    return team.start("mlflow", command, environment, f"{team.mlflow}/health")


def _guarded(team: Team, server: str, port: int, pages: list[str]) -> list[str]:
    """The command of a server that asks for a login."""
    return [
        sys.executable, "-m", "tilewright.services.team_server", server, "--port", str(port),
        "--users", str(users_path(team.folder)),
        *(word for page in pages for word in ("--pages", page)),
    ]  # fmt: skip


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
        "PREFECT_API_AUTH_STRING": team.login,
        "MLFLOW_TRACKING_USERNAME": WORKERS,
        "MLFLOW_TRACKING_PASSWORD": team.secret,
    }
    return team.start(name, command, environment)


if __name__ == "__main__":
    main()
