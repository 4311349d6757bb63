"""Tests servers on a real PostgreSQL with two workers, as `deployments/team.py` starts them.

`make team-test` runs this, and shows the figures.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest

from tests.cli.test_servers import post
from tests.processes import Address, listening
from tests.sharing import ANSWER_SECONDS, OURS, free_port
from tests.trial_tables import tables

pytestmark = [pytest.mark.team, pytest.mark.slow(seconds=120)]
ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 900
PROCESSES, FLOWS, TASKS = 2, 4, 25
SCRIPT = ROOT / "deployments" / "team.py"
USER = "ada"


@dataclass
class Team:
    """What `deployments/team.py` has started."""

    process: subprocess.Popen[str]
    folder: Path
    ports: dict[str, int]
    password: str
    secret: str
    deployments: dict[str, str] = field(default_factory=dict)

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.ports['prefect']}/api"

    @property
    def mlflow(self) -> str:
        return f"http://127.0.0.1:{self.ports['mlflow']}"

    def ask(self, path: str, asked: object) -> Any:
        """Of Prefect's API."""
        return post(f"{self.api}/{path}", asked, self.login)

    @property
    def login(self) -> dict[str, str]:
        """The header of a user."""
        encoded = base64.b64encode(f"{USER}:{self.secret}".encode()).decode()
        return {"Authorization": f"Basic {encoded}"}

    def rows(self, database: str, query: str) -> list[Any]:
        """What PostgreSQL itself says."""
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.ports["database"], user="tilewright",
            password=self.password, dbname=database,
        )  # fmt: skip
        with closing(connection), connection.cursor() as cursor:
            cursor.execute(query)
            found: list[Any] = cursor.fetchall()
        return found

    @property
    def environment(self) -> dict[str, str]:
        """For a client of the team's servers."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        return kept | {
            "PYTHONPATH": str(ROOT),
            "PREFECT_API_URL": self.api,
            "PREFECT_API_AUTH_STRING": f"{USER}:{self.secret}",
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": self.secret,
            "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,502,504",
            "MLFLOW_TRACKING_URI": self.mlflow,
            "TILEWRIGHT_HOME": str(self.folder / "client"),
        }

    def program(self, *arguments: str) -> subprocess.Popen[str]:
        """Python with these arguments, as a client."""
        return subprocess.Popen(
            [sys.executable, "-P", *arguments],
            cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def logs(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    place = Path(tempfile.mkdtemp(prefix="team-"))
    place.chmod(0o755)  # PostgreSQL's own user gets to its folder below
    ports = {name: free_port() for name in ("prefect", "mlflow", "database")}
    password = f"{secrets.token_hex(8)}/@ é"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    kept |= {"PYTHONPATH": str(ROOT)}
    secret = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), "add-user", USER, "--folder", str(place / "team")],
        env=kept, cwd=place, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    asked = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
    process = subprocess.Popen(
        [sys.executable, "-P", str(SCRIPT), "--folder", str(place / "team"), "--workers", "2",
         *asked],
        env=kept | {"TILEWRIGHT_DATABASE_PASSWORD": password},
        cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if "Ctrl-C" in line:
                break
        else:
            raise AssertionError(printed)
        yield Team(process, place / "team", ports, password, secret)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        shutil.rmtree(place)


def eventually(what: str, found: Callable[[], Any]) -> Any:
    """What it finds, once it finds something."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (result := found()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.5)
    return result


def test_it_listens_on_loopback_and_asks_for_a_login(team: Team) -> None:
    addresses = {Address("127.0.0.1", port) for port in team.ports.values()}
    assert addresses <= listening(team.process.pid)
    assert {address.ip for address in listening(team.process.pid)} == {"127.0.0.1"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(f"{team.api}/flow_runs/filter", {}, {})
    assert refused.value.code == 401
    for path in "health", "api/2.0/mlflow/experiments/get?experiment_id=0":
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{team.mlflow}/{path}", timeout=ANSWER_SECONDS)
        assert refused.value.code == 401
    with pytest.raises(psycopg2.OperationalError, match="password"):
        psycopg2.connect(
            host="127.0.0.1", port=team.ports["database"], user="tilewright", dbname="prefect",
            password="wrong",
        )  # fmt: skip
    for process in psutil.Process(team.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            words = " ".join(process.cmdline())
            assert team.password not in words
            assert team.secret not in words


DEPLOY = """
import sys
from tilewright.services.workspace import use_workspace
use_workspace()
from prefect.types.entrypoint import EntrypointType
from tilewright.flows.nightly import tune_network
for name in sys.argv[1:]:
    parameters = {"model": "digits_cnn", "trials": 16, "tuner": name, "out": name}
    made = tune_network.to_deployment(
        name, parameters=parameters, work_pool_name="tilewright",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    print(made.apply(work_pool_name="tilewright"))
"""


def _deployed(team: Team, *tuners: str) -> dict[str, str]:
    eventually("workers", lambda: len(_workers(team)) == 2)
    program = team.program("-c", DEPLOY, *tuners)
    printed, errors = program.communicate(timeout=300)
    assert program.returncode == 0, errors
    return dict(zip(tuners, printed.split(), strict=True))


def _workers(team: Team) -> list[Any]:
    """Those of the pool, which the first of them makes."""
    try:
        found: list[Any] = team.ask("work_pools/tilewright/workers/filter", {})
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return []
    return found


def _run_all(team: Team, tuners: Mapping[str, str]) -> dict[str, str]:
    """Runs of deployments, by tuner."""
    created = {t: team.ask(f"deployments/{d}/create_flow_run", {}) for t, d in tuners.items()}
    return {tuner: run["id"] for tuner, run in created.items()}


def _ended(team: Team, runs: Mapping[str, str]) -> list[Any]:
    """Their records, if all have ended."""
    found = team.ask("flow_runs/filter", {"flow_runs": {"id": {"any_": list(runs.values())}}})
    ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    return found if all(run["state_type"] in ends for run in found) else []


def _complete(team: Team, runs: Mapping[str, str]) -> None:
    """All of them ended well, and nothing of them is missing anywhere."""
    records = eventually("runs", lambda: _ended(team, runs))
    states = {run["name"]: (run["state_type"], run["state"]["message"]) for run in records}
    assert {state for state, _ in states.values()} == {"COMPLETED"}, states
    for tuner in runs:
        summary = json.loads((team.folder / "tuned" / tuner / "summary.json").read_text())
        assert summary["prefect_flow_run_id"] == runs[tuner]
        status, steps = _mlflow_run(team, summary["mlflow_run_id"])
        assert status == "FINISHED"
        assert steps > 0
        below = team.rows(
            "mlflow",
            "SELECT r.status FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid WHERE t.key = "
            f"'mlflow.parentRunId' AND t.value = '{summary['mlflow_run_id']}'",
        )
        assert [state for (state,) in below] == ["FINISHED"] * len(summary["workloads"])


def _mlflow_run(team: Team, run: str) -> tuple[str, int]:
    ((status,),) = team.rows("mlflow", f"SELECT status FROM runs WHERE run_uuid = '{run}'")
    ((steps,),) = team.rows("mlflow", f"SELECT count(*) FROM metrics WHERE run_uuid = '{run}'")
    return status, steps


def test_two_workers_tune_at_once(team: Team) -> None:
    team.deployments = _deployed(team, "default", "random")
    runs = _run_all(team, team.deployments)
    _complete(team, runs)
    times = team.rows(
        "prefect",
        "SELECT start_time, end_time FROM flow_run WHERE id IN "
        f"({', '.join(repr(run) for run in runs.values())})",
    )
    (a, b), (c, d) = times
    together = (min(b, d) - max(a, c)).total_seconds()
    assert together > 0, "they ran one after the other"
    whole = (max(b, d) - min(a, c)).total_seconds()
    print(f"\ntwo tunings side by side for {together:.0f} s of {whole:.0f} s")
    for name in "prefect", "mlflow", "postgresql":
        assert not re.search(r"deadlock|database is locked|could not serialize", team.logs(name))


def _load(team: Team) -> tuple[list[str], list[Any]]:
    """Runs of MLflow and what the flows counted, of all processes."""
    arguments = (str(ROOT / "tests" / "team" / "load.py"), str(FLOWS), str(TASKS))
    programs = [team.program(*arguments) for _ in range(PROCESSES)]
    found = []
    for program in programs:
        printed, errors = program.communicate(timeout=LIMIT_SECONDS)
        assert program.returncode == 0, errors[-3000:]
        found += json.loads(printed.splitlines()[-1])
    return [each["run"] for each in found], [each["done"] for each in found]


def test_nothing_is_lost_under_load(team: Team) -> None:
    request = urllib.request.Request(
        f"{team.mlflow}/api/2.0/mlflow/experiments/create", json.dumps({"name": "load"}).encode(),
        team.login | {"Content-Type": "application/json"},
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=ANSWER_SECONDS).close()
    runs, counted = _load(team)
    assert counted == [TASKS] * PROCESSES * FLOWS
    wanted = PROCESSES * FLOWS * TASKS
    query = (
        "SELECT count(*), extract(epoch FROM max(t.end_time) - min(t.start_time)) FROM task_run t "
        "JOIN flow_run r ON r.id = t.flow_run_id JOIN flow f ON f.id = r.flow_id "
        "WHERE f.name = 'load' AND t.state_type = 'COMPLETED'"
    )
    eventually("all tasks on record", lambda: team.rows("prefect", query)[0][0] == wanted)
    ((_, seconds),) = team.rows("prefect", query)
    for run in runs:
        assert _mlflow_run(team, run) == ("FINISHED", TASKS)
    print(
        f"\n{PROCESSES * FLOWS} flows at once, {wanted} tasks with a metric each: "
        f"{wanted / float(seconds):.0f} tasks/s, none lost"
    )


def test_a_killed_postgresql_comes_back_and_the_runs_end_well(team: Team) -> None:
    assert team.deployments, "needs the deployments of the test before"
    undisturbed = {tuner: _trials(team, tuner) for tuner in team.deployments}
    for tuner in team.deployments:
        shutil.rmtree(team.folder / "tuned" / tuner)
    shutil.rmtree(team.folder / "home" / "cache")  # else they would have nothing to do
    runs = _run_all(team, team.deployments)
    stores = [team.folder / "tuned" / tuner / "trials.sqlite" for tuner in runs]
    eventually("first trials", lambda: all(path.exists() for path in stores))
    postmaster = team.folder / "postgresql" / "postmaster.pid"
    killed = int(postmaster.read_text().split()[0])
    os.kill(killed, signal.SIGKILL)
    since = time.monotonic()
    eventually("PostgreSQL", lambda: _answers(team))
    print(f"\nPostgreSQL was away for {time.monotonic() - since:.1f} s")
    assert int(postmaster.read_text().split()[0]) != killed
    assert not _ended(team, runs), "they had ended before"
    _complete(team, runs)
    assert {tuner: _trials(team, tuner) for tuner in runs} == undisturbed
    tasks = _tasks(team, runs)
    ended = tasks.pop("COMPLETED")
    # Prefect's server may lose what it heard of a task's end while it could not write it down.
    assert sum(tasks.values()) <= 2, tasks
    every = ended + sum(tasks.values())
    print(f"both runs ended well, the ends of {ended} of {every} tasks on record")


def _trials(team: Team, tuner: str) -> Any:
    return tables(team.folder / "tuned" / tuner)


def _tasks(team: Team, runs: Mapping[str, str]) -> dict[str, int]:
    """Tasks of runs and of their subflows, by what Prefect's records say of their end."""
    listed = ", ".join(repr(run) for run in runs.values())
    found = team.rows(
        "prefect",
        "SELECT t.state_type::text, count(*) FROM task_run t "
        "JOIN flow_run r ON r.id = t.flow_run_id "
        f"LEFT JOIN task_run p ON p.id = r.parent_task_run_id WHERE r.id IN ({listed}) "
        f"OR p.flow_run_id IN ({listed}) GROUP BY 1",
    )
    return dict(found)


def _answers(team: Team) -> bool:
    try:
        return bool(team.rows("prefect", "SELECT 1"))
    except psycopg2.OperationalError:
        return False
