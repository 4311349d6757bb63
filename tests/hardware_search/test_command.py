"""Tests `tilewright codesign` as a user runs it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Place
from tests.hardware_search.runs import TRIALS, words
from tests.trial_tables import frame
from tilewright.hardware_search import output_folder as folder

pytestmark = pytest.mark.nightly(seconds=9)

LONG = 160
"""Number of measurements of a run that is killed in the middle."""


def test_a_run_shows_in_prefect_and_mlflow_and_equals_a_bare_one(guest: Place) -> None:
    done = guest.run(*words("watched"))
    assert done.returncode == 0, done.stderr
    assert "4 machines within bounds and budget" in done.stdout
    assert f"{TRIALS} measurements of 3 of 4 machines by random" in done.stdout
    bare = guest.run(*words("bare", "--bare", "--json"))
    assert bare.returncode == 0, bare.stderr
    watched = (guest.folder / "watched" / folder.FRONT).read_bytes()
    assert watched == (guest.folder / "bare" / folder.FRONT).read_bytes()
    document = json.loads(bare.stdout)
    assert document["front"] == json.loads(watched)
    summary = guest.json("watched/summary.json")
    assert "mlflow_run_id" not in document["summary"]
    best = summary["best"]["name"]
    assert f"next: tilewright tune digits_cnn --target watched/specs/{best}.json" in done.stdout
    _check_mlflow(guest.folder, summary["mlflow_run_id"], "random", TRIALS)


def test_a_watched_run_that_is_killed_goes_on_to_the_same_front(guest: Place) -> None:
    out, deadline = guest.folder / "killed", time.monotonic() + 300
    long = ("--method", "ours")
    started = guest.start(*words("killed", *long, trials=LONG))
    while time.monotonic() < deadline and started.poll() is None:
        if len(frame(out)) > 5:
            break
        time.sleep(0.002)
    started.send_signal(signal.SIGKILL)
    said, _ = started.communicate()
    assert started.returncode == -signal.SIGKILL, said
    assert 5 < len(frame(out)) < LONG
    assert not (out / folder.FRONT).exists()
    for again in ("killed",), ("undisturbed", "--bare"):
        assert guest.run(*words(*again, *long, trials=LONG)).returncode == 0
    assert guest.json("killed/front.json") == guest.json("undisturbed/front.json")
    assert len(frame(out)) == LONG
    _check_mlflow(guest.folder, guest.json("killed/summary.json")["mlflow_run_id"], "ours", LONG)


def _check_mlflow(place: Path, run_id: str, method: str, trials: int) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{place}/home/mlflow/mlflow.db")
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["networks"] == "digits_cnn"
    assert run.data.params["method"] == method
    steps = client.get_metric_history(run_id, "front/hypervolume")
    assert [step.step for step in steps] == list(range(1, trials + 1))
    assert [step.value for step in steps] == sorted(step.value for step in steps)
    latency = [
        trial.value for trial in client.get_metric_history(run_id, "latency/best_milliseconds")
    ]
    assert latency == sorted(latency, reverse=True)
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert names >= {folder.FRONT, folder.TRIALS, folder.SUMMARY, folder.PAGE, folder.SPECS}


def test_mistakes_are_one_message_each(place: Place) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 8, 8])
    graph = helper.make_graph([helper.make_node("Sigmoid", ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        place.folder / "light.onnx",
    )
    for arguments, said in (
        (words("out", "--budget", "0.01"), "has an area of at most 0.01"),
        (words("out", "--bound", "log_batch=2:1"), "--bound log_batch is given twice"),
        (words("out", "--bound", "log_batch=small"), "write KNOB=LOW:HIGH"),
        (words("out", "--bound", "log_batch"), "write NAME=VALUE"),
        (
            words("out", "--networks", "light.onnx", "--bare"),
            "nothing of 'light.onnx' can be offloaded",
        ),
        # even before a server is started
        (words("out", "--networks", "light.onnx"), "nothing of 'light.onnx' can be offloaded"),
        (words("out", trials=0), "--trials 0"),
    ):
        done = place.run(*arguments)
        assert done.returncode == 2, (arguments, done.stdout)
        assert done.stderr.startswith("error: ")
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
    assert not (place.folder / "out").exists()
    assert not (place.folder / "home").exists()
