"""Checks the data that the start page shows for a run recorded in MLflow."""

from __future__ import annotations

import json

import pytest

from tests import warm
from tests.cli.conftest import LAYERS, TRIALS, Tuned

pytestmark = pytest.mark.slow(seconds=5)

ASK = """
import json, sys
from pathlib import Path
from tilewright.dashboard.answers import curves, knobs, list_runs
from tilewright.dashboard.listing import KnownRuns
from tilewright.services.workspace import use_workspace

known = KnownRuns(use_workspace(), Path(sys.argv[1]))
(run,) = [each for each in list_runs(known)["runs"] if each["id"] == sys.argv[2]]
(curve,) = curves(known, [run["id"]]).values()
layer = curve["layers"][0]["id"]
folder = str(known.find(run["id"]).folder)
print(json.dumps([run, curve, knobs(known, run["id"], layer), folder]))
"""


def test_a_tracked_run_has_its_figures_curves_and_knobs(tuned: Tuned) -> None:
    summary = tuned.place.json("out/summary.json")
    asked = [str(tuned.place.folder), summary["mlflow_run_id"]]
    done = warm.run(asked, tuned.place.folder, tuned.place.environment, 300, program=ASK)
    assert done.returncode == 0, done.stderr
    run, curve, knobs, folder = json.loads(done.stdout.splitlines()[-1])
    total = summary["total"]
    assert (run["state"], run["tracked"], run["tuner"]) == ("finished", True, "ml2tuner-published")
    assert run["question"] == f"digits_cnn ({','.join(LAYERS)}) on vta-pynq"
    assert run["tuned_ms"] == pytest.approx(1e3 * total["tuned_seconds"], rel=1e-5)
    assert run["gain"] == pytest.approx(run["rule_ms"] / run["tuned_ms"], rel=1e-4)
    assert summary["prefect_flow_run_id"] in run["prefect"]
    assert folder == str(tuned.out)
    assert curve["trials"] == sum(row["trials"] for row in summary["workloads"])
    assert curve["network"][-1][1] == pytest.approx(1e3 * total["tuned_seconds"])
    for layer, row in zip(curve["layers"], summary["workloads"], strict=True):
        assert layer["tuned_ms"] == pytest.approx(1e3 * row["tuned_seconds"])
        assert layer["name"].split(" ")[0] in LAYERS
    assert len(knobs["rows"]) == TRIALS
    assert set(knobs["importance"]) <= set(knobs["knobs"])
