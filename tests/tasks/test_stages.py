"""Checks that a stage needs nothing but its arguments: it may run in any process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import warm
from tilewright.flows.tuning import tune_round
from tilewright.models import make_explorer
from tilewright.search import ExplorerState, History
from tilewright.targets.workload import parse_workload
from tilewright.tuning.tuning_task import TuningTask

ROOT = Path(__file__).parents[2]
STUDY = TuningTask(
    parse_workload("conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1"), "vta-pynq", "extended",
    "ml2tuner-published", 0, 8,
)  # fmt: skip

STAGE = """
import json, sys
from tilewright.services.workspace import Workspace, use_workspace
from pathlib import Path
use_workspace(Workspace(Path(sys.argv[1])))
from tilewright.tasks import round_tasks
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tests.tasks.test_stages import STUDY
name, arguments = sys.argv[2], json.loads(sys.argv[3])
cache = CacheUse(**arguments.pop("cache"))
given = {k: Manifest(**v) if isinstance(v, dict) and "stage" in v else v
         for k, v in arguments.items()}
result = getattr(round_tasks, name).function(cache, "conv", STUDY, **given)
print(json.dumps(vars(result)))
"""


def elsewhere(workspace: Path, name: str, **arguments: object) -> dict[str, object]:
    """What a stage gives in a process of its own."""
    given = json.dumps({"cache": {"root": str(workspace / "cache")}, **arguments})
    done = warm.run([str(workspace), name, given], ROOT, os.environ, 300, program=STAGE)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow(seconds=6)
def test_a_round_whose_every_stage_runs_in_another_process(tmp_path: Path) -> None:
    from tilewright.search import Session
    from tilewright.tasks.artifact_store import CacheUse, Manifest
    from tilewright.tasks.round_tasks import keep_history, keep_state, read_measurements

    cache = CacheUse(str(tmp_path / "cache"))
    state = vars(keep_state(cache, ExplorerState()))
    history = vars(keep_history(cache, History.empty(STUDY.problem.space)))
    common = {"round_index": 0, "state": state, "history": history, "n": 8}
    named = elsewhere(tmp_path, "generate_candidates", **common)
    kept = elsewhere(tmp_path, "filter_candidates", **common, named=named)
    batch = elsewhere(tmp_path, "lower_candidates", **common, kept=kept)
    done = elsewhere(
        tmp_path, "simulate_batch", round_index=0, history=history, batch=batch, known={}
    )
    measured = read_measurements(cache, Manifest(**done))  # type: ignore[arg-type]
    session = Session(STUDY.setting)
    here = tune_round(session, 8)
    assert here is not None
    assert measured.cycles.tolist() == here.measured.cycles.tolist()
    assert make_explorer(STUDY.tuner).name == "ml2tuner-published"
