"""Tests the deployed flows other than tuning: the files that they write, and where."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests import warm
from tests.cli.conftest import Place
from tilewright.services.prefect_server import Login

pytestmark = pytest.mark.nightly(seconds=8)

RUN = """
import json, os, sys
import tilewright.services
from tilewright.services.workspace import use_workspace
use_workspace()
from tilewright.flows.build_prefect import build_artifact
from tilewright.flows.codesign_prefect import codesign
from tilewright.flows.comparison_prefect import compare_tuners
from tilewright.flows.dataset_prefect import build_dataset
from tilewright.flows.nightly import tune_network
from tilewright.flows.training_prefect import train_model

flows = [
    (build_artifact, dict(model="digits_cnn", trials=0, out="built")),
    (compare_tuners, dict(network="digits_cnn", workloads=["4"], tuners=["random", "ga"], trials=8,
                          seeds="0-1", out="compared")),
    (build_artifact, dict(model="digits_cnn", trials=0, out="../built")),
    (compare_tuners, dict(network="digits_cnn", out="../compared")),
    (build_dataset, dict(rows=1, cpu_rows=0, out="../rows")),
    (train_model, dict(dataset="rows", out="../model")),
    (codesign, dict(networks=["digits_cnn"], budget=1.0, out="../front")),
    (compare_tuners, dict(networks=["digits_cnn"], out="../swept")),
    (tune_network, dict(model="digits_cnn", target="missing.json", out="tuned")),
]
for flow, options in flows:
    state = flow(**options, return_state=True)
    print(json.dumps([flow.name, state.type.value, state.message]), file=sys.stderr)
from tilewright.services.start_servers import send_pending_records
send_pending_records()
"""


def test_flows_of_deployments_write_below_their_folder_and_say_what_came_out(
    tmp_path: Path, prefect_server: Login
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    place = Place(folder, prefect_server)
    environment = place.environment | {"TILEWRIGHT_OUTPUT_ROOT": "."}
    done = warm.run([], folder, environment, 600, program=RUN)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert [line[:2] for line in lines[:2]] == [
        ["build_artifact", "COMPLETED"], ["compare_tuners", "COMPLETED"],
    ], done.stderr  # fmt: skip
    assert (folder / "built" / "manifest.json").is_file()
    assert {"report.html", "comparison.json"} <= {p.name for p in (folder / "compared").iterdir()}
    names = {
        "build_artifact",
        "compare_tuners",
        "build_dataset",
        "train_model",
        "codesign",
    }
    assert {name for name, _, _ in lines[2:-1]} == names
    for name, state, message in lines[2:-1]:
        assert state == "FAILED", name
        assert "is outside of" in message
    name, state, message = lines[-1]
    assert (name, state) == ("tune_network", "FAILED")
    assert "missing.json" in message
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    with closing(sqlite3.connect(folder / "home" / "mlflow" / "mlflow.db")) as database:
        runs = dict(database.execute("select name, status from runs").fetchall())
    assert runs["comparison of random,ga, seeds 0-1: digits_cnn on vta-pynq"] == "FINISHED"
    assert runs["ga, seed 1"] == "FINISHED"
