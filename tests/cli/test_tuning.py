"""Tests `tilewright tune` from end to end, as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import warm
from tests.cli.conftest import LAYERS, ROUNDS, TRIALS, TUNE, Place, Tuned
from tests.cli.test_servers import post
from tests.trial_tables import frame, tables
from tilewright.services.prefect_server import Login
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.slow(seconds=8)

FILES = {"run.json", "summary.json", "schedules.json", "trials.parquet", "convergence.png",
         "trials.sqlite"}  # fmt: skip


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_the_folder_holds_the_promised_files(tuned: Tuned) -> None:
    assert visible(tuned.out) == FILES
    assert (tuned.out / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_says_what_each_workload_costs(tuned: Tuned) -> None:
    summary = tuned.place.json("out/summary.json")
    assert {"network", "target", "tuner", "seed", "workloads", "total", "wall_seconds",
            "mlflow_run_id", "prefect_flow_run_id"} <= summary.keys()  # fmt: skip
    assert (summary["network"], summary["target"]) == ("digits_cnn", "vta-pynq")
    assert (summary["tuner"], summary["seed"]) == ("ml2tuner-published", 7)
    target = make_target("vta-pynq")
    schedules = tuned.place.json("out/schedules.json")["schedules"]
    assert [row["names"] for row in schedules] == [[name] for name in LAYERS]
    for row, schedule in zip(summary["workloads"], schedules, strict=True):
        assert {"id", "operator", "count", "macs", "rule_cycles", "tuned_cycles",
                "roofline_cycles", "trials", "invalid_trials", "lowered",
                "wall_seconds"} <= row.keys()  # fmt: skip
        workload = parse_workload(row["workload"], schedule["epilogue"])
        assert row["id"] == schedule["id"] == workload.id
        assert (row["operator"], row["macs"]) == (workload.operator, workload.macs)
        assert row["roofline_cycles"] == target.roofline(workload).cycles <= row["tuned_cycles"]
        assert row["rule_cycles"] == target.baseline(workload).latency.cycles >= row["tuned_cycles"]
        assert row["fallback_cycles"] == target.fallback(workload).latency.cycles
        assert row["fallback_cycles"] >= row["rule_cycles"]
        assert row["trials"] == TRIALS
    for name in ("rule_cycles", "fallback_cycles", "tuned_cycles", "roofline_cycles"):
        weighed = sum(row["count"] * row[name] for row in summary["workloads"])
        assert summary["total"][name] == weighed
    assert summary["total"]["tuned_cycles"] < summary["total"]["rule_cycles"]


def test_chosen_schedules_cost_what_is_claimed_and_compute_right_numbers(tuned: Tuned) -> None:
    document = tuned.place.json("out/schedules.json")
    target = make_target("vta-pynq")
    assert document["target"]["fingerprint"] == target.fingerprint
    for row in document["schedules"]:
        assert row["source"] == "trial"
        workload = parse_workload(row["workload"], row["epilogue"])
        config = np.array([row["config"]], dtype=np.int32)
        lowered = target.lower(workload, config)
        assert target.measure(lowered).cycles.tolist() == [row["cycles"]]
        assert target.verify(lowered).tolist() == [0]
        assert target.space(workload).describe(row["config"]) == row["knobs"]


def test_every_trial_is_a_row_of_the_table(tuned: Tuned) -> None:
    trials = pd.read_parquet(tuned.out / "trials.parquet")
    assert list(trials.columns) == ["workload", "trial", "round", "config", "knobs", "status",
                                    "reason", "cycles", "seconds"]  # fmt: skip
    summary = tuned.place.json("out/summary.json")
    for row in summary["workloads"]:
        mine = trials[trials["workload"] == row["id"]]
        assert mine["trial"].tolist() == list(range(TRIALS))
        assert mine["config"].map(tuple).is_unique
        valid = mine[mine["status"] == "valid"]
        assert valid["cycles"].min() == row["tuned_cycles"]
        assert len(mine) - len(valid) == row["invalid_trials"]
        assert all(isinstance(json.loads(text), dict) for text in mine["knobs"])


def test_the_terminal_shows_a_line_a_workload_and_the_totals(tuned: Tuned) -> None:
    total = tuned.place.json("out/summary.json")["total"]
    for place in range(1, len(LAYERS) + 1):
        assert tuned.printed.count(f"[{place}/{len(LAYERS)}] ") == 1
    assert f"{total['tuned_cycles']:,}" in tuned.printed
    run_id = tuned.place.json("out/summary.json")["mlflow_run_id"]
    assert f"/runs/{run_id}?workflowType=machine_learning" in tuned.printed
    assert "\x1b[" not in tuned.printed


def test_mlflow_and_prefect_point_to_each_other(tuned: Tuned) -> None:
    summary = tuned.place.json("out/summary.json")
    script = (
        "import json, sys; from mlflow.tracking import MlflowClient\n"
        "client = MlflowClient(sys.argv[1]); run = client.get_run(sys.argv[2])\n"
        "children = client.search_runs([run.info.experiment_id],"
        " filter_string=f\"tags.mlflow.parentRunId = '{run.info.run_id}'\")\n"
        "print(json.dumps([{'status': r.info.status, 'tags': r.data.tags,"
        " 'params': r.data.params, 'metrics': r.data.metrics,"
        " 'artifacts': [a.path for a in client.list_artifacts(r.info.run_id)],"
        " 'name': r.info.run_name,"
        " 'datasets': [d.dataset.name for d in r.inputs.dataset_inputs],"
        " 'models': [m.model_id for m in (*r.inputs.model_inputs, *r.outputs.model_outputs)],"
        " 'chart': {name: [m.value for m in client.get_metric_history(r.info.run_id, name)]"
        " for name in ('cycles/best', 'cycles/rule', 'cycles/bound')}}"
        " for r in [run, *children]]))"
    )
    store = f"sqlite:///{tuned.place.folder}/home/mlflow/mlflow.db"
    done = warm.run(
        [store, summary["mlflow_run_id"]], tuned.place.folder, tuned.place.environment, 300,
        program=script,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parent, *children = json.loads(done.stdout)
    assert parent["tags"]["prefect_flow_run_id"] == summary["prefect_flow_run_id"]
    assert summary["prefect_flow_run_id"] in parent["tags"]["prefect_flow_run_url"]
    assert parent["params"]["tuner"] == "ml2tuner-published"
    assert {"summary.json", "schedules.json", "trials.parquet"} <= set(parent["artifacts"])
    assert parent["name"] == f"ml2tuner-published, seed 7, {TRIALS} trials: digits_cnn on vta-pynq"
    total = summary["total"]
    gain = total["rule_cycles"] / total["tuned_cycles"]
    assert parent["metrics"]["gain"] == pytest.approx(gain, rel=1e-5)
    over_fallback = total["fallback_cycles"] / total["tuned_cycles"]
    assert parent["metrics"]["gain_over_fallback"] == pytest.approx(over_fallback, rel=1e-5)
    listed = warm.run(
        [], tuned.place.folder, tuned.place.environment, 300,
        program="import tilewright; print(tilewright.runs().to_json(orient='records'))",
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    row = next(r for r in json.loads(listed.stdout) if r["run_id"] == summary["mlflow_run_id"])
    assert (row["network"], row["tuner"], row["seed"], row["trials"]) == (
        "digits_cnn", "ml2tuner-published", 7, TRIALS,
    )  # fmt: skip
    assert row["tuned_cycles"] == total["tuned_cycles"]
    assert row["gain"] == pytest.approx(gain, rel=1e-5)
    assert parent["metrics"]["fallback_cycles"] == total["fallback_cycles"]
    assert parent["metrics"]["tuned_ms"] == pytest.approx(1e3 * total["tuned_seconds"], rel=1e-5)
    assert parent["chart"]["cycles/best"][-1] == total["tuned_cycles"]
    assert set(parent["chart"]["cycles/rule"]) == {total["rule_cycles"]}
    note = parent["tags"]["mlflow.note.content"]
    assert (
        f"```sh\ntilewright tune digits_cnn --tuner ml2tuner-published --trials {TRIALS} --seed 7 "
        f"--out out --layers {','.join(LAYERS)}\n```" in note
    )
    assert parent["tags"]["prefect_flow_run_url"] in note
    assert f"Tuned {total['tuned_cycles']:,} cycles" in note
    assert sorted(child["name"].partition(" ")[0] for child in children) == sorted(LAYERS)
    rows = {row["id"]: row for row in summary["workloads"]}
    for child in children:
        row = rows[child["params"]["workload_id"]]
        assert min(child["chart"]["cycles/best"]) == row["tuned_cycles"]
        for name, known in (("rule", "rule_cycles"), ("bound", "bound_cycles")):
            assert child["chart"][f"cycles/{name}"] == [row[known]] * ROUNDS
        assert summary["mlflow_run_id"] in child["tags"]["mlflow.note.content"]
        assert child["status"] == parent["status"] == "FINISHED"
        assert {"trials.parquet", "convergence.png"} <= set(child["artifacts"])
        assert {"valid_share", "P_rmse", "V_brier"} <= child["metrics"].keys()
        assert child["datasets"] == [f"trials of {child['name'].partition(' ')[0]}"]
        assert len(child["models"]) == 3
    assert parent["datasets"] == ["digits_cnn"]
    assert set(parent["models"]) == {model for child in children for model in child["models"]}
    database = sqlite3.connect(tuned.place.folder / "home" / "prefect" / "prefect.db")
    links = database.execute("select data from artifact where key = 'mlflow-run'").fetchall()
    assert any(summary["mlflow_run_id"] in str(row) for row in links)
    states = database.execute("select distinct state_name from flow_run").fetchall()
    assert states == [("Completed",)]


def test_prefect_names_its_runs_and_shows_the_results(tuned: Tuned) -> None:
    database = sqlite3.connect(tuned.place.folder / "home" / "prefect" / "prefect.db")
    flows = database.execute("select name, tags from flow_run").fetchall()
    name = f"digits_cnn on vta-pynq, ml2tuner-published, seed 7, {TRIALS} trials"
    assert name in {name for name, _ in flows}
    assert {name.partition(" ")[0] for name, _ in flows} == {"digits_cnn", *LAYERS}
    assert {tuple(json.loads(tags)) for _, tags in flows} == {
        ("digits_cnn", "ml2tuner-published", "vta-pynq")
    }
    assert database.execute("select count(*) from task_run where tags != '[]'").fetchone() == (0,)
    summary = tuned.place.json("out/summary.json")
    ((table,),) = database.execute("select data from artifact where key = 'layers'").fetchall()
    *rows, last = json.loads(json.loads(table))
    assert list(last)[:4] == ["layer", "fallback cycles", "rule cycles", "tuned cycles"]
    assert last["tuned cycles"] == f"{summary['total']['tuned_cycles']:,}"
    assert [row["tuned cycles"] for row in rows] == [
        f"{row['tuned_cycles']:,}" for row in summary["workloads"]
    ]
    ((page,),) = database.execute("select data from artifact where key = 'summary'").fetchall()
    assert summary["mlflow_run_id"] in page
    assert (
        "| layer | fallback cycles | rule cycles | tuned cycles | bound cycles | over rule |"
        in page
    )


def test_prefects_pages_can_list_all_tasks(tuned: Tuned) -> None:
    """No task may take the result of a flow as an argument.

    Prefect's page cannot show such a task, nor any other task in the same list.
    """
    database = sqlite3.connect(tuned.place.folder / "home" / "prefect" / "prefect.db")
    kinds = {
        one["input_type"]
        for (inputs,) in database.execute("select task_inputs from task_run")
        for taken in json.loads(inputs).values()
        for one in taken
    }
    assert kinds == {"task_run"}


def test_each_artifact_is_that_of_a_task(tuned: Tuned) -> None:
    """Prefect's second interface asks for the task of each artifact and fails if there is none."""
    database = sqlite3.connect(tuned.place.folder / "home" / "prefect" / "prefect.db")
    shown = "select key, task_run_id is null from artifact where type != 'result'"
    assert {("mlflow-run", 0), ("trials", 0), ("layers", 0), ("summary", 0)} == set(
        database.execute(shown)
    )


def test_prefects_graph_can_draw_the_names_of_runs(tuned: Tuned) -> None:
    """The font of Prefect's graph has only ASCII letters and digits."""
    database = sqlite3.connect(tuned.place.folder / "home" / "prefect" / "prefect.db")
    names = [name for (name,) in database.execute("select name from flow_run")]
    assert len(names) == 1 + len(LAYERS)
    assert all(name.isascii() for name in names)
    assert sum(name.startswith("conv") and " - 3x3/" in name for name in names) == 2
    assert "conv3 - 3x3/1 32-32 @4 max 2x2/2" in names, "a label begins with its layer"


def test_one_prefect_task_runs_a_stage_of_a_round(tuned: Tuned) -> None:
    database = sqlite3.connect(tuned.place.folder / "home" / "prefect" / "prefect.db")
    counts = dict(database.execute("select task_key, count(*) from task_run group by task_key"))
    stages = {key.rpartition("-")[0] or key: count for key, count in counts.items()}
    for stage in ("generate_candidates", "filter_candidates", "lower_and_choose",
                  "measure_batch", "retrain_models"):  # fmt: skip
        assert stages[stage] == len(LAYERS) * ROUNDS, stages
    assert stages["import_model"] == stages["extract_subgraphs"] == 1


SHORT_LAYERS, SHORT_TRIALS, SHORT_ROUNDS = ("conv3", "fc"), 16, 2
SHORT = ("tune", "digits_cnn", "--layers", ",".join(SHORT_LAYERS), "--tuner", "ml2tuner-published",
         "--trials", str(SHORT_TRIALS), "--batch", "8", "--seed", "7")  # fmt: skip


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, prefect_server: Login) -> Place:
    """Return a place with a short run. Tests may query its server."""
    place = Place(tmp_path_factory.mktemp("elsewhere"), prefect_server)
    done = place.run(*SHORT, "--out", "other")
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.nightly(seconds=20)
def test_the_same_seed_gives_the_same_schedules_elsewhere(tuned: Tuned, guest: Place) -> None:
    done = guest.run(*TUNE, "--out", "other")
    assert done.returncode == 0, done.stderr
    other = guest.folder / "other" / "schedules.json"
    assert other.read_bytes() == (tuned.out / "schedules.json").read_bytes()


def test_repeating_the_command_measures_nothing_again(elsewhere: Place) -> None:
    out = elsewhere.folder / "other"
    schedules, stored = (out / "schedules.json").read_bytes(), tables(out)
    done = elsewhere.run(*SHORT, "--out", "other")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{SHORT_TRIALS} reused") == len(SHORT_LAYERS)
    with sqlite3.connect(elsewhere.folder / "home" / "mlflow" / "mlflow.db") as database:
        repeats = database.execute(
            "select count(*) from tags where key = 'tilewright.repeats'"
        ).fetchone()
    assert repeats == (1,)
    trials = len(SHORT_LAYERS) * SHORT_TRIALS
    assert f"reused {trials} of {trials} trials and" in done.stdout
    assert ((out / "schedules.json").read_bytes(), tables(out)) == (schedules, stored)


WAIT_SECONDS = 30
"""Maximum delay in seconds before Prefect's server stores a task run."""
LAST_TASK = "artifacts of the network"


def test_a_repeated_command_shows_each_stage_of_each_layer_as_cached(elsewhere: Place) -> None:
    server = elsewhere.server
    assert server is not None

    def ask(path: str, **asked: object) -> Any:
        return post(f"{server.api_url}/{path}", asked, server.credentials.headers)

    def tasks(run: str) -> list[dict[str, Any]]:
        of = {"id": {"any_": [run]}}
        task_runs: list[dict[str, Any]] = ask("task_runs/filter", flow_runs=of, limit=200)
        return task_runs

    run = elsewhere.json("other/summary.json")["prefect_flow_run_id"]
    below = ask("flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run]}})
    assert len(below) == len(SHORT_LAYERS)
    steps = ("candidates", "filter", "lower", "simulate", "retrain")
    for flow in below:
        layer = flow["name"].partition(" ")[0]
        rounds = [f"{layer} round {k}: {step}" for k in range(SHORT_ROUNDS) for step in steps]
        states: dict[str, str] = {}
        deadline = time.monotonic() + WAIT_SECONDS
        while len(states) < len(rounds) + 2 or "Pending" in states.values():
            states = {task["name"]: task["state_name"] for task in tasks(flow["id"])}
            if time.monotonic() > deadline:
                break
        assert states == dict.fromkeys(
            [f"{layer}: rule and fallback", *rounds, f"{layer}: verify"], "Cached"
        )
    own: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + WAIT_SECONDS
    while not any(item["name"].startswith(LAST_TASK) for item in own.values()):
        own = {task["id"]: task for task in tasks(run)}
        assert time.monotonic() < deadline, [item["name"] for item in own.values()]
    names = {flow["parent_task_run_id"]: flow["id"] for flow in below}
    follows = {
        names.get(item["id"], item["name"]): {
            one["id"] for of in item["task_inputs"].values() for one in of
        }
        for item in own.values()
    }
    result = next(item for item in own.values() if item["name"].startswith("subgraphs"))
    assert all(follows[flow["id"]] == {result["id"]} for flow in below)
    assert follows[LAST_TASK] == {flow["id"] for flow in below}


@pytest.mark.nightly(seconds=25)
def test_a_killed_run_goes_on_where_it_was_also_in_a_folder_that_was_moved(
    tuned: Tuned, place: Place
) -> None:
    """The resumed command logs system metrics and the killed one did not. It is still one run."""
    victim = place.fork(*TUNE, "--out", "out")
    deadline = time.monotonic() + 300
    while victim.poll() is None and time.monotonic() < deadline:
        if len(frame(place.folder / "out")) > 16:
            break
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    held = len(frame(place.folder / "out"))
    assert 0 < held < len(LAYERS) * TRIALS
    assert not (place.folder / "out" / "summary.json").exists()
    (place.folder / "out").rename(place.folder / "moved")
    resumed = place.fork(
        *TUNE, "--system-metrics", "--out", "moved", MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL="0.2"
    )
    _, said = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, said
    schedules = (place.folder / "moved" / "schedules.json").read_bytes()
    assert schedules == (tuned.out / "schedules.json").read_bytes()
    columns = ["workload", "trial", "config", "status", "cycles"]
    mine = pd.read_parquet(place.folder / "moved" / "trials.parquet")[columns]
    whole = pd.read_parquet(tuned.out / "trials.parquet")[columns]
    pd.testing.assert_frame_equal(mine, whole)
    reused = sum(row["reused_trials"] for row in place.json("moved/summary.json")["workloads"])
    assert reused == held
    with sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db") as database:
        statuses = database.execute("select status, count(*) from runs group by status").fetchall()
        monitored = database.execute(
            "select distinct run_uuid from metrics where key = 'system/cpu_utilization_percentage'"
        ).fetchall()
    assert statuses == [("FINISHED", 1 + len(LAYERS))]
    assert monitored == [(place.json("moved/summary.json")["mlflow_run_id"],)]


@pytest.mark.parametrize(
    ("tuner", "bare"),
    [
        pytest.param("default", [], marks=pytest.mark.nightly(seconds=15)),
        ("random", ["--bare"]),
    ],
)
def test_a_file_of_ones_own_is_tuned_on_a_target_of_ones_own(
    guest: Place, tuner: str, bare: list[str]
) -> None:
    from tilewright.networks import zoo

    (guest.folder / "mine.onnx").write_bytes(zoo.build("digits_cnn").SerializeToString())
    spec = {"LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 14, "LOG_WGT_BUFF_SIZE": 16,
            "LOG_ACC_BUFF_SIZE": 16, "bus_bits": 128}  # fmt: skip
    (guest.folder / "board.json").write_text(json.dumps(spec))
    done = guest.run(
        "tune", "mine.onnx", "--target", "board.json", "--tuner", tuner, "--trials", "16",
        "--space", "template", "--out", "out", *bare,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = guest.json("out/summary.json")
    assert (summary["network"], summary["target"]) == ("mine", "board")
