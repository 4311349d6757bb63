"""Checks that each step of a round needs only its arguments, so that it can run in any process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import warm
from tilewright.flows.tuning import tune_session
from tilewright.models import make_explorer
from tilewright.search import ExplorerState, History
from tilewright.targets.workload import parse_workload
from tilewright.tuning.tuning_task import TuningTask

ROOT = Path(__file__).parents[2]
TASK = TuningTask(
    parse_workload("conv2d:n=1,c=16,h=8,w=8,o=32,k=3,s=2,p=1"), "vta-pynq", "extended",
    "ml2tuner-published", 0, 8,
)  # fmt: skip

STAGE = """
import sys
from tilewright.services.workspace import Workspace, use_workspace
from pathlib import Path
folder = Path(sys.argv[1])
use_workspace(Workspace(folder / "workspace"))
from tilewright.search import Session, round_steps
from tilewright.tasks.cached_task import Record, RecordSerializer
from tests.tasks.test_stages import TASK
def read(name):
    return RecordSerializer().loads((folder / name).read_bytes()).value
step = getattr(round_steps, sys.argv[2])
given = {"session": Session(read("history"), read("models"), begun=True), "n": 8, "known": {}}
result = step(TASK, *(given[each] if each in given else read(each) for each in sys.argv[3:]))
(folder / sys.argv[2]).write_bytes(RecordSerializer().dumps(Record(result)))
"""


def elsewhere(folder: Path, name: str, *given: str) -> None:
    """Run a step in a separate process. Its result is written to the file `name`."""
    done = warm.run([str(folder), name, *given], ROOT, os.environ, 300, program=STAGE)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(seconds=6)
def test_a_round_whose_every_step_runs_in_another_process(tmp_path: Path) -> None:
    from tilewright.tasks.cached_task import Record, RecordSerializer

    serializer = RecordSerializer()
    (tmp_path / "models").write_bytes(serializer.dumps(Record(ExplorerState())))
    (tmp_path / "history").write_bytes(serializer.dumps(Record(History.empty(TASK.problem.space))))
    elsewhere(tmp_path, "generate_candidates", "session", "n")
    elsewhere(tmp_path, "filter_candidates", "session", "generate_candidates", "n")
    elsewhere(tmp_path, "lower_and_choose", "session", "filter_candidates", "n")
    elsewhere(tmp_path, "measure_batch", "lower_and_choose", "known")
    measured = serializer.loads((tmp_path / "measure_batch").read_bytes()).value
    here = tune_session(TASK, 8, 8)
    assert measured.cycles.tolist() == here.history.cycles.tolist()
    assert make_explorer(TASK.tuner).name == "ml2tuner-published"
