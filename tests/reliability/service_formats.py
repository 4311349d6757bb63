"""Lists the formats of a workspace: databases, secrets, addresses, logs, the user's profiles."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.reliability.format_types import Draw, Format, Read
from tests.reliability.mutants import json_mutant, mutant

SERVICES = "tilewright.services"
_PLACES = (
    "file:///etc", "/", "s3://bucket", "mlflow-artifacts:/x", "file:relative", "", "\x00", "%2e%2e",
    "file://host/x", "runs:/1", "models:/m", "[::1]", "file:///a/mlflow/artifacts", "http://[",
)  # fmt: skip


def _databases(folder: Path) -> tuple[Draw, Read]:
    """MLflow's, as it is looked at before MLflow opens it."""
    from tilewright.cli.error_messages import _database_problem
    from tilewright.services.artifact_places import check_places
    from tilewright.services.mlflow_database import provide_mlflow_database
    from tilewright.services.relocate_artifacts import relocate
    from tilewright.services.retention import compact
    from tilewright.services.workspace import Workspace

    os.environ["TILEWRIGHT_HOME"] = str(folder)
    home, again = Workspace(folder), folder / "again.db"
    home.mlflow_database.parent.mkdir(parents=True)
    provide_mlflow_database(home.mlflow_database)
    whole = home.mlflow_database.read_bytes()
    columns = "INSERT INTO experiments (experiment_id, name, artifact_location, workspace) VALUES"

    def draw(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            head = whole[:4096] if rng.random() < 0.5 else whole
            return mutant(head, rng) + whole[len(head) :]
        again.write_bytes(whole)
        with closing(sqlite3.connect(again)) as database, database:
            database.execute("PRAGMA foreign_keys = OFF")
            for number in range(7, 9):
                place = rng.choice((*_PLACES, rng.random(), rng.randbytes(8), None))
                database.execute(f"{columns} (?, ?, ?, 'default')", (number, str(number), place))
        return again.read_bytes()

    def read_it(data: bytes) -> object:
        home.mlflow_database.write_bytes(data)
        relocate(home.mlflow_database, home.mlflow_artifacts)
        check_places(home.mlflow_database, home.mlflow_artifacts)
        return _database_problem([]), compact(home.mlflow_database)

    return draw, read_it


def _secrets(folder: Path) -> tuple[Draw, Read]:
    from tilewright.services.secret_file import secret_path, workspace_secret
    from tilewright.services.workspace import Workspace

    home = Workspace(folder)
    whole = workspace_secret(home).encode()

    def read_it(data: bytes) -> object:
        secret_path(home).write_bytes(data)
        assert len(workspace_secret(home)) == 64
        return None

    return lambda rng: mutant(whole, rng), read_it


def _workspaces(folder: Path) -> tuple[Draw, Read]:
    """What a workspace says of its layout."""
    from tilewright.services.workspace import Workspace, _check_version

    document = {"version": 1}

    def read_it(data: bytes) -> object:
        Workspace(folder).about.write_bytes(data)
        return _check_version(Workspace(folder).about)

    return lambda rng: json_mutant(document, rng), read_it


def _announcements(folder: Path) -> tuple[Draw, Read]:
    from tilewright.services.prefect_server import _announced_address, _announcement
    from tilewright.services.workspace import Workspace

    home, document = Workspace(folder), {"api_url": "http://127.0.0.1:4200/api"}
    _announcement(home).parent.mkdir(parents=True)

    def read_it(data: bytes) -> object:
        _announcement(home).write_bytes(data)
        return _announced_address(home)

    return lambda rng: json_mutant(document, rng), read_it


def _logs(folder: Path) -> tuple[Draw, Read]:
    from types import SimpleNamespace

    from tilewright.services.server_process import ServerProcess

    log = folder / "server.log"
    whole = "2026-01-01 | INFO | starting\nTraceback:\n  α\nOSError: in use\n".encode()

    def read_it(data: bytes) -> object:
        log.write_bytes(data)
        return ServerProcess._last_words(SimpleNamespace(log=log))  # type: ignore[arg-type]

    return lambda rng: mutant(whole, rng), read_it


def _profiles(folder: Path) -> tuple[Draw, Read]:
    from tilewright.services.settings_files import PROFILES, profile_settings

    os.environ[PROFILES] = str(folder / "profiles.toml")
    os.environ.pop("PREFECT_API_URL", None)
    whole = (
        b'active = "own"\n[profiles.own]\nPREFECT_API_URL = "http://a/api"\n[profiles.b]\nx = 1\n'
    )

    def read_it(data: bytes) -> object:
        (folder / "profiles.toml").write_bytes(data)
        return json.dumps(profile_settings())

    return lambda rng: mutant(whole, rng), read_it


FORMATS = {
    "databases": Format(
        _databases,
        ("tilewright.cli.error_messages:_database_problem",
         f"{SERVICES}.artifact_places:check_places", f"{SERVICES}.relocate_artifacts:relocate",
         f"{SERVICES}.retention:compact"),
        share=0.2,
    ),
    "secrets": Format(_secrets, ("tilewright.core.private_files:read_private",)),
    "workspaces": Format(_workspaces, (f"{SERVICES}.workspace:_check_version",)),
    "announcements": Format(_announcements, (f"{SERVICES}.prefect_server:_announced_address",)),
    "logs": Format(_logs, (f"{SERVICES}.server_process:ServerProcess._last_words",)),
    "profiles": Format(_profiles, (f"{SERVICES}.settings_files:profile_settings",)),
}  # fmt: skip
