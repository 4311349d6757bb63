"""Tests runs that start from the trials of an earlier run (`--warm-start DIR`)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.trial_tables import tables
from tests.tune_bare import tune_bare
from tilewright.core.options import OptionsError
from tilewright.flows.tuning import learn
from tilewright.search import LocalRunner
from tilewright.search.shared_trials import SharedTrials, scale_to_hardware, trials_in
from tilewright.targets.features import Feature, Features
from tilewright.tuning import TuningOptions
from tilewright.tuning.earlier_run import EarlierRunError
from tilewright.tuning.log_steps import start_sessions
from tilewright.tuning.network import lone_workload
from tilewright.tuning.preflight import check

EARLIER = "conv2d:n=1,c=16,h=14,w=14,o=32,k=3,s=1,p=1"
LATER = "conv2d:n=1,c=32,h=7,w=7,o=64,k=1,s=1,p=0"


def run_of(workload: str, **more: object) -> dict[str, object]:
    options = {"workload": workload, "space": "extended", "tuner": "ml2tuner", "trials": 6}
    return {**options, "batch": 8, **more}


def tuned(folder: Path, **more: object) -> Path:
    tune_bare(**run_of(EARLIER, out=str(folder), **more))
    return folder


def first_trials(folder: Path, **more: object) -> SharedTrials:
    options = TuningOptions.parse(**run_of(LATER, warm_start=str(folder), **more))
    ((_, session),) = start_sessions(options, lone_workload(LATER, options.steps)[1].subgraphs)
    (trials,) = trials_in(session.models)
    return trials


@pytest.mark.slow(seconds=7)
def test_a_run_starts_with_the_models_of_an_earlier_run(tmp_path: Path) -> None:
    earlier, later = str(tuned(tmp_path / "a")), str(tmp_path / "b")
    options = TuningOptions.parse(**run_of(LATER, warm_start=earlier, out=later))
    check(options)
    ((task, session),) = start_sessions(options, lone_workload(LATER, options.steps)[1].subgraphs)
    models = learn(LocalRunner(), task, session).models.models
    assert {"V", "shared_A", "shared_draft"} <= set(models)
    assert "P" not in models
    summary = tune_bare(**run_of(LATER, warm_start=earlier, out=later))
    assert summary["warm_start"] == earlier
    cold = tune_bare(**run_of(LATER, out=str(tmp_path / "cold")))
    assert cold["run_key"] != summary["run_key"]
    tune_bare(**run_of(LATER, warm_start=earlier, out=str(tmp_path / "c"), trials=4))
    tune_bare(**run_of(LATER, warm_start=earlier, out=str(tmp_path / "c")))
    assert tables(tmp_path / "c")["trials"] == tables(Path(later))["trials"]


def test_trials_of_other_hardware_count_bytes_and_sizes_of_this_hardware(tmp_path: Path) -> None:
    folder = tuned(tmp_path / "a", target="evta-zcu102")
    there, here = first_trials(folder, target="evta-zcu102"), first_trials(folder)
    moved = [column.meaning in ("bytes", "waiting") for column in here.hidden.columns]
    # evta-zcu102 moves twice the bytes per cycle, and its scratchpads hold twice as much.
    expected = there.hidden.matrix * np.where(moved, 0.5, 1.0)
    np.testing.assert_allclose(here.hidden.matrix, expected)
    sizes = [name.endswith("_volume") for name in here.visible.names]
    np.testing.assert_allclose(here.visible.matrix, there.visible.matrix - np.array(sizes))
    assert sum(sizes) == 3
    np.testing.assert_array_equal(here.log_latency, there.log_latency)


def test_model_v_learns_nothing_from_hardware_with_unknown_scratchpads() -> None:
    trials = SharedTrials(
        visible=Features(np.ones((3, 1)), (Feature("log2_inp_volume"),)),
        compiled=np.ones(3, np.bool_),
        hidden=Features(np.ones((2, 1)), (Feature("bytes"),)),
        valid=np.ones(2, np.bool_),
        log_latency=np.ones(2),
        estimate=np.ones(2),
    )
    adapted = scale_to_hardware(trials, {"bus_bytes": 8.0}, {"bus_bytes": 8.0})
    assert adapted.visible.columns == ()
    assert len(adapted.visible) == 3


def test_trials_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = tuned(tmp_path / "a", space="template")
    with pytest.raises(EarlierRunError, match="other columns"):
        first_trials(folder)
    with pytest.raises(OptionsError, match="learns nothing from trials"):
        check(TuningOptions.parse(**run_of(LATER, tuner="random", warm_start=str(folder))))
    with pytest.raises(OptionsError, match="resumes from its own trials"):
        check(TuningOptions.parse(**run_of(LATER, warm_start=str(folder), out=str(folder))))
    path = folder / "schedules.json"
    schedules = json.loads(path.read_text())
    path.write_text(json.dumps(schedules | {"target": schedules["target"] | {"fingerprint": "0"}}))
    (folder / "trials.sqlite").touch()
    with pytest.raises(EarlierRunError, match="another version of vta-pynq"):
        first_trials(folder, space="template")
    path.unlink()
    (folder / "trials.sqlite").touch()
    with pytest.raises(EarlierRunError, match="no finished run"):
        first_trials(folder, space="template")
