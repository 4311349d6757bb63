"""Tests the regression watch of nightly runs: unchanged nights, worse nights and notifications."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.cli.conftest import Place
from tests.sharing import made_once, prefect_beside

pytestmark = pytest.mark.slow(seconds=4)

NIGHTS = """
import json, os, sys
import tilewright.services
from tilewright.services.workspace import use_workspace
use_workspace()
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.states import Scheduled
from tilewright.flows.nightly import tune_network

def retry(run_id, given):
    with get_client(sync_client=True) as client:
        # by force: Prefect's pages retry runs of deployments only
        client.set_flow_run_state(run_id, Scheduled(name="AwaitingRetry"), force=True)
        run = client.read_flow_run(run_id)
    return run_flow(tune_network, flow_run=run, parameters=given, return_type="state")

usual = dict(model="digits_cnn", layers=("conv3", "fc"), tuner="ml2tuner-published", batch=8)
nights = {
    "first": (dict(trials=24, out="a"), "flag"),
    "same": (dict(trials=24, out="a"), "flag"),
    "worse": (dict(trials=1, out="b", tuner="random"), "flag"),
    "mended": (dict(trials=24, out="a"), "flag"),
    "worst": (dict(trials=1, out="c", tuner="random", seed=8), "fail"),
    "retried": (dict(trials=1, out="c", tuner="random", seed=8), "fail"),
    "other": (dict(trials=1, out="d", epilogue="plain", tuner="random"), "flag"),
    "unwatched": (dict(trials=1, out="b", tuner="random"), "off"),
}
for name, (options, when) in nights.items():
    given = usual | options | {"when_worse": when}
    if name == "retried":
        state = retry(ids[0], given)
    else:
        state = tune_network(**given, return_state=True)
    with open(f"{options['out']}/summary.json") as file:
        summary = json.load(file)
    ids = [summary["prefect_flow_run_id"], summary["mlflow_run_id"]]
    print(json.dumps([name, state.name, state.message, *ids]), file=sys.stderr)
from tilewright.services.start_servers import send_pending_records
send_pending_records()
"""


@dataclass(frozen=True)
class Night:
    id: str
    state: str
    message: str
    page: str
    tags: list[str]
    event: dict[str, Any] | None
    mlflow: dict[str, str]
    metrics: dict[str, float]


@pytest.fixture(scope="session")
def nights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Night]:
    """Return the records of each night of `NIGHTS` in Prefect and MLflow."""

    def spend(folder: Path) -> None:
        with prefect_beside(folder / "prefect") as server:
            place = Place(folder, server)
            done = warm.run([], folder, place.environment, 300, program=NIGHTS)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("[")]
        (folder / "said").write_text("\n".join(said))

    folder = made_once(tmp_path_factory, "nights", spend)
    lines = map(json.loads, (folder / "said").read_text().splitlines())
    return {name: _night(folder, *rest) for name, *rest in lines}


def _night(folder: Path, state: str, message: str | None, run_id: str, mlflow_id: str) -> Night:
    with rows(folder / "prefect" / "prefect" / "prefect.db") as ask:
        ((tags,),) = ask("select tags from flow_run where id = ?", run_id)
        pages = ask(
            "select data from artifact where key = 'regression-watch' and flow_run_id = ?", run_id
        )
        events = [
            {"event": event, **json.loads(payload)}
            for event, payload in ask("select event, payload from events where event like 'tile%'")
            if run_id in payload
        ]
    with rows(folder / "home" / "mlflow" / "mlflow.db") as ask:
        mlflow = dict(ask("select key, value from tags where run_uuid = ?", mlflow_id))
        metrics = dict(ask("select key, value from latest_metrics where run_uuid = ?", mlflow_id))
    return Night(
        mlflow_id, state, message or "", "".join(json.loads(page) for (page,) in pages),
        json.loads(tags), events[0] if events else None, mlflow, metrics,
    )  # fmt: skip


@contextmanager
def rows(path: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(path)) as database:
        yield lambda query, *given: database.execute(query, given).fetchall()


def test_a_first_night_has_nothing_to_compare_with(nights: dict[str, Night]) -> None:
    first = nights["first"]
    assert first.state == "Completed"
    assert "no earlier run of this network on this target" in first.page
    assert first.mlflow["tilewright.watch"] == "first"
    assert first.event is not None
    assert first.event["event"] == "tilewright.first-run"
    assert "watch: first" in first.tags


def test_a_night_in_which_nothing_changed_says_so(nights: dict[str, Night]) -> None:
    same = nights["same"]
    assert same.state == "Completed"
    assert same.message.startswith("Nothing changed: all 48 trials were recorded before, ")
    assert same.mlflow["tilewright.watch"] == "no worse"
    assert same.mlflow["tilewright.compared_with"] == nights["first"].id
    assert same.metrics["change_since_last_run"] == 0
    assert "watch: no worse" in same.tags
    assert same.event is not None
    assert (same.event["event"], same.event["reasons"]) == ("tilewright.no-regression", [])


def test_a_night_that_is_worse_is_flagged_wherever_somebody_looks(nights: dict[str, Night]) -> None:
    worse = nights["worse"]
    assert worse.state == "Completed"
    assert worse.message.startswith("worse: ")
    assert worse.mlflow["tilewright.watch"] == "worse"
    assert worse.mlflow["tilewright.compared_with"] == nights["same"].id
    assert worse.metrics["change_since_last_run"] > 0
    assert "watch: worse" in worse.tags
    assert worse.event is not None
    assert worse.event["event"] == "tilewright.regression"
    assert any("the tuned layers of the network" in reason for reason in worse.event["reasons"])
    assert "| tuned layers |" in worse.page
    assert nights["same"].id in worse.page
    assert worse.id in worse.page


def test_a_night_is_held_against_the_last_of_its_own_settings(nights: dict[str, Night]) -> None:
    mended = nights["mended"]
    assert mended.mlflow["tilewright.compared_with"] == nights["same"].id
    assert mended.mlflow["tilewright.watch"] == "no worse"


def test_where_it_is_asked_for_a_worse_night_fails_and_its_results_stay(
    nights: dict[str, Night],
) -> None:
    worst = nights["worst"]
    assert worst.state == "Failed"
    assert worst.message.startswith("worse: ")
    assert worst.mlflow["tilewright.compared_with"] == nights["mended"].id
    assert worst.metrics["tuned_cycles"] > nights["mended"].metrics["tuned_cycles"]


def test_a_worse_night_that_is_retried_is_held_against_the_night_before_it(
    nights: dict[str, Night],
) -> None:
    """The retried run has the same results. It must not be compared with its own first attempt."""
    retried = nights["retried"]
    assert retried.state == "Failed"
    assert retried.id != nights["worst"].id
    assert retried.mlflow["tilewright.compared_with"] == nights["mended"].id


def test_another_epilogue_is_another_question(nights: dict[str, Night]) -> None:
    assert nights["other"].mlflow["tilewright.watch"] == "first"


def test_who_does_not_watch_compares_nothing(nights: dict[str, Night]) -> None:
    off = nights["unwatched"]
    assert off.state == "Completed"
    assert (off.page, off.event) == ("", None)
    assert "tilewright.watch" not in off.mlflow
    assert not any(tag.startswith("watch") for tag in off.tags)


def test_curves_count_measurements_and_runs_have_the_same_figures(nights: dict[str, Night]) -> None:
    assert {night.metrics["trials"] for night in nights.values()} == {2.0, 48.0}
    named = {"tuned_cycles", "bound_cycles", "valid_share", "wall_seconds", "reused_trials"}
    assert all(named <= night.metrics.keys() for night in nights.values())
    assert {"P_rmse", "V_brier"} <= nights["first"].metrics.keys() & nights["same"].metrics.keys()
