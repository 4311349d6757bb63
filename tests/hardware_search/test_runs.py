"""Tests co-design runs in a folder: files, resuming, and checks of recorded measurements."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import warm
from tests.cli.conftest import Place
from tests.hardware_search.runs import BOUNDS, TRIALS, options, run
from tests.trial_tables import frame, rows
from tilewright.core.errors import TilewrightError
from tilewright.hardware_search import output_folder as folder
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.methods.random_codesign import RandomCodesign
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.hardware_search.progress import SearchProgress
from tilewright.hardware_search.results import CodesignOutcome
from tilewright.hardware_search.steps import check
from tilewright.search import RunInUse, TrialStore
from tilewright.search.events import Event
from tilewright.search.trial_store import FILE
from tilewright.targets import make_target
from tilewright.targets.capabilities import PARTS, HasArea, capability
from tilewright.targets.registry import check_target
from tilewright.tuning.events import Note
from tilewright.tuning.run_metadata import FolderTaken


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CodesignOutcome]:
    """Return a finished run, which tests only read."""
    out = tmp_path_factory.mktemp("codesign") / "out"
    return out, run(options(out))


def front(out: Path) -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = json.loads((out / folder.FRONT).read_text())
    return document


@pytest.mark.slow(seconds=5)
def test_machines_of_the_front_are_specifications_that_tune_takes(
    finished: tuple[Path, CodesignOutcome],
) -> None:
    out, _ = finished
    rows = front(out)
    assert len(rows) > 1
    assert {path.stem for path in (out / folder.SPECS).iterdir()} == {row["name"] for row in rows}
    for row in rows:
        path = str(out / folder.SPECS / f"{row['name']}.json")
        check_target(path)
        target = make_target(path)
        area = capability(target, HasArea)
        assert area is not None
        assert area.area()["relative"] == row["area"] <= 1
        assert target.name == row["name"] == row["spec"]["name"]


def test_the_front_is_what_the_measurements_say(finished: tuple[Path, CodesignOutcome]) -> None:
    out, outcome = finished
    rows, trials = front(out), pd.read_parquet(out / folder.TRIALS)
    assert list(trials["trial"]) == list(range(1, TRIALS + 1))
    assert not trials.duplicated(["machine", "workload", "epilogue", "schedule"]).any()
    assert trials["best_seconds"].is_monotonic_decreasing
    best = 1e3 * trials["best_seconds"].iloc[-1]
    assert rows[-1]["milliseconds"]["digits_cnn"] == pytest.approx(best)
    areas = [row["area"] for row in rows]
    times = [row["milliseconds"]["digits_cnn"] for row in rows]
    assert areas == sorted(areas)
    assert times == sorted(times, reverse=True)
    for row in rows:
        mine = trials[(trials["machine"] == row["name"]) & (trials["status"] == "valid")]
        least = mine.groupby("workload")["cycles"].min()
        assert sum(least) == sum(layer["cycles"] for layer in row["layers"])
        assert row["cycles"]["digits_cnn"] == sum(least)  # each is called once
        assert (trials[trials["machine"] == row["name"]]["area"] == row["area"]).all()
    summary = json.loads((out / folder.SUMMARY).read_text())
    assert summary["measurements"] == len(trials) == outcome.summary["trials"]
    assert summary["hardware"]["seen"] == trials["machine"].nunique()
    assert summary["front"] == len(rows)
    assert summary["best"]["name"] == rows[-1]["name"]
    assert summary["verified"] is True


def test_cycles_go_where_the_bottleneck_says(finished: tuple[Path, CodesignOutcome]) -> None:
    for row in front(finished[0]):
        assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-5)
        assert row["bottleneck"] == max(PARTS, key=lambda part: row["shares"][part])
        assert sum(item["share"] for item in row["layers"]) == pytest.approx(1, abs=1e-5)
        for layer in row["layers"]:
            assert sum(layer["parts"].values()) == layer["cycles"] >= layer["bound_cycles"] > 0
            assert layer["counters"]["instructions"] > 0
            assert layer["names"].keys() == layer["calls"].keys() == {"digits_cnn"}


def test_a_longer_run_goes_on_with_a_shorter_one(
    finished: tuple[Path, CodesignOutcome], tmp_path: Path
) -> None:
    heard: list[Event] = []
    run(options(tmp_path, trials=30))
    kept = len(frame(tmp_path))
    run(options(tmp_path), heard.append)
    assert (kept, len(frame(tmp_path))) == (30, TRIALS)
    assert (tmp_path / folder.FRONT).read_bytes() == (finished[0] / folder.FRONT).read_bytes()
    assert [event.trials for event in heard if isinstance(event, SearchProgress)] == [
        *range(1, TRIALS + 1)
    ]


DIES_AT_WORK = """
import os, signal

from tests.hardware_search.runs import options, run
from tilewright.search import StoredRun

append = StoredRun.append


def dies(run, *arguments):
    append(run, *arguments)
    if len(run.store.frame()) > 20:
        os.kill(os.getpid(), signal.SIGKILL)


StoredRun.append = dies
run(options("killed"))
"""
"""Program that is killed after a fixed number of recorded measurements, whatever its speed."""


@pytest.mark.slow(seconds=4)
def test_a_run_that_is_killed_goes_on_to_the_same_front(
    finished: tuple[Path, CodesignOutcome], place: Place
) -> None:
    out = place.folder / "killed"
    died = warm.run([], place.folder, place.environment, 300, program=DIES_AT_WORK)
    assert died.returncode == -signal.SIGKILL, died.stderr
    kept = len(frame(out))
    assert 20 < kept < TRIALS
    assert not (out / folder.SUMMARY).exists()
    assert not (out / folder.FRONT).exists()
    run(options(out))
    assert (out / folder.FRONT).read_bytes() == (finished[0] / folder.FRONT).read_bytes()
    assert len(frame(out)) == TRIALS == len(pd.read_parquet(out / folder.TRIALS))


DIES = """
import os, signal

from tilewright.hardware_search import outputs, verification
from tests.hardware_search.runs import options, run


def dies(after, work):
    def done(*given, **more):
        nonlocal after
        if not after:
            os.kill(os.getpid(), signal.SIGKILL)
        after -= 1
        return work(*given, **more)

    return done


killed = (verification, "_verified", (1,)), (outputs, "write_atomically", (0, 1, 4))
for module, name, counts in killed:
    for after in counts:
        child = os.fork()
        if not child:
            setattr(module, name, dies(after, getattr(module, name)))
            run(options("killed"))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert not os.path.exists("killed/summary.json")
"""
"""Program that makes runs in one folder, each killed while the front is verified or after it has
written some of its files."""


@pytest.mark.nightly(seconds=6)
def test_a_run_that_is_killed_while_it_proves_and_writes_comes_to_the_same_files(
    finished: tuple[Path, CodesignOutcome], place: Place
) -> None:
    done = warm.run([], place.folder, place.environment, 300, program=DIES)
    assert done.returncode == 0, done.stderr
    killed = place.folder / "killed"
    assert (killed / folder.FRONT).exists()
    run(options(killed))
    ours, whole = contents(killed), contents(finished[0])
    for name in (folder.FRONT, folder.PAGE, folder.TRIALS):
        assert ours[name] == whole[name]
    specs = [{name for name in item if name.startswith("specs/")} for item in (ours, whole)]
    assert specs[0] == specs[1]
    assert all(ours[name] == whole[name] for name in specs[0])


def test_what_a_record_claims_is_measured_before_it_is_told(
    finished: tuple[Path, CodesignOutcome], tmp_path: Path
) -> None:
    out, notes = tmp_path / "forged", list[str]()
    shutil.copytree(finished[0], out)
    rows(out, "update trials set cycles = 7, seconds = 7e-8 where cycles > 0 and id % 5 = 0")
    run(options(out), lambda event: notes.append(event.text) if isinstance(event, Note) else None)
    assert (out / folder.FRONT).read_bytes() == (finished[0] / folder.FRONT).read_bytes()
    assert any("the recorded latency differs from what" in note for note in notes)
    assert 7 not in {*frame(out)["cycles"]}


def test_a_folder_belongs_to_one_search(
    finished: tuple[Path, CodesignOutcome], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished[0], out)
    before = (out / folder.FRONT).read_bytes()
    for more, said in (
        ({"seed": 1}, "seed 0, here seed 1"),
        ({"budget": 0.9}, "budget 1.0, here budget 0.9"),
        ({"clock": "tree"}, "clock fixed, here clock tree"),
        ({"bounds": {**BOUNDS, "bus_bits": (64, 128)}}, "bounds"),
        ({"networks": ("alexnet",)}, "networks digits_cnn, here networks alexnet"),
        ({"method_options": {"trials": 5}}, "method options"),
    ):
        with pytest.raises(TilewrightError, match=f"another co-design run: .*{said}.*--fresh"):
            check(options(out, **more))
    assert (out / folder.FRONT).read_bytes() == before
    other = tmp_path / "other"
    other.mkdir()
    (other / folder.RUN).write_text('{"version": 1, "network": {}}')
    with pytest.raises(TilewrightError, match="another kind of results"):
        check(options(other))
    anew = run(options(out, seed=1, fresh=True))
    assert {path.stem for path in (out / folder.SPECS).iterdir()} == {
        row["name"] for row in anew.front
    }
    assert len(frame(out)) == TRIALS


def contents(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*")
        if path.is_file()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([folder.PAGE], "front.html but no run.json"),
        ([folder.SUMMARY, folder.TRIALS], "summary.json, trials.parquet but no run.json"),
        (["specs/mine.json", folder.FRONT], "front.json, specs but no run.json"),
        (["specs/notes.txt"], "specs but no run.json"),
        ([folder.RUN, "specs/mine.json"], "a run.json that cannot be read"),
    ],
)
def test_a_folder_of_strangers_is_refused_before_anything_of_it_is_touched(
    names: list[str], said: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('[{"name": "mine"}')
    before = contents(tmp_path)
    for begins in check, run:
        with pytest.raises(FolderTaken, match=f"{said}.*--out.*--fresh"):
            begins(options(tmp_path))
    assert contents(tmp_path) | before == before | contents(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_other_files_beside_the_results_are_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    check(options(tmp_path))


def test_only_specifications_that_our_front_names_are_removed(
    finished: tuple[Path, CodesignOutcome], tmp_path: Path
) -> None:
    strange, out = tmp_path / "strange", tmp_path / "out"
    mine = {f"specs/{name}": name.encode() for name in ("mine.json", "a.txt")}
    (strange / folder.SPECS).mkdir(parents=True)
    shutil.copytree(finished[0], out)
    for name, data in mine.items():
        (strange / name).write_bytes(data)
        (out / name).write_bytes(data)
    named = json.dumps([{"name": "mine"}, {"name": "../mine"}])
    (strange / folder.FRONT).write_text(named)  # no record says that the folder is ours
    (strange / "mine.json").write_text("{}")
    for place, seed in ((strange, 0), (out, 1), (out, 2)):
        result = run(options(place, seed=seed, fresh=True))
        ours = {f"specs/{row['name']}.json" for row in result.front}
        assert {name for name in contents(place) if name.startswith("specs/")} == ours | set(mine)
        assert contents(place) | mine == contents(place)
    assert (strange / "mine.json").exists()
    (out / folder.FRONT).write_text(named)  # a path out of the folder
    (out / "mine.json").write_text("{}")
    folder.forget_specs(out)
    assert (out / "mine.json").exists()
    assert not (out / "specs/mine.json").exists()


def test_a_second_command_is_told_which_folder_is_taken(tmp_path: Path) -> None:
    with TrialStore(tmp_path / FILE):
        for begins in check, run:
            with pytest.raises(RunInUse, match=f"^{tmp_path} is in use by process"):
                begins(options(tmp_path))
        with pytest.raises(RunInUse, match=f"^{tmp_path} is in use"):
            TrialStore(tmp_path / FILE)


@pytest.mark.parametrize(
    ("trials", "measured", "said"),
    [
        (3, 3, r"after 3 measurements \(one has 4 layers or more\).* more --trials$"),
        (3, 1, r"after 1 measurement \(.*, with 2 measurements of 3 left; choose another"),
    ],
)
def test_a_front_without_a_whole_machine_is_empty_and_says_so(
    trials: int, measured: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(
        self: RandomCodesign, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int
    ) -> None:
        design = problem.design(0)
        workload = design.layers[0].workload
        space = design.target.space(workload)
        evaluator.evaluate(design, workload, space.unravel(np.arange(measured)))

    monkeypatch.setattr(RandomCodesign, "search", search)
    notes = list[str]()
    result = run(
        options(tmp_path, trials=trials),
        lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    assert result.front == front(tmp_path) == []
    assert result.summary["best"] is None
    assert re.search(said, notes[-1]), notes[-1]
    assert b"No machine has a valid schedule" in (tmp_path / folder.PAGE).read_bytes()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"budget": 0.01}, "the smallest has 0"),
        ({"bounds": {"log_batch": (1, 0)}}, "the lower bound is above the upper bound"),
        ({"bounds": {"log_batch": (7, 9)}}, "no value lies between the bounds"),
        ({"bounds": {"cores": (1, 2)}}, "there is no hardware knob cores"),
        ({"networks": ("resnet19",)}, "unknown network"),
        ({"networks": ("missing.onnx",)}, "does not exist"),
        ({"method": "hope"}, "unknown method"),
        ({"method_options": {"hope": 1}}, "option hope of random"),
        ({"target": "cpu"}, "has no hardware knobs"),
        ({"target": "tpu"}, "unknown target"),
    ],
)
def test_what_cannot_work_is_said_before_any_work(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(TilewrightError, match=said):
        run(options(out, **more))
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"trials": 0}, "--trials 0"),
        ({"budget": -1}, "--budget -1"),
        ({"budget": float("nan")}, "--budget nan"),
        ({"clock": "fast"}, "--clock fast"),
        ({"networks": ()}, "--networks"),
        ({"networks": ("alexnet", "alexnet")}, "alexnet is named twice"),
    ],
)
def test_what_makes_no_sense_names_the_option(more: dict[str, Any], said: str) -> None:
    with pytest.raises(TilewrightError, match=said):
        options(Path("out"), **more)


def test_a_method_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "tilewright.hardware_search.methods.find_spec", lambda name: None if name == "jax" else name
    )
    with pytest.raises(
        TilewrightError,
        match=r"needs the missing package jax; .*pip install 'tilewright\[neural\]'",
    ):
        check(options(tmp_path / "out", method="dcoc"))
    check(options(tmp_path / "out", method="random"))


def test_the_command_of_a_run_says_all_that_is_not_as_usual() -> None:
    given = CodesignOptions.parse(
        networks=("alexnet", "vgg11"), budget=0.5, bounds={"log_batch": (0, 1)},
        method_options={"batch": 4}, fresh=True,
    )  # fmt: skip
    assert given.command_line("codesign") == (
        "tilewright codesign --networks alexnet,vgg11 --budget 0.5 "
        "--bound log_batch=0:1 --option batch=4"
    )
