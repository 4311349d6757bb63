"""`tilewright ui` and `serve`, and the deployment file: real servers, one scheduled run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.server_process import LOOPBACK, answers
from tests.cli.conftest import Place
from tests.sharing import free_port

pytestmark = pytest.mark.slow(seconds=30)

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 900  # a machine that compiles and serves others meanwhile is slow


def post(url: str, document: object) -> Any:
    request = urllib.request.Request(
        url, json.dumps(document).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Everything printed up to a line with `text`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(seen)


def listening(pid: int) -> set[str]:
    """Addresses on which a process and all it started wait for connections."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    sockets = [entry for one in family for entry in one.net_connections("inet")]
    return {entry.laddr.ip for entry in sockets if entry.status == psutil.CONN_LISTEN}


def stop(process: subprocess.Popen[str]) -> int:
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode


def test_ui_shows_both_pages_on_loopback_until_ctrl_c(place: Place) -> None:
    prefect, mlflow = free_port(), free_port()
    pages = place.start("ui", "--prefect-port", str(prefect), "--mlflow-port", str(mlflow))
    try:
        printed = read_until(pages, "Ctrl-C")
        assert f"http://{LOOPBACK}:{prefect}" in printed
        assert f"http://{LOOPBACK}:{mlflow}/#/experiments?workflowType=machine_learning" in printed
        assert answers(f"http://{LOOPBACK}:{prefect}/api/health")
        assert answers(f"http://{LOOPBACK}:{mlflow}/")
        assert "warning" not in printed
        assert listening(pages.pid) == {LOOPBACK}
        _deploy_and_list(place, f"http://{LOOPBACK}:{prefect}/api")
    finally:
        assert stop(pages) == 0
    assert not answers(f"http://{LOOPBACK}:{prefect}/api/health")
    assert not answers(f"http://{LOOPBACK}:{mlflow}/")
    kept = place.json("home/pages.json")
    assert kept == {
        "prefect": f"http://{LOOPBACK}:{prefect}", "mlflow": f"http://{LOOPBACK}:{mlflow}",
    }  # fmt: skip


def _deploy_and_list(place: Place, api: str) -> None:
    """The deployment file is accepted, listed, and its form refuses nonsense."""
    environment = place.environment | {"PREFECT_API_URL": api, "DO_NOT_TRACK": "true"}
    program = Path(sys.executable).with_name("prefect")
    post(f"{api}/work_pools/", {"name": "tilewright", "type": "process"})
    done = subprocess.run(
        [str(program), "--no-prompt", "deploy", "--all", "--prefect-file",
         "deployments/prefect.yaml"],
        cwd=ROOT, env=environment | {"PREFECT_HOME": str(place.folder / "prefect")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (nightly,) = post(f"{api}/deployments/filter", {})
    assert nightly["name"] == "nightly"
    (flow,) = post(f"{api}/flows/filter", {})
    assert flow["name"] == "tune_network"
    bad = {"parameters": {"options": {"trials": 0}}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(f"{api}/deployments/{nightly['id']}/create_flow_run", bad)
    assert 400 <= refused.value.code < 500
    assert "options.trials" in refused.value.read().decode()


def test_serve_executes_a_scheduled_run(place: Place) -> None:
    port = free_port()
    server = place.start(
        "serve", "digits_cnn", "--tuner", "random", "--trials", "8", "--every", "20",
        "--prefect-port", str(port), "--out", "out",
    )  # fmt: skip
    try:
        read_until(server, "serving")
        deadline = time.monotonic() + LIMIT_SECONDS
        done: list[Any] = []
        while not done and time.monotonic() < deadline:
            time.sleep(1)
            states = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED"]}}}}
            runs = post(f"http://{LOOPBACK}:{port}/api/flow_runs/filter", states)
            done = [run for run in runs if run["auto_scheduled"]]
        assert done, "no scheduled run ended in time"
        assert {run["state_type"] for run in done} == {"COMPLETED"}
        summary = place.json("out/summary.json")
        assert summary["prefect_flow_run_id"] in {run["id"] for run in done}
    finally:
        stop(server)
