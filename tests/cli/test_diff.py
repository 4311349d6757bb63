"""Tests `tilewright diff`: runs that are no worse, worse, or not comparable."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LAYERS, TUNE, Place, Tuned
from tests.sharing import made_once
from tilewright.evaluation.diff import DiffError, diff_runs, read_side

pytestmark = pytest.mark.slow(seconds=0.8)

FEW = 2
"""Number of trials per layer in the short runs, to which `tuned` with forty trials is compared."""


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with several runs of few trials.

    `few` tunes the layers of the fixture `tuned`, and `one` tunes a single layer. `plain` has
    another epilogue and `small` another machine.
    """

    def tune(folder: Path) -> None:
        usual = ("tune", "digits_cnn", "--bare", "--tuner", "random", "--trials", str(FEW))
        for out, *given in (
            ("few", "--layers", ",".join(LAYERS)),
            ("one", "--layers", "fc"),
            ("plain", "--layers", "fc", "--epilogue", "plain"),
            ("small", "--layers", "fc", "--target", "small"),
            ("stock", "--layers", "fc", "--space", "stock"),
        ):
            done = Place(folder).run(*usual, *given, "--out", out)
            assert done.returncode == 0, done.stderr

    return Place(made_once(tmp_path_factory, "few", tune))


def diff(a: Path, b: Path, *options: str, place: Place) -> subprocess.CompletedProcess[str]:
    return place.call("diff", str(a), str(b), *options)


def test_a_run_is_no_worse_than_itself_nor_than_one_of_fewer_trials(
    tuned: Tuned, few: Place
) -> None:
    for a in tuned.out, few.folder / "few":
        done = diff(a, tuned.out, place=few)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1].startswith("no worse: ")


def test_a_run_that_found_less_is_worse_and_every_reason_is_said(tuned: Tuned, few: Place) -> None:
    done = diff(tuned.out, few.folder / "few", "--json", place=few)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "worse"
    before, after = (read_side(item) for item in (tuned.out, few.folder / "few"))
    assert document["total"]["a"] == before.total.cycles
    assert document["total"]["b"] == after.total.cycles
    assert document["total"]["more"] == pytest.approx(after.total.cycles / before.total.cycles - 1)
    slower = [
        workload["what"]
        for workload in (document["total"], *document["workloads"])
        if workload["worse"]
    ]
    assert [reason.partition(":")[0] for reason in document["reasons"]] == slower
    assert {setting["what"]: setting["b"] for setting in document["settings"]}["trials"] == str(FEW)
    assert document["changed"] == []
    said = diff(tuned.out, few.folder / "few", place=few).stdout
    assert all(f"worse  {reason}" in said for reason in document["reasons"])


def test_what_is_tolerated_is_no_worse(tuned: Tuned, few: Place) -> None:
    done = diff(tuned.out, few.folder / "few", "--tolerance", "10000", "--json", place=few)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reasons"] == []


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("plain", "because the epilogues differ: fc"),
        ("small", "because the target differs: vta-pynq and small"),
        ("stock", "because the space differs: extended and stock"),
        ("few", "because their layers differ. Only "),
        ("nowhere", "nowhere contains no finished run, because the file summary.json is missing"),
    ],
)
def test_runs_that_answer_other_questions_are_refused(few: Place, other: str, message: str) -> None:
    done = diff(few.folder / "one", few.folder / other, place=few)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_tolerance_that_is_none_is_refused(few: Place) -> None:
    done = diff(few.folder / "one", few.folder / "one", "--tolerance", "-1", place=few)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--tolerance -1: give a percentage of 0 or more" in done.stderr


def test_a_run_may_be_named_by_its_id_in_mlflow(tuned: Tuned, tmp_path: Path) -> None:
    run_id = tuned.place.json("out/summary.json")["mlflow_run_id"]
    done = tuned.place.run("diff", run_id, str(tuned.out), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["a"], document["total"]["more"]) == (f"MLflow run {run_id}", 0.0)
    unknown = tuned.place.run("diff", "0" * 32, str(tuned.out))
    assert unknown.returncode == 2
    assert unknown.stderr.count("\n") == 1
    assert "has no summary.json" in unknown.stderr


# -- comparing edited files ------------------------------------------------------------------------


def edited(folder: Path, place: Path, change: Callable[[Any], object], name: str) -> Path:
    """Copy a run's folder and change one of its JSON documents."""
    shutil.copytree(folder, place)
    document = json.loads((place / name).read_text())
    change(document)
    (place / name).write_text(json.dumps(document))
    return place


def _lose_trials(summary: Any) -> None:
    for row in summary["workloads"]:
        row["invalid_trials"] = row["trials"] // 2


def _forget(summary: Any) -> None:
    for row in summary["workloads"]:
        row["model_errors"]["P_rmse"] += 1.0


def _break_one(summary: Any) -> None:
    summary["workloads"][0].update(tuned_cycles=None, tuned_seconds=None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_lose_trials, "valid trials: from 100.0 % to 50.0 %"),
        (_forget, "the model is less accurate"),
        (_break_one, "no trial is valid any more"),
    ],
)
def test_validity_and_models_count_too(
    tuned: Tuned, tmp_path: Path, change: Callable[[Any], None], reason: str
) -> None:
    other = edited(tuned.out, tmp_path / "b", change, "summary.json")
    (said,) = diff_runs(read_side(tuned.out), read_side(other)).reasons
    assert reason in said
    assert not diff_runs(read_side(other), read_side(tuned.out)).is_worse


def test_few_invalid_trials_of_many_are_chance(tuned: Tuned, tmp_path: Path) -> None:
    def lose_one(summary: Any) -> None:
        summary["workloads"][0]["invalid_trials"] = 1

    other = edited(tuned.out, tmp_path / "b", lose_one, "summary.json")
    assert not diff_runs(read_side(tuned.out), read_side(other)).is_worse


def test_another_simulator_or_compiler_is_named_and_is_no_reason(
    tuned: Tuned, tmp_path: Path
) -> None:
    def newer(summary: Any) -> None:
        summary["versions"]["apache-tvm"] = "9.9"

    def measured_otherwise(schedules: Any) -> None:
        schedules["target"]["fingerprint"] = "f" * 16

    other = edited(tuned.out, tmp_path / "b", newer, "summary.json")
    other = edited(other, tmp_path / "c", measured_otherwise, "schedules.json")
    runs = diff_runs(read_side(tuned.out), read_side(other))
    assert [item.what for item in runs.changed] == ["target fingerprint", "apache-tvm"]
    assert runs.changed[1].b == "9.9"
    assert not runs.is_worse


def test_intervals_that_overlap_are_no_worse(tuned: Tuned, tmp_path: Path) -> None:
    """The target is noisy and counts no cycles."""

    def measured(low: float) -> Callable[[Any], None]:
        def change(summary: Any) -> None:
            for row in (*summary["workloads"], summary["total"]):
                row |= {
                    "tuned_cycles": None, "tuned_seconds": low + 0.05,
                    "validation": {"tuned_interval": [low, low + 0.1]},
                }  # fmt: skip

        return change

    first, near, far = (
        read_side(edited(tuned.out, tmp_path / str(low), measured(low), "summary.json"))
        for low in (1.0, 1.09, 1.2)
    )
    assert not diff_runs(first, near).is_worse
    assert diff_runs(first, far).total.unit == "seconds"
    assert diff_runs(first, far).is_worse
    assert not diff_runs(first, far, tolerance_percent=15).is_worse


def test_a_summary_without_a_version_reads_as_before(tuned: Tuned, tmp_path: Path) -> None:
    """Release 0.1 wrote `default_*` for `rule_*`, and `afresh` for `validation`."""

    def measured(key: str) -> Callable[[Any], None]:
        def change(summary: Any) -> None:
            if key == "afresh":
                assert summary.pop("version") == 3
            for row in (*summary["workloads"], summary["total"]):
                row |= {"tuned_cycles": None, "tuned_seconds": 1.0}
                row[key] = {"tuned_interval": [0.9, 1.1]}
                if key == "afresh":
                    for name in ("cycles", "seconds"):
                        row[f"default_{name}"] = row.pop(f"rule_{name}")

        return change

    new, old = (
        read_side(edited(tuned.out, tmp_path / key, measured(key), "summary.json"), "a run")
        for key in ("validation", "afresh")
    )
    assert old == new
    assert old.total.interval == (0.9, 1.1)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("summary.json", lambda d: d["workloads"].clear(), "was not written by this version"),
        ("summary.json", lambda d: d["workloads"].pop(), "contain different layers"),
        ("summary.json", lambda d: d["total"].update(tuned_cycles=-1), "was not written by"),
        (
            "summary.json",
            lambda d: d["workloads"][0].update(invalid_trials=99),
            "the number of invalid trials is 99",
        ),
        ("schedules.json", lambda d: d.pop("target"), "was not written by this version"),
        ("schedules.json", lambda d: d["schedules"][0].update(workload="x"), "was not written by"),
    ],
)
def test_a_damaged_folder_is_refused(
    tuned: Tuned, tmp_path: Path, name: str, change: Callable[[Any], object], message: str
) -> None:
    folder = edited(tuned.out, tmp_path / "b", change, name)
    with pytest.raises(DiffError, match=message):
        read_side(folder)


def test_a_torn_file_is_refused(tuned: Tuned, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shutil.copytree(tuned.out, folder)
    text = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text(text[: len(text) // 2])
    with pytest.raises(DiffError, match="cannot read"):
        read_side(folder)


def test_what_models_were_off_by_is_read_back_with_the_trials(tuned: Tuned, tmp_path: Path) -> None:
    """A repeated command asks no model, but its summary still has the models' prediction errors."""
    shutil.copytree(tuned.out, tmp_path / "out")
    again = Place(tmp_path).run(*TUNE, "--bare", "--out", "out")
    assert again.returncode == 0, again.stderr
    rows = [json.loads((f / "summary.json").read_text())["workloads"]
            for f in (tuned.out, tmp_path / "out")]  # fmt: skip
    for first, second in zip(*rows, strict=True):
        assert second["reused_trials"] == second["trials"]
        assert {"P_rmse", "V_brier"} <= second["model_errors"].keys()
        assert second["model_errors"] == pytest.approx(first["model_errors"], rel=1e-3)
