"""Checks that a stage needs nothing but its arguments: it may run in any process."""

from __future__ import annotations

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
    "ml2tuner", 0, 8,
)  # fmt: skip

STAGE = """
import sys
from tilewright.services.workspace import Workspace, use_workspace
from pathlib import Path
folder = Path(sys.argv[1])
use_workspace(Workspace(folder / "workspace"))
from tilewright.tasks import round_tasks
from tilewright.tasks.cached_task import Record
from tests.tasks.test_stages import STUDY
name, *given = sys.argv[2:]
inputs = [int(each) if each.isdigit() else {} if each == "known" else
          Record.from_bytes((folder / each).read_bytes()) for each in given]
step = getattr(round_tasks, name)
made = step.function("conv", STUDY, 0, *inputs)
record = Record(step.key("conv", STUDY, 0, *inputs).text, step.codec, made.value, made.facts)
(folder / name).write_bytes(record.to_bytes())
"""


def elsewhere(folder: Path, name: str, *given: str) -> None:
    """Run a stage in a process of its own; `given` are files in the folder, and its result is
    written to one that is called like the stage."""
    done = warm.run([str(folder), name, *given], ROOT, os.environ, 300, program=STAGE)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(seconds=6)
def test_a_round_whose_every_stage_runs_in_another_process(tmp_path: Path) -> None:
    from tilewright.search import Session
    from tilewright.tasks import codecs
    from tilewright.tasks.cached_task import Record

    state = Record.of_content(codecs.STATE, ExplorerState())
    history = Record.of_content(codecs.HISTORY, History.empty(STUDY.problem.space))
    (tmp_path / "state").write_bytes(state.to_bytes())
    (tmp_path / "history").write_bytes(history.to_bytes())
    elsewhere(tmp_path, "generate_candidates", "state", "history", "8")
    elsewhere(tmp_path, "filter_candidates", "state", "history", "generate_candidates", "8")
    elsewhere(tmp_path, "lower_candidates", "state", "history", "filter_candidates", "8")
    elsewhere(tmp_path, "simulate_batch", "history", "lower_candidates", "known")
    measured = Record.from_bytes((tmp_path / "simulate_batch").read_bytes()).value
    session = Session(STUDY.setting)
    here = tune_round(session, 8)
    assert here is not None
    assert measured.cycles.tolist() == here.measured.cycles.tolist()
    assert make_explorer(STUDY.tuner).name == "ml2tuner"
