"""Tests the export of trials for other tools, and the import of other tuners' trials."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from typer.testing import CliRunner

import tilewright
from tests.tune_bare import tune_bare
from tilewright.cli.app import app
from tilewright.core.errors import TilewrightError
from tilewright.tuning.export import export_schedules
from tilewright.tuning.foreign_trials import ForeignTrialsError
from tilewright.tuning.run_trials import RunTrials, finished_trials

pytestmark = pytest.mark.slow(seconds=1.3)

DATABASE = Path(__file__).parents[1] / "data" / "metaschedule"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run in which some trials are not valid."""
    out = tmp_path_factory.mktemp("elsewhere") / "out"
    tune_bare(model="digits_cnn", layers=["conv2", "fc"], space="template", tuner="random",
              trials=24, batch=24, out=str(out))  # fmt: skip
    trials = pd.read_parquet(out / "trials.parquet")
    failed = trials.index % 5 == 2
    trials.loc[failed, ["status", "reason"]] = ["compile_error", "the tiles do not fit"]
    trials.loc[failed, ["cycles", "seconds"]] = [-1, float("nan")]
    trials.to_parquet(out / "trials.parquet", index=False)
    return out


@pytest.fixture(scope="module")
def run(out: Path) -> RunTrials:
    return finished_trials(out)


def export(out: Path, file: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["export", str(out), "--out", str(file), *options])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_optuna_opens_a_study_a_layer(out: Path, run: RunTrials, tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    said = export(out, journal, "--format", "optuna")
    assert f"{len(run.table)} trials of 2 layers" in said
    storage = JournalStorage(JournalFileBackend(str(journal)))
    studies = [optuna.load_study(study_name=summary.study_name, storage=storage)
               for summary in optuna.get_all_study_summaries(storage)]  # fmt: skip
    assert [study.user_attrs["workload"] for study in studies] == [
        layer.text for layer in run.layers
    ]
    for study, layer in zip(studies, run.layers, strict=True):
        trials = run.trials_of_workload(layer.id)
        valid = trials[trials["status"] == "valid"]
        best = trials.loc[valid["seconds"].idxmin()]
        assert study.best_value == best["seconds"]
        assert study.best_params == json.loads(best["knobs"])
        assert [trial.state == TrialState.COMPLETE for trial in study.trials] == list(
            trials["status"] == "valid"
        )
    assert run.table["status"].nunique() > 1


def test_a_kernel_tuner_cache_has_a_time_or_an_error_by_the_values_of_the_knobs(
    out: Path, run: RunTrials, tmp_path: Path
) -> None:
    export(out, tmp_path / "cache.json", "--format", "kernel-tuner", "--layer", "conv2")
    written = json.loads((tmp_path / "cache.json").read_text())
    trials = run.trials_of_workload(run.layers[0].id)
    assert (written["device_name"], written["kernel_name"]) == ("vta-pynq", "conv2")
    assert len(written["cache"]) == len(trials) == 24
    for row in trials.to_dict("records"):
        knobs = json.loads(row["knobs"])
        key = ",".join(str(knobs[name]) for name in written["tune_params_keys"])
        result = written["cache"][key]
        assert {name: result[name] for name in knobs} == knobs
        assert all(value in written["tune_params"][name] for name, value in knobs.items())
        if row["status"] == "valid":
            assert result["time"] == pytest.approx(1e3 * row["seconds"])
        else:
            assert result["time"] in ("CompilationFailedConfig", "RuntimeFailedConfig")


def test_a_t4_file_says_how_a_trial_failed(out: Path, run: RunTrials, tmp_path: Path) -> None:
    export(out, tmp_path / "t4.json", "--format", "t4", "--layer", "conv2")
    written = json.loads((tmp_path / "t4.json").read_text())
    trials = run.trials_of_workload(run.layers[0].id).to_dict("records")
    assert [item["configuration"] for item in written["results"]] == [
        json.loads(row["knobs"]) for row in trials
    ]
    names = {"valid": "correct", "compile_error": "compile"}
    for result, row in zip(written["results"], trials, strict=True):
        assert result["invalidity"] == names[row["status"]]
        valid = row["status"] == "valid"
        assert [m["value"] for m in result["measurements"] if m["name"] == "cycles"] == (
            [row["cycles"]] if valid else []
        )
        assert len(result["times"]["runtimes"]) == int(valid)


def test_a_format_of_one_layer_wants_its_name(out: Path, tmp_path: Path) -> None:
    with pytest.raises(TilewrightError, match="--layer: conv2, fc"):
        export(out, tmp_path / "t4.json", "--format", "t4")
    with pytest.raises(TilewrightError, match="did you mean conv2"):
        export(out, tmp_path / "t4.json", "--format", "t4", "--layer", "conv3")
    assert not (tmp_path / "t4.json").exists()


def autotvm(result: object, **changes: object) -> dict[str, Any]:
    """Return a log record as AutoTVM of TVM 0.8 writes it."""
    task = ["llvm -keys=cpu", "dense_pack.x86", [["TENSOR", [1, 64], "float32"], None], {}]
    entity = [["tile_y", "sp", [-1, 1]], ["tile_x", "sp", [4, 16]], ["unroll", "ot", True]]
    config = {"index": 3, "code_hash": None, "entity": entity}
    return {"input": task, "config": config, "result": result, "version": 0.2} | changes


def test_autotvms_records_are_trials(out: Path, tmp_path: Path) -> None:
    ours, log = export_schedules(out, "autotvm", 12.5).text, tmp_path / "tuning.log"
    config = {"i": 1, "t": "direct", "c": None, "e": [["tile_k", "sp", [2, 4]]]}
    task = ["llvm", "topi_nn_dense", [["TENSOR", [1, 8], "int8"]], {}, ["dense"], config]
    older = {"v": 0.1, "r": [[0.5, 0.7], 0, 2.0, 3.0], "i": task}
    lines = [autotvm([[0.002, 0.004], 0, 1.0, 2.0]), autotvm([[1e9], 4, 1.0, 2.0]), older]
    text = ours + "".join(json.dumps(line) + "\n" for line in lines)
    log.write_text("# a comment\n" + text + '{"input": ["ll')
    trials = tilewright.trials(log)
    mine, (_, valid), (_, failed), (_, old) = trials.iloc[:-3], *trials.iloc[-3:].iterrows()
    tuned = json.loads((out / "schedules.json").read_text())["schedules"]
    assert len(mine) == ours.count("\n")
    assert all(workload_result["cycles"] * 1e-8 == pytest.approx(row)
               for workload_result, row in zip(tuned, mine["seconds"], strict=False))  # fmt: skip
    assert valid["workload"] == "dense_pack.x86 1x64:float32 None"
    assert json.loads(valid["knobs"]) == {"tile_y": [-1, 1], "tile_x": [4, 16], "unroll": True}
    assert (valid["seconds"], valid["status"]) == (pytest.approx(0.003), "valid")
    assert (failed["status"], failed["trial"]) == ("run_error", 1)
    assert (json.loads(old["knobs"]), old["seconds"]) == ({"tile_k": [2, 4]}, 0.6)


def test_metaschedules_database_is_trials() -> None:
    trials = tilewright.trials(DATABASE)
    assert list(trials["status"]) == ["valid"] * 6 + ["run_error"]
    assert trials["workload"].nunique() == 1
    fastest = trials.loc[trials["seconds"].idxmin()]
    assert fastest["seconds"] == pytest.approx(2.074e-07, rel=1e-3)
    knobs = json.loads(fastest["knobs"])
    assert knobs == {
        "PerfectTile 0": [1, 2, 8, 1], "PerfectTile 1": [1, 8, 2, 1], "PerfectTile 2": [1, 16],
        "Categorical 0": 64,
    }  # fmt: skip


def test_a_place_before_the_first_is_no_workload(tmp_path: Path) -> None:
    shutil.copytree(DATABASE, tmp_path / "database")
    records = tmp_path / "database" / "database_tuning_record.json"
    place, *rest = json.loads(records.read_text().splitlines()[0])
    assert place == 0
    records.write_text(records.read_text() + json.dumps([-1, *rest]) + "\n")
    assert len(tilewright.trials(tmp_path / "database")) == len(tilewright.trials(DATABASE))


def test_the_command_lists_them_and_says_what_it_left_out(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["trials", str(DATABASE), "--best", "1"])
    assert "7 trials of 1 workload; written by another tuner" in done.stdout
    log = tmp_path / "tuning.log"
    log.write_text(json.dumps(autotvm([[0.5], 0, 1.0, 2.0])) + "\n[]\n")
    done = CliRunner().invoke(app, ["trials", str(log)])
    assert "tuning.log, line 2: skipped" in done.stderr
    for text in "", "{}\n", "no log\n":
        log.write_text(text)
        with pytest.raises(ForeignTrialsError, match="contains no trial"):
            tilewright.trials(log)
    with pytest.raises(ForeignTrialsError, match=r"contains no trials\.sqlite"):
        tilewright.trials(tmp_path)
