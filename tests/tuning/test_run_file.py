"""Checks that an output directory belongs to one network on one target, and records both."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.trial_tables import frame
from tests.tune_bare import tune_bare, tune_options
from tilewright import tuning
from tilewright.networks import zoo
from tilewright.tuning.events import Event, Note
from tilewright.tuning.run_metadata import FolderTaken, read_run

RUN = {"model": "digits_cnn", "tuner": "random", "trials": 4, "batch": 4}
TUNED = ("conv1", "conv2", "conv3", "fc")
BOARD = {"LOG_BLOCK": 4, "bus_bits": 128}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run-file") / "out"
    tune_bare(**RUN, out=str(out))
    return out


@pytest.fixture
def out(tuned: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run's folder."""
    return Path(shutil.copytree(tuned, tmp_path / "out"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_says_what_its_folder_holds(tuned: Path) -> None:
    held = read_run(tuned)
    assert held is not None
    assert (held["network"]["name"], held["target"]["name"]) == ("digits_cnn", "vta-pynq")
    assert [workload["names"] for workload in held["workloads"]] == [[name] for name in TUNED]
    assert {workload["id"] for workload in held["workloads"]} == {*frame(tuned)["workload"]}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "resnet18"},
        {"model": "", "workload": "dense:n=1,c=64,o=64"},
        {"target": "small"},
        {"layers": ["fc"]},
    ],
)
def test_another_run_is_refused_and_changes_nothing(out: Path, change: dict[str, object]) -> None:
    before = contents(out)
    with pytest.raises(FolderTaken) as refused:
        tune_bare(**RUN | change, out=str(out))
    for told in ("digits_cnn on vta-pynq", "4 trials", "random", "UTC", "complete", "--fresh"):
        assert told in str(refused.value)
    assert contents(out) == before


def test_fresh_replaces_all_of_it(out: Path) -> None:
    text = "dense:n=1,c=64,o=64"
    tune_bare(workload=text, tuner="random", trials=4, batch=4, out=str(out), fresh=True)
    held = read_run(out)
    assert held is not None
    assert held["network"]["name"] == text
    assert frame(out)["workload"].nunique() == 1
    summary = json.loads((out / "summary.json").read_text())
    assert summary["part"]["workload"] == text


def test_more_trials_and_other_tuners_go_on_and_other_tuners_are_named(out: Path) -> None:
    heard: list[Event] = []
    begun = read_run(out)
    tune_options(tuning.TuningOptions.parse(**RUN, out=str(out)), heard.append)
    assert read_run(out) == begun
    more = tune_bare(**RUN | {"trials": 8}, out=str(out))
    assert [row["reused_trials"] for row in more["workloads"]] == [4] * len(TUNED)
    assert not [event for event in heard if isinstance(event, Note)]
    other = tuning.TuningOptions.parse(**RUN | {"tuner": "grid"}, out=str(out))
    tune_options(other, heard.append)
    note, *better = [event.text for event in heard if isinstance(event, Note)]
    assert "tuner random with seed 0" in note
    assert "stay in the database" in note
    assert all("tuner random" in item for item in better)  # its schedule is still the best


@pytest.mark.nightly(seconds=25)
def test_a_file_is_known_by_its_place_or_by_what_is_in_it(tmp_path: Path) -> None:
    model, board, out = tmp_path / "mine.onnx", tmp_path / "board.json", tmp_path / "out"
    model.write_bytes(zoo.build("digits_cnn").SerializeToString())
    board.write_text(json.dumps(BOARD))
    run = RUN | {"model": str(model), "layers": ["fc"], "target": str(board), "out": str(out)}
    tune_bare(**run)
    board.write_text(json.dumps(BOARD | {"bus_bits": 64}))
    assert tune_bare(**run)["workloads"][0]["reused_trials"] == 0  # the file has another machine
    (tmp_path / "moved").mkdir()
    moved = Path(shutil.copy(model, tmp_path / "moved"))
    tune_bare(**run | {"model": str(moved)})
    moved.write_bytes(zoo.build("digits_cnn", seed=1).SerializeToString())
    tune_bare(**run | {"model": str(moved)})  # accepted: the last run used this path
    with pytest.raises(FolderTaken, match=r"mine \(fc\) on board"):
        tune_bare(**run)


def test_a_damaged_file_is_as_good_as_none(out: Path) -> None:
    for text in ("", "[]", "{}", '{"version": 1}', "[" * 3000):
        (out / "run.json").write_text(text)
        assert read_run(out) is None
    tune_bare(**RUN, out=str(out))
    assert read_run(out) is not None
