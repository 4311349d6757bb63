"""Serves Prefect or MLflow to a team: behind the guard, to users with a login each.

`python -m tilewright.services.team_server prefect|mlflow --users FILE …` is such a server. Its
database is named by the variable that Prefect, or MLflow, has for it. `deployments/team.py` and
`deployments/compose.yaml` start it.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from tilewright.services.auth_middleware import Guard
from tilewright.services.mlflow_routes import OnlyRecords
from tilewright.services.request_checks import Hosts
from tilewright.services.server_process import LOOPBACK
from tilewright.services.user_login import UserLogin
from tilewright.services.users import Users

DATABASE = "MLFLOW_BACKEND_STORE_URI"
_OPTIONS = "TILEWRIGHT_TEAM_SERVER"


@dataclass(frozen=True)
class TeamServer:
    """What a server was started with."""

    server: str
    users: str
    host: str
    port: int
    pages: list[str]
    """Addresses that a proxy or another network has for it."""
    artifacts: str = ""
    workers: int = 1

    @classmethod
    def inherited(cls) -> TeamServer:
        """Those of the process that started this one."""
        return cls(**json.loads(os.environ[_OPTIONS]))

    def guarded(self, app: ASGIApp, *, sockets_log_in: bool = False) -> Guard:
        """The application behind the guard."""
        login, hosts = UserLogin(Users(Path(self.users))), Hosts(self.host, self.pages)
        return Guard(app, login, hosts, sockets_log_in=sockets_log_in)


def prefect_application() -> ASGIApp:
    """Prefect's server with its pages and services, guarded."""
    # the guard asks; Prefect would ask once more
    os.environ.pop("PREFECT_SERVER_API_AUTH_STRING", None)
    from prefect.server.api.server import create_app

    return TeamServer.inherited().guarded(create_app(final=True), sockets_log_in=True)


def mlflow_application() -> ASGIApp:
    """MLflow's server, guarded, with its artifacts in one folder and nothing but records."""
    options = TeamServer.inherited()
    _confine_mlflow(options)
    from mlflow.server.fastapi_app import app

    return options.guarded(OnlyRecords(app))


def _confine_mlflow(options: TeamServer) -> None:
    """Set what `mlflow server` sets for its own processes, and confine this one."""
    database = os.environ[DATABASE]
    os.environ.update({
        "_MLFLOW_SERVER_FILE_STORE": database,
        "_MLFLOW_SERVER_REGISTRY_STORE": database,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": Path(options.artifacts).as_uri(),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # the guard knows the names of this server, MLflow guesses
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
    })  # fmt: skip
    from tilewright.services.confined_artifacts import confine

    confine(Path(options.artifacts), database)


def _asked() -> TeamServer:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("server", choices=["prefect", "mlflow"])
    parser.add_argument("--users", type=Path, required=True, help="file that add-user writes")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--pages", metavar="URL", type=_page, action="append", default=[],
        help="https://NAME that a proxy has for it",
    )  # fmt: skip
    parser.add_argument("--artifacts", type=Path, help="MLflow's folder")
    parser.add_argument("--workers", type=int, default=1, help="processes of MLflow's server")
    given = parser.parse_args()
    if given.server == "mlflow" and given.artifacts is None:
        parser.error("MLflow's server needs a folder: --artifacts")
    return TeamServer(
        given.server, str(given.users.absolute()), given.host, given.port, given.pages,
        str(given.artifacts.resolve()) if given.artifacts else "", given.workers,
    )  # fmt: skip


def _page(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"{text!a} is not an address; give https://NAME")
    return text


def main() -> None:
    """Until it is ended."""
    options = _asked()
    os.environ[_OPTIONS] = json.dumps(asdict(options))
    if options.server == "mlflow":
        Path(options.artifacts).mkdir(mode=0o700, parents=True, exist_ok=True)
        _confine_mlflow(options)  # first here: several would migrate the database at a time
    uvicorn.run(
        f"tilewright.services.team_server:{options.server}_application", factory=True,
        host=options.host, port=options.port, workers=options.workers, log_level="warning",
        access_log=False, proxy_headers=False, timeout_graceful_shutdown=2,
        timeout_worker_healthcheck=60, lifespan="on",
    )  # fmt: skip


if __name__ == "__main__":
    main()
