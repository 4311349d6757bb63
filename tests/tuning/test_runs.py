"""Checks that library call, `--bare` command, Prefect tasks and threads give the same run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.cli.conftest import Place
from tests.trial_tables import frame, rows, tables
from tests.tune_bare import tune_bare, tune_options
from tilewright import tuning
from tilewright.flows.tuning import import_network, tune_workload
from tilewright.search import LocalRunner, Session
from tilewright.search.events import ignore
from tilewright.services.prefect_server import Login
from tilewright.tuning.events import Event, RoundDone, WorkloadTuned
from tilewright.tuning.open_trials import trials_of_folder
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_flows import Flow, run_to_end
from tilewright.tuning.tuning_task import target_of, tuning_task_of

ROOT = Path(__file__).parents[2]
LAYERS = ["conv3", "fc"]
RUN = {"model": "digits_cnn", "layers": LAYERS, "tuner": "ml2tuner-published", "trials": 16,
       "batch": 8, "seed": 3}  # fmt: skip
COMMAND = ("tune", "digits_cnn", "--layers", ",".join(LAYERS), "--tuner", "ml2tuner-published",
           "--trials", "16", "--batch", "8", "--seed", "3", "--out", "out")  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("library") / "out"
    tune_bare(**RUN, out=str(out))
    return out


def left(out: Path) -> list[object]:
    return [tables(out), (out / "schedules.json").read_bytes()]


@pytest.mark.slow(seconds=18)
def test_the_bare_command_and_the_flow_leave_what_the_library_call_does(
    library: Path, tmp_path: Path, prefect_server: Login
) -> None:
    for flags in (("--bare",), ()):
        folder = tmp_path / ("bare" if flags else "flow")
        folder.mkdir()
        done = Place(folder, prefect_server).run(*COMMAND, *flags)
        assert done.returncode == 0, done.stderr
        assert left(folder / "out") == left(library)
        assert (folder / "home").exists() == (not flags)
        assert ("tilewright ui" in done.stdout) == (not flags)


@pytest.mark.nightly(seconds=12)
def test_a_bare_run_loads_neither_prefect_nor_mlflow(tmp_path: Path) -> None:
    program = (
        "import sys, tilewright\n"
        "tilewright.tune(model='digits_cnn', tuner='random', trials=4, out='out')\n"
        "import tilewright.cli.commands.tune, tilewright.reports.run_pictures\n"
        "names = ('tasks', 'flows.tuning_prefect', 'evaluation')\n"
        "rooms = [f'tilewright.{room}' for room in names]\n"
        "print([m for m in sys.modules if m in ('prefect', 'mlflow', *rooms)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_workloads_at_a_time_give_the_same_schedules(library: Path, tmp_path: Path) -> None:
    heard: list[Event] = []
    options = tuning.TuningOptions.parse(**RUN, out=str(tmp_path / "out"), jobs=3)
    tune_options(options, heard.append)
    assert left(tmp_path / "out") == left(library)
    trials = [pd.read_parquet(out / "trials.parquet") for out in (tmp_path / "out", library)]
    pd.testing.assert_frame_equal(*trials)
    number = trials[0]["workload"].nunique()
    assert sum(isinstance(event, RoundDone) for event in heard) == 2 * number
    assert sum(isinstance(event, WorkloadTuned) for event in heard) == number


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_repeated_command_tunes_a_workload_once(library: Path, tmp_path: Path, lost: int) -> None:
    """The record is either complete or lacks a trial of the last round."""
    from tilewright.tasks.run_progress import RunProgress
    from tilewright.tasks.runner_prefect import NetworkRunner, WorkloadRunner

    out = tmp_path / "out"
    shutil.copytree(library, out)
    last = frame(out)["workload"].iloc[-1]
    if lost:
        rows(out, "delete from trials where id = (select max(id) from trials)")
    ran: list[LocalRunner] = []

    def flow(run: LocalRunner, *given: Any) -> Flow[TunedWorkload]:
        ran.append(run)
        return tune_workload(LocalRunner(), *given)

    class Network(NetworkRunner):
        """A runner that does not open MLflow runs."""

        def _tune_tracked(
            self, flow: Callable[..., Flow[TunedWorkload]], *given: Any
        ) -> Flow[TunedWorkload]:
            return flow(self, *given)

    options = tuning.TuningOptions.parse(**RUN, out=str(out))
    run = Network(ignore, RunProgress())
    run._repeats = True
    with trials_of_folder(options, ignore) as store:
        network = import_network(LocalRunner(), options, target_of(options))
        for subgraph in network.subgraphs:
            ran.clear()
            task = tuning_task_of(options, subgraph.workload)
            given = (options, task, Session.start(task), store, options.trials)
            tuned = run_to_end(run._tune_and_log(flow, *given))
            missing = 8 if lost and subgraph.workload.id == last else 0
            assert tuned.trials - tuned.reused_trials == missing
            assert len(ran) == 1
            assert isinstance(ran[0], NetworkRunner if missing else WorkloadRunner)
