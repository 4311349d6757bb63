"""Tests a team's servers with two workers, while their PostgreSQL server is killed.

`make team-test` runs these tests and prints the results of the load test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.team.conftest import CLUSTER, LIMIT_SECONDS, ROOT, Team, eventually

pytestmark = [pytest.mark.team, pytest.mark.slow(seconds=120)]
PROCESSES, FLOWS, TASKS = 2, 4, 25


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
    """Return the workers of the work pool, or none if the pool does not exist yet."""
    try:
        result: list[Any] = team.ask("work_pools/tilewright/workers/filter", {})
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 404:
            raise
        return []
    return result


def _run_all(team: Team, tuners: Mapping[str, str]) -> dict[str, str]:
    """Start a run of each deployment. Return the run IDs by tuner."""
    created = {t: team.ask(f"deployments/{d}/create_flow_run", {}) for t, d in tuners.items()}
    return {tuner: run["id"] for tuner, run in created.items()}


def _ended(team: Team, runs: Mapping[str, str]) -> list[Any]:
    """Return the records of the runs if all of them have ended, otherwise an empty list."""
    result = team.ask("flow_runs/filter", {"flow_runs": {"id": {"any_": list(runs.values())}}})
    ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    return result if all(run["state_type"] in ends for run in result) else []


def _complete(team: Team, runs: Mapping[str, str]) -> None:
    """Check that all runs completed and that none of their records is missing."""
    records = eventually("runs", lambda: _ended(team, runs))
    states = {run["name"]: (run["state_type"], run["state"]["message"]) for run in records}
    assert {state for state, _ in states.values()} == {"COMPLETED"}, states
    for tuner in runs:
        summary = _summary(team, tuner)
        assert summary["prefect_flow_run_id"] == runs[tuner]
        status, steps = _mlflow_run(team, summary["mlflow_run_id"])
        assert status == "FINISHED"
        assert steps > 0
        below = team.rows(
            "mlflow",
            "SELECT r.status FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid WHERE t.key = "
            f"'mlflow.parentRunId' AND t.value = '{summary['mlflow_run_id']}'",
        )
        assert [run["status"] for run in below] == ["FINISHED"] * len(summary["workloads"])


def _summary(team: Team, tuner: str) -> Any:
    return json.loads((team.state / "worker" / "tuned" / tuner / "summary.json").read_text())


def _mlflow_run(team: Team, run: str) -> tuple[str, int]:
    (result,) = team.rows(
        "mlflow",
        "SELECT status, (SELECT count(*) FROM metrics m WHERE m.run_uuid = r.run_uuid) AS steps "
        f"FROM runs r WHERE run_uuid = '{run}'",
    )
    return result["status"], result["steps"]


def test_two_workers_tune_at_once(team: Team) -> None:
    team.deployments = _deployed(team, "default", "random")
    runs = _run_all(team, team.deployments)
    _complete(team, runs)
    (times,) = team.rows(
        "prefect",
        "SELECT extract(epoch FROM min(end_time) - max(start_time)) AS together, "
        "extract(epoch FROM max(end_time) - min(start_time)) AS whole FROM flow_run WHERE id IN "
        f"({', '.join(repr(run) for run in runs.values())})",
    )
    assert times["together"] > 0, "they ran one after the other"
    print(f"\ntwo tunings at once for {times['together']:.0f} s of {times['whole']:.0f} s")
    for name in "prefect", "mlflow":
        assert not re.search(r"deadlock|database is locked|could not serialize", team.log(name))


def _load(team: Team) -> tuple[list[str], list[Any]]:
    """Run the load programs. Return their MLflow runs and the task counts of their flows."""
    arguments = (str(ROOT / "tests" / "team" / "load.py"), str(FLOWS), str(TASKS))
    programs = [team.program(*arguments) for _ in range(PROCESSES)]
    results = []
    for program in programs:
        printed, errors = program.communicate(timeout=LIMIT_SECONDS)
        assert program.returncode == 0, errors[-3000:]
        results += json.loads(printed.splitlines()[-1])
    return [item["run"] for item in results], [item["done"] for item in results]


def test_nothing_is_lost_under_load(team: Team) -> None:
    with team.client("mlflow", team.ada) as client:
        made = client.post("/api/2.0/mlflow/experiments/create", json={"name": "load"})
    assert made.status_code == 200
    runs, counted = _load(team)
    assert counted == [TASKS] * PROCESSES * FLOWS
    wanted = PROCESSES * FLOWS * TASKS
    query = (
        "SELECT count(*) AS tasks, extract(epoch FROM max(t.end_time) - min(t.start_time)) "
        "AS seconds FROM task_run t "
        "JOIN flow_run r ON r.id = t.flow_run_id JOIN flow f ON f.id = r.flow_id "
        "WHERE f.name = 'load' AND t.state_type = 'COMPLETED'"
    )
    eventually("all tasks on record", lambda: team.rows("prefect", query)[0]["tasks"] == wanted)
    (result,) = team.rows("prefect", query)
    for run in runs:
        assert _mlflow_run(team, run) == ("FINISHED", TASKS)
    print(
        f"\n{PROCESSES * FLOWS} flows at once, {wanted} tasks with a metric each: "
        f"{wanted / result['seconds']:.0f} tasks/s, none lost"
    )


def test_a_killed_postgresql_comes_back_and_the_runs_end_well(team: Team) -> None:
    assert team.deployments, "needs the deployments of the test before"
    undisturbed = {tuner: _results(team, tuner) for tuner in team.deployments}
    worker = team.state / "worker"
    for tuner in team.deployments:
        shutil.rmtree(worker / "tuned" / tuner)
    shutil.rmtree(worker / "home" / "cache")  # otherwise everything would be cached
    runs = _run_all(team, team.deployments)
    eventually("first rounds", lambda: sum(_tasks(team, runs).values()) >= 8)
    version, data = _cluster()
    os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    since = time.monotonic()
    eventually("the end of PostgreSQL", lambda: not _answers(team))
    eventually("PostgreSQL", lambda: _is_started(team, version))
    print(f"\nPostgreSQL was away for {time.monotonic() - since:.1f} s")
    assert not _ended(team, runs), "they had ended before"
    _complete(team, runs)
    assert {tuner: _results(team, tuner) for tuner in runs} == undisturbed
    tasks = _tasks(team, runs)
    ended = tasks.pop("COMPLETED")
    # Prefect's server may lose the end of a task that it could not store in the database.
    assert sum(tasks.values()) <= 2, tasks
    every = ended + sum(tasks.values())
    print(f"both runs ended well, the ends of {ended} of {every} tasks on record")


def _results(team: Team, tuner: str) -> list[Any]:
    """Return the schedules that a run found, with their cycles."""
    keys = ("id", "tuned_cycles", "knobs")
    return [[row.get(key) for key in keys] for row in _summary(team, tuner)["workloads"]]


def _cluster() -> tuple[str, Path]:
    """Return PostgreSQL's version and the folder of the tests' databases."""
    listed = subprocess.run(["pg_lsclusters", "-h"], capture_output=True, text=True, check=True)
    (line,) = [line for line in listed.stdout.splitlines() if f" {CLUSTER} " in line]
    return line.split()[0], Path(line.split()[5])


def _tasks(team: Team, runs: Mapping[str, str]) -> dict[str, int]:
    """Count the tasks of runs and their subflows by final state, from Prefect's database."""
    listed = ", ".join(repr(run) for run in runs.values())
    rows = team.rows(
        "prefect",
        "SELECT t.state_type::text AS state, count(*) AS tasks FROM task_run t "
        "JOIN flow_run r ON r.id = t.flow_run_id "
        f"LEFT JOIN task_run p ON p.id = r.parent_task_run_id WHERE r.id IN ({listed}) "
        f"OR p.flow_run_id IN ({listed}) GROUP BY 1",
    )
    return {row["state"]: row["tasks"] for row in rows}


def _is_started(team: Team, version: str) -> bool:
    """Start PostgreSQL as systemd or an administrator does. Return whether it answers.

    The caller repeats this while the killed process still exists.
    """
    command = ["pg_ctlcluster", version, CLUSTER, "start"]
    subprocess.run(command, cwd="/", check=False, capture_output=True)
    return _answers(team)


def _answers(team: Team) -> bool:
    return team.psql("postgres", "SELECT 1").returncode == 0
