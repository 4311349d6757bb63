"""Tests the list of runs on the start page, and the deletion of a run.

The runs are finished, active in another process, dead, or failed in Prefect.
"""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from tests.cli.test_servers import post
from tests.trial_tables import frame, rows
from tests.tune_bare import tune_bare
from tilewright.dashboard import listing
from tilewright.dashboard.answers import curves, knobs, list_runs
from tilewright.dashboard.deletion import delete_run, plan_deletion
from tilewright.dashboard.flow_runs import FailedFlowRun, FlowRuns, FlowRunsUnavailable
from tilewright.dashboard.listing import KnownRuns, ListedRun, ThrottledValue, output_folders
from tilewright.search import TrialStore
from tilewright.search.trial_store import FILE
from tilewright.services.mlflow_database import provide_mlflow_database
from tilewright.services.mlflow_server import EXPERIMENT
from tilewright.services.prefect_server import Login
from tilewright.services.server_process import LOOPBACK
from tilewright.services.workspace import Workspace
from tilewright.tasks.runs_table import FOLDER_TAG, QUESTION_TAG
from tilewright.tuning.delete_output import NotDeleted
from tilewright.tuning.run_trials import RunUnreadable, finished_trials

pytestmark = pytest.mark.slow(seconds=2)

TRIALS = 8


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs. The second one's folder also has another tuner's trials."""
    start = tmp_path_factory.mktemp("listed")
    options = {"model": "digits_cnn", "layers": ["conv2", "fc"], "trials": TRIALS, "batch": 4}
    tune_bare(**options, tuner="random", out=str(start / "tuned" / "one"))
    for tuner in "random", "grid":
        tune_bare(**options, tuner=tuner, seed=1, out=str(start / "tuned" / "two"))
    return start


@pytest.fixture
def start(tuned: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder with two runs."""
    return Path(shutil.copytree(tuned, tmp_path / "start"))


@pytest.fixture
def known(start: Path, monkeypatch: pytest.MonkeyPatch) -> KnownRuns:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(start / "home"))
    monkeypatch.setattr(listing, "SHARE", 0)
    return KnownRuns(Workspace(start / "home"), start)


def row_of(known: KnownRuns, **wanted: object) -> dict[str, Any]:
    (results,) = [dict(run.row) for run in known.runs() if wanted.items() <= run.row.items()]
    return results


def died(out: Path, trials: int = 4) -> None:
    """Change a finished run to one that was killed after some trials."""
    (out / "summary.json").unlink()
    rows(out, "update trials set rejected = 'later' where id > ?", trials)


def test_output_directories_are_listed_with_what_came_out(known: KnownRuns) -> None:
    answer = list_runs(known)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    row = row_of(known, tuner="random")
    summary = json.loads((_folder(known, row) / "summary.json").read_text())
    total = summary["total"]
    assert row["state"] == "finished"
    assert row["question"] == "digits_cnn (conv2,fc) on vta-pynq"
    assert row["tuned_ms"] == pytest.approx(1e3 * total["tuned_seconds"])
    assert row["fallback_ms"] == pytest.approx(1e3 * total["fallback_seconds"])
    assert row["gain"] == pytest.approx(total["rule_cycles"] / total["tuned_cycles"])
    over_fallback = total["fallback_cycles"] / total["tuned_cycles"]
    assert row["gain_over_fallback"] == pytest.approx(over_fallback)
    assert (row["mlflow"], row["tracked"], row["seed"], row["trials"]) == (None, False, 0, TRIALS)
    words = shlex.split(row["command"])
    assert words[:3] == ["tilewright", "tune", "digits_cnn"]
    given = dict(itertools.pairwise(words))
    assert {name: given[name] for name in ("--tuner", "--trials", "--batch", "--layers")} == {
        "--tuner": "random", "--trials": str(TRIALS), "--batch": "4", "--layers": "conv2,fc",
    }  # fmt: skip


def _folder(known: KnownRuns, row: dict[str, Any]) -> Path:
    folder = known.find(row["id"]).folder
    assert folder is not None
    return folder


def test_a_run_converges_to_what_its_summary_says(known: KnownRuns) -> None:
    row = row_of(known, tuner="random")  # the other folder may keep schedules of an earlier run
    (result,) = curves(known, [row["id"], row["id"], "another"]).values()
    assert isinstance(result, dict)
    assert result["trials"] == result["of"] == 2 * TRIALS
    assert result["network"][-1] == [2 * TRIALS, pytest.approx(row["tuned_ms"])]
    for layer in result["layers"]:
        assert layer["points"][-1] == [TRIALS, pytest.approx(layer["tuned_ms"])]
        assert layer["bound_ms"] <= layer["tuned_ms"] <= layer["rule_ms"] <= layer["fallback_ms"]


def test_knobs_have_a_row_a_trial_and_their_importance(known: KnownRuns) -> None:
    row = row_of(known, tuner="random")
    run = known.find(row["id"])
    for layer in known.trials(run).layers:
        result = knobs(known, run.id, layer.id)
        trials = known.trials(run).trials_of_workload(layer.id)
        assert [row[0] for row in result["rows"]] == list(trials["trial"])
        assert result["rows"][0][4:] == [*json.loads(trials.iloc[0]["knobs"]).values()]
        shares = result["importance"]
        assert not shares or sum(shares.values()) == pytest.approx(1, abs=0.01)
    with pytest.raises(RunUnreadable, match="has no trial yet"):
        knobs(known, run.id, "another")


def test_of_many_trials_the_fastest_are_drawn_and_some_others(
    known: KnownRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.dashboard.answers.MOST_ROWS", 4)
    run = known.find(row_of(known, tuner="random")["id"])
    layer = known.trials(run).layers[0].id
    result = knobs(known, run.id, layer)
    times = sorted(row[1] for row in result["rows"] if row[1] is not None)
    all_times = 1e3 * known.trials(run).trials_of_workload(layer)["seconds"].dropna()
    assert len(result["rows"]) == 4
    assert result["trials"] == TRIALS
    assert times[:2] == pytest.approx(sorted(all_times)[:2])


def test_a_run_that_another_process_writes_is_seen_trial_by_trial(
    known: KnownRuns, start: Path
) -> None:
    out = start / "tuned" / "one"
    died(out)
    with TrialStore(out / FILE):
        row = row_of(known, state="running")
        assert _trials(known, row) == 4
        rows(out, "update trials set rejected = null where id <= 5")
        assert _trials(known, row) == 5
        rows(out, "update trials set rejected = null")
        assert _trials(known, row) == 2 * TRIALS
    assert row_of(known, id=row["id"])["state"] == "stopped"


def _trials(known: KnownRuns, row: dict[str, Any]) -> object:
    result = curves(known, [row["id"]])[row["id"]]
    assert isinstance(result, dict)
    return result.get("trials", result)


def test_trials_of_another_tuner_in_the_same_folder_are_not_the_runs(
    known: KnownRuns, start: Path
) -> None:
    out = start / "tuned" / "two"
    ours = finished_trials(out).table["config"].map(list).tolist()
    (out / "summary.json").unlink()
    run = known.find(row_of(known, tuner="grid")["id"])
    table = known.trials(run).table
    assert len(frame(out)) > len(table)
    assert table["config"].tolist() == ours


@pytest.mark.parametrize("name", ["summary.json", "schedules.json", "trials.parquet"])
def test_a_damaged_run_is_said_and_takes_no_other_with_it(
    known: KnownRuns, start: Path, name: str
) -> None:
    ids = {row_of(known, tuner=tuner)["id"] for tuner in ("random", "grid")}
    (start / "tuned" / "one" / name).write_bytes(b'{"half')
    fresh = KnownRuns(known.workspace, start)
    assert {run.id for run in fresh.runs()} == ids
    result = curves(fresh, sorted(ids))
    errors = [item for item in result.values() if isinstance(item, dict) and "error" in item]
    assert len(errors) == (0 if name == "summary.json" else 1)
    (start / "tuned" / "one" / "run.json").write_bytes(b"[]")
    assert len(fresh.runs()) == 1


def test_only_folders_nearby_are_looked_into(start: Path) -> None:
    for name in "a/b/c/d", ".hidden", "near":
        shutil.copytree(start / "tuned" / "one", start / name, dirs_exist_ok=True)
    (start / "link").symlink_to(start / "near")
    relatives = sorted(str(folder.relative_to(start)) for folder in output_folders(start))
    assert relatives == ["near", "tuned/one", "tuned/two"]


def test_what_takes_long_to_read_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(listing.time, "monotonic", lambda: now[0])
    reads: list[float] = []

    def read_slowly() -> int:
        now[0] += 2.0
        reads.append(now[0])
        return len(reads)

    value = ThrottledValue(read_slowly)
    seen = []
    for _ in range(4):
        seen.append(value.refresh())
        now[0] += 40.0
    assert (seen, value.value) == ([True, False, False, True], 2)


def test_an_empty_workspace_has_no_runs(tmp_path: Path) -> None:
    known = KnownRuns(Workspace(tmp_path / "home"), tmp_path)
    assert list_runs(known)["runs"] == []
    with pytest.raises(RunUnreadable, match="the run does not exist"):
        known.find("another")


# -- runs in MLflow ------------------------------------------------------------------------------


@pytest.fixture
def client(known: KnownRuns) -> MlflowClient:
    workspace = known.workspace
    workspace.mlflow_artifacts.mkdir(parents=True)
    provide_mlflow_database(workspace.mlflow_database)
    client = MlflowClient(tracking_uri=workspace.mlflow_address)
    client.create_experiment(EXPERIMENT, artifact_location=workspace.mlflow_artifacts.as_uri())
    return client


def track(client: MlflowClient, out: Path, **params: object) -> str:
    """Start an MLflow run as `tilewright tune` does. Return its ID."""
    tags = {QUESTION_TAG: "q", FOLDER_TAG: str(out), "prefect_flow_run_id": "f-1"}
    run = client.create_run(client.get_experiment_by_name(EXPERIMENT).experiment_id, tags=tags)
    held = json.loads((out / "run.json").read_text())
    about = {name: held[name] for name in ("tuner", "seed", "trials")}
    about |= {"network": "digits_cnn", "target": "vta-pynq", "layers": "conv2,fc"} | params
    for name, value in about.items():
        client.log_param(run.info.run_id, name, value)
    return str(run.info.run_id)


def test_a_tracked_run_is_listed_once_from_its_beginning_to_its_end(
    known: KnownRuns, client: MlflowClient, start: Path
) -> None:
    out = start / "tuned" / "one"
    died(out)
    run_id = track(client, out)
    with TrialStore(out / FILE):
        row = row_of(known, tuner="random")
        assert (row["id"], row["state"], row["tuned_ms"]) == (run_id, "running", None)
        assert f"/runs/{run_id}" in row["mlflow"]
        assert row["prefect"].endswith("/runs/flow-run/f-1")
        assert _trials(known, row) == 4
    assert row_of(known, tuner="random")["state"] == "stopped"  # MLflow was not informed of the end
    shutil.copytree(start / "tuned" / "two", out, dirs_exist_ok=True)  # a new run uses it now
    for name in "summary.json", "schedules.json", "trials.parquet":
        client.log_artifact(run_id, str(out / name))
    # metrics as version 0.2 logged them; its gain was relative to the fallback
    for name, value in {"tuned_ms": 0.5, "fallback_ms": 2.0, "baseline_ms": 1, "gain": 4}.items():
        client.log_metric(run_id, name, value)
    client.set_terminated(run_id)
    row = row_of(known, id=run_id)
    assert (row["state"], row["rule_ms"], row["tuned_ms"]) == ("finished", 1.0, 0.5)
    assert (row["gain"], row["gain_over_fallback"]) == (2.0, 4.0)
    assert _trials(known, row) == 2 * TRIALS  # read from its artifacts
    client.delete_run(run_id)
    known._tracked._all._due = 0.0  # refresh at once, not after the usual delay
    assert run_id not in {run.id for run in known.runs()}


def test_between_two_full_readings_new_and_ended_runs_are_seen(
    known: KnownRuns, client: MlflowClient, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = track(client, start / "tuned" / "one")
    known.runs()
    monkeypatch.setattr(known._tracked._all, "_due", float("inf"))
    second = track(client, start / "tuned" / "two")
    client.set_terminated(first, "FAILED")
    states = {run.id: run.row["state"] for run in known.runs() if run.row["tracked"]}
    assert states == {first: "failed", second: "stopped"}


def test_runs_that_this_program_did_not_write_are_left_out(
    known: KnownRuns, client: MlflowClient, start: Path
) -> None:
    track(client, start / "tuned" / "one", seed="none")
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    client.create_run(experiment, tags={"mlflow.runName": "<b>co-design</b>"})
    assert not [run for run in known.runs() if run.row["tracked"]]


def test_a_run_whose_directory_is_gone_says_so(
    known: KnownRuns, client: MlflowClient, start: Path
) -> None:
    run_id = track(client, start / "tuned" / "one")
    client.set_terminated(run_id, "KILLED")
    shutil.rmtree(start / "tuned" / "one")
    result: ListedRun = known.find(run_id)
    assert result.row["state"] == "stopped"
    answer = curves(known, [run_id])[run_id]
    assert isinstance(answer, dict)
    assert "output directory" in str(answer["error"])


# -- deleting runs -------------------------------------------------------------------------------


def finished_by(out: Path, run_id: str) -> None:
    """Record in an output directory that its results belong to an MLflow run."""
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(summary | {"mlflow_run_id": run_id}))


def test_a_deleted_run_is_gone_from_the_list_and_the_disk(known: KnownRuns, start: Path) -> None:
    kept, deleted = (row_of(known, tuner=tuner)["id"] for tuner in ("grid", "random"))
    assert "tuned/one" in " ".join(plan_deletion(known, deleted).sentences)
    assert (start / "tuned" / "one").exists()
    delete_run(known, deleted)
    assert {each.id for each in known.runs()} == {kept}
    assert not (start / "tuned" / "one").exists()
    assert (start / "tuned" / "two" / "summary.json").exists()
    with pytest.raises(RunUnreadable):
        delete_run(known, deleted)


def test_a_deleted_tracked_run_is_gone_from_mlflow_with_its_children(
    known: KnownRuns, client: MlflowClient, start: Path
) -> None:
    run_id = track(client, start / "tuned" / "one")
    experiment = client.get_run(run_id).info.experiment_id
    finished_by(start / "tuned" / "one", run_id)
    child = client.create_run(experiment, tags={"mlflow.parentRunId": run_id}).info.run_id
    client.set_terminated(run_id)
    delete_run(known, run_id)
    assert {each.row["tuner"] for each in known.runs()} == {"grid"}
    stages = [client.get_run(each).info.lifecycle_stage for each in (run_id, child)]
    assert stages == ["deleted", "deleted"]
    assert not (start / "tuned" / "one").exists()


def test_trials_stay_until_the_last_run_that_used_them_is_deleted(
    known: KnownRuns, client: MlflowClient, start: Path
) -> None:
    out = start / "tuned" / "one"
    earlier, latest = track(client, out), track(client, out)
    finished_by(out, latest)
    for run_id in (earlier, latest):
        client.set_terminated(run_id)
    assert "belong to another run" in " ".join(plan_deletion(known, earlier).sentences)
    assert plan_deletion(known, latest).keep_trials
    delete_run(known, latest)
    assert [each.name for each in out.iterdir()] == [FILE]
    assert earlier in {each.id for each in known.runs()}


@pytest.mark.attack
@pytest.mark.parametrize("named", ["victim", "../victim", "link", ".."])
def test_a_forged_record_deletes_no_other_directory(
    known: KnownRuns, client: MlflowClient, start: Path, named: str
) -> None:
    """Somebody else may have written the tag with the output directory into MLflow."""
    victim = start.parent / "victim"
    shutil.copytree(start / "tuned" / "one", victim)
    (start / "link").symlink_to(victim)
    folder = {"victim": victim, "..": start / ".."}.get(named, start / named)
    run_id = track(client, start / "tuned" / "one")
    client.set_tag(run_id, FOLDER_TAG, str(folder))
    client.set_terminated(run_id)
    before = sorted(each.name for each in victim.iterdir())
    said = " ".join(delete_run(known, run_id).sentences)
    assert "stay" in said or named == ".."
    assert sorted(each.name for each in victim.iterdir()) == before
    assert client.get_run(run_id).info.lifecycle_stage == "deleted"


@pytest.mark.attack
@pytest.mark.parametrize("run_id", ["", "..", "../../victim", "folder-", "/etc", "a\0b", "%2e%2e"])
def test_an_id_is_no_path(known: KnownRuns, run_id: str) -> None:
    with pytest.raises(RunUnreadable, match="the run does not exist"):
        delete_run(known, run_id)
    assert len(known.runs()) == 2


def test_a_run_in_progress_is_not_deleted(known: KnownRuns, start: Path) -> None:
    out = start / "tuned" / "one"
    died(out)
    with TrialStore(out / FILE):
        row = row_of(known, state="running")
        with pytest.raises(NotDeleted, match="in progress"):
            delete_run(known, row["id"])
    assert (out / "run.json").exists()


# -- runs in Prefect -----------------------------------------------------------------------------


def _failed_in_prefect(login: Login, message: str, **parameters: object) -> str:
    """Create a Prefect flow run that failed before its first trial. Return its ID."""
    headers = login.credentials.headers
    flow = post(f"{login.api_url}/flows/", {"name": "tune_network"}, headers)
    asked = {
        "flow_id": flow["id"], "parameters": parameters,
        "state": {"type": "FAILED", "message": message},
    }  # fmt: skip
    return str(post(f"{login.api_url}/flow_runs/", asked, headers)["id"])


def test_a_night_that_failed_before_mlflow_is_listed_as_in_prefect(
    known: KnownRuns, prefect_server: Login
) -> None:
    flow_runs = FlowRuns(prefect_server.api_url, prefect_server.credentials.login)
    known = KnownRuns(known.workspace, known.start, flow_runs)
    given = {"model": "digits_cnn", "target": "lab.json", "tuner": "grid", "trials": 4, "seed": 3}
    flow_run = _failed_in_prefect(prefect_server, "cannot read lab.json", **given)
    row = row_of(known, flow_run=flow_run)
    assert (row["state"], row["message"]) == ("failed", "cannot read lab.json")
    assert {name: row[name] for name in ("target", "tuner", "trials", "seed")} == {
        name: given[name] for name in ("target", "tuner", "trials", "seed")
    }
    assert row["prefect"].endswith(flow_run)
    assert row["command"].startswith("tilewright tune digits_cnn --target lab.json")
    delete_run(known, row["id"])
    assert flow_run not in {each.row["flow_run"] for each in known.runs()}


def test_a_tracked_run_has_the_state_of_its_flow_run_and_its_message(
    known: KnownRuns, client: MlflowClient, start: Path
) -> None:
    run_id = track(client, start / "tuned" / "one")
    client.set_terminated(run_id)
    crashed = FailedFlowRun("f-1", "crashed", "out of memory", "2026-11-25T17:02:34Z", {})
    tracked = list(listing.tracked_runs([client.get_run(run_id)]))
    (run,) = listing.merge_failed(tracked, [crashed])
    assert (run.row["state"], run.row["message"]) == ("crashed", "out of memory")


def test_a_deletion_waits_for_a_busy_database(free_server: tuple[str, list[int]]) -> None:
    """Prefect's server answers with status 503 while another process writes to its SQLite file."""
    address, statuses = free_server
    statuses += [503, 503, 200, 503, 204]
    FlowRuns(address).delete("f-1")
    assert statuses == []


@pytest.fixture
def free_server() -> Iterator[tuple[str, list[int]]]:
    """Yield a server that answers `[]` with the statuses of a list, one after the other."""
    statuses: list[int] = []

    class StatusHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(statuses.pop(0))
            self.end_headers()
            self.wfile.write(b"[]")

        do_DELETE = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), StatusHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}/api", statuses
        server.shutdown()


def test_the_page_does_without_prefect(known: KnownRuns) -> None:
    nobody = FlowRuns("http://127.0.0.1:9/api", "user:secret")
    with pytest.raises(FlowRunsUnavailable):
        nobody.failed()
    assert len(KnownRuns(known.workspace, known.start, nobody).runs()) == 2
