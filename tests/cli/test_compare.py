"""Tests `tilewright compare` on recorded tables and a real schedule space."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import Place
from tilewright.cli.app import app
from tilewright.core.errors import TilewrightError
from tilewright.evaluation.compare.benchmark_suite import recorded_test_bed
from tilewright.evaluation.compare.job_runner import run_jobs
from tilewright.evaluation.compare.plan import (
    ComparisonPlan,
    parse_seeds,
    parse_tuner_configs,
    plan,
)
from tilewright.evaluation.compare.record import RECORD
from tilewright.evaluation.compare.workload_comparison import log_comparison
from tilewright.evaluation.row_cache import RUNS
from tilewright.flows.comparison import compare_tuners, run_comparison
from tilewright.reports.comparison import REPORT
from tilewright.search import LocalRunner
from tilewright.targets.vta.recorded_tables import read_stack_table

TABLES = Path(__file__).parents[1] / "data" / "tvm-vta"
TRIALS, SEEDS = 16, (0, 1)
STATUSES = {"valid", "compile_error", "run_error", "wrong_result", "timeout"}


def _plan(tuners: str = "default,random,ml2tuner:first=8:alpha=2") -> ComparisonPlan:
    test_bed = recorded_test_bed([TABLES / "C10.csv.gz", TABLES / "C6.csv.gz"])
    return plan(test_bed, parse_tuner_configs(tuners), SEEDS, TRIALS, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    compare_tuners(LocalRunner(), _plan(), out)
    return out


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / RECORD).read_text()))


def test_the_record_has_the_promised_keys_and_every_run(document: dict[str, Any]) -> None:
    assert list(document) == [
        "version", "target", "space", "trials", "optimum", "optimum_seconds", "runs",
        "leaderboards",
    ]  # fmt: skip
    assert document["version"] == 1
    assert (document["space"], document["trials"]) == ("template", TRIALS)
    assert document["optimum"] == {"C10": 37_817, "C6": 245_735}
    labels = {"default", "random", "ml2tuner:first=8:alpha=2"}
    keys = {(run["tuner"], run["workload"], run["seed"]) for run in document["runs"]}
    assert keys == {(t, w, s) for t in labels for w in ("C10", "C6") for s in SEEDS}
    assert len(document["runs"]) == len(keys)
    for run in document["runs"]:
        assert set(run) == {"tuner", "workload", "seed", "statuses", "best_cycles", "best_seconds",
                            "lowered", "failed_compiles", "wall_seconds"}  # fmt: skip


def test_every_run_is_consistent_with_itself_and_the_table(document: dict[str, Any]) -> None:
    cycles = {name: set(read_stack_table(TABLES / f"{name}.csv.gz").cycles.tolist())
              for name in ("C10", "C6")}  # fmt: skip
    for run in document["runs"]:
        assert len(run["statuses"]) == len(run["best_cycles"]) == TRIALS
        assert set(run["statuses"]) <= STATUSES
        assert 0 <= run["failed_compiles"] <= run["lowered"]
        known = [best for best in run["best_cycles"] if best is not None]
        assert run["best_cycles"][: len(run["best_cycles"]) - len(known)] == [None] * (
            TRIALS - len(known)
        )
        assert sorted(known, reverse=True) == known
        assert set(known) <= cycles[run["workload"]]
        first = run["statuses"].index("valid") if "valid" in run["statuses"] else TRIALS
        assert len(known) == TRIALS - first


@pytest.mark.slow(seconds=6)
def test_processes_change_nothing_but_the_seconds(folder: Path) -> None:
    there = _plan("random,default")
    jobs = [job for job in there.jobs if job.seed == 1]
    alone = {_key(run): _facts(run) for run in run_jobs(there, jobs)}
    shared = {_key(run): _facts(run) for run in run_jobs(there, jobs, "local:2")}
    assert alone == shared
    assert len(alone) == 4


@pytest.mark.slow(seconds=4)
def test_finished_runs_are_kept_and_not_repeated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (folder / RUNS).read_bytes().splitlines(keepends=True)
    (tmp_path / RUNS).write_bytes(b"".join(lines[:-2]) + lines[-2][:40])  # cut off by a crash
    asked = []
    monkeypatch.setattr(
        "tilewright.evaluation.compare.workload_comparison.run_jobs",
        lambda what, jobs, cluster: asked.extend(jobs) or run_jobs(what, jobs, cluster),
    )
    log_comparison(run_comparison(LocalRunner(), _plan(), tmp_path), tmp_path)
    assert len(asked) == 2
    again, before = (json.loads((out / RECORD).read_text()) for out in (tmp_path, folder))
    for run in again["runs"] + before["runs"]:
        del run["wall_seconds"]
    for row in again["leaderboards"][0]["tuners"] + before["leaderboards"][0]["tuners"]:
        for timed in ("wall_seconds", "seconds_to_goal", "stack_seconds_to_goal"):
            del row[timed]
            row["intervals"].pop(timed, None)
    assert again == before
    run_comparison(LocalRunner(), _plan(), tmp_path)
    assert len(asked) == 2
    run_comparison(LocalRunner(), _plan(), tmp_path, fresh=True)
    assert len(asked) == 2 + len(before["runs"])


class _Addresses(HTMLParser):
    """HTML parser that collects all addresses that a page loads, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = {"src", "srcset", "poster", "data"} | ({"href"} if tag != "a" else set())
        self.loads += [f"{tag} {value}" for key, value in attrs
                       if (key in names or key.endswith(":href")) and value]  # fmt: skip


def test_the_report_stands_alone_and_names_every_tuner_and_workload(folder: Path) -> None:
    page = (folder / REPORT).read_text()
    result = _Addresses(page)
    assert all(re.fullmatch(r"\w+ #\S+", load) for load in result.loads), result.loads[:3]
    assert "@import" not in page
    assert not re.search(r"url\((?!#|&quot;#|\"#)", page)
    assert not {"script", "link", "iframe", "img"} & set(result.tags)
    for text in ("default", "random", "ml2tuner:first=8:alpha=2", "C10 · 1×1/2 256→512 @14",
                 "C6 · 3×3/2 128→256 @28", "37,817", "245,735"):  # fmt: skip
        assert text in page
    assert result.tags.count("svg") == 6 + 2 * 3  # plots, and lines of three tuners in two legends
    ids = re.findall(r'\bid="([^"]+)"', page)
    referenced = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert referenced <= set(ids)


@pytest.mark.slow(seconds=4)
def test_an_enumerated_space_is_compared_from_the_command_line(place: Place) -> None:
    small, odd = "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1", "dense:n=1,c=16,o=16"
    done = place.run(
        "compare", "--tuners", "random,default", "--workloads", small, "--workloads", odd,
        "--space", "template", "--trials", "8", "--batch", "4", "--seeds", "0,2", "--out", "out",
        "--jobs", "1", "--no-mlflow",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "out/report.html" in done.stdout
    document = place.json("out/comparison.json")
    assert (document["target"], document["space"]) == ("vta-pynq", "template")
    assert list(document["optimum"]) == [small, odd]
    assert {run["seed"] for run in document["runs"]} == {0, 2}
    # A dense layer of one block has few schedules: the space is exhausted.
    assert {len(r["statuses"]) for r in document["runs"] if r["workload"] == odd} == {4}
    assert len(list((place.folder / "home" / "oracle").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tuners", "defualt"], "unknown tuner 'defualt'; did you mean default?"),
        (["--tuners", "default,default"], "names default twice"),
        (["--tuners", ","], "--tuners ',' contains an empty name"),
        (["--tuners", "default,,random"], "contains an empty name"),
        (["--tuners", "ml2tuner:alpha=-1"], "option alpha of tuner 'ml2tuner'"),
        (["--tuners", "ml2tuner:alhpa=1"], "known options: alpha"),
        (["--tuners", "ml2tuner:alpha"], "write an option as ml2tuner:NAME=VALUE"),
        (["--seeds", "0-"], "cannot read '0-'; write 0-19 or 0,3,7"),
        (["--seeds", "5-3"], "5 is larger than 3; write 3-5"),
        (["--seeds", ""], "cannot read ''"),
        (["--seeds", "-1"], "cannot read '-1'"),
        (["--seeds", "0-99999"], "at most 10,000 seeds"),
        (["--seeds", "4000000000"], "a seed must be between 0 and"),
        (["--trials", "0"], "greater than or equal to 1 (measurements per workload)"),
        (["--batch", "0"], "greater than or equal to 1 (measurements per round)"),
        (["--replay", "C99.csv.gz"], "the file C99.csv.gz does not exist"),
        (["--network", "resnet18", "--replay", "C4.csv.gz"], "cannot be combined"),
        (["--network", "resnet81"], "unknown network 'resnet81'"),
        (["--network", "resnet18", "--space", "tempalte"], "unknown space 'tempalte'"),
        (["--network", "resnet18", "--target", "vta-pink"], "vta-pink"),
        (
            ["--network", "digits_cnn", "--workloads", "12"],
            "the workload '12' does not exist; choose by position",
        ),
        ([], "no workloads to compare on were given"),
        (["--workloads", "conv2d:n=1"], "lacks c, h, k, o, w"),
        (["--out", "/proc/nowhere"], "choose another folder with --out"),
    ],
)
def test_a_mistake_gets_one_message_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ):  # the command sets its workspace there
        result = CliRunner().invoke(app, ["compare", *arguments])
    assert isinstance(result.exception, TilewrightError), result.output
    assert message in str(result.exception)
    assert not (tmp_path / "compared").exists()


def test_a_mistake_ends_the_command_with_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "compare", "--trials", "0"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: --trials 0")


def test_seeds_are_read_as_written() -> None:
    assert parse_seeds("0-3,7, 9-10,2") == (0, 1, 2, 3, 7, 9, 10)


def _key(run: Any) -> tuple[str, str, int]:
    return run.tuner, run.workload, run.seed


def _facts(run: Any) -> dict[str, Any]:
    record = run.record()
    del record["wall_seconds"]
    return dict(record)
