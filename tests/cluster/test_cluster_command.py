"""Checks that commands with `--cluster` give the same results as on one machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.cli.conftest import LAYERS, TUNE, Place, Tuned
from tests.cluster.clusters import DaskCluster, settings_of
from tilewright.core.errors import TilewrightError
from tilewright.services.prefect_server import Login
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.preflight import check

LOCAL = ("--cluster", "local:2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Yield a cluster of two workers, one of which has two threads."""
    with DaskCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.worker("one")
        cluster.worker("two", "--nthreads", "2")
        yield cluster


def same_trials(ours: Path, theirs: Path) -> None:
    """Check that two output directories have the same trials and schedules in the same order."""
    trials = [pd.read_parquet(out / "trials.parquet") for out in (ours, theirs)]
    pd.testing.assert_frame_equal(*trials)
    schedules = [json.loads((out / "schedules.json").read_text()) for out in (ours, theirs)]
    assert schedules[0] == schedules[1]


@pytest.mark.nightly(seconds=15)
def test_a_tracked_run_has_the_trials_of_one_machine(
    tmp_path: Path, prefect_server: Login, cluster: DaskCluster, tuned: Tuned
) -> None:
    """This run uses Prefect and MLflow. Other tests compare runs with `--bare`."""
    place = Place(tmp_path, prefect_server)
    started = place.fork(
        *TUNE, "--out", "out", "--cluster", cluster.address, **settings_of(cluster.keys)
    )
    _, said = started.communicate(timeout=300)
    assert started.returncode == 0, said
    same_trials(tmp_path / "out", tuned.out)


@pytest.mark.slow(seconds=6)
def test_processes_of_this_machine_make_the_trials_of_one(tmp_path: Path, tuned: Tuned) -> None:
    """`--workers 2` is an abbreviation of `--cluster local:2`."""
    place = Place(tmp_path)
    for number, arguments in enumerate((LOCAL, ("--workers", "2"))):
        done = place.run(*TUNE, "--out", str(number), "--bare", *arguments)
        assert done.returncode == 0, done.stderr
        same_trials(tmp_path / str(number), tuned.out)


@pytest.mark.slow(seconds=2)
def test_workloads_beside_each_other_leave_the_trials_of_one_after_the_other(
    tmp_path: Path, tuned: Tuned
) -> None:
    done = Place(tmp_path).run(*TUNE, "--out", "out", "--bare", "--jobs", "3")
    assert done.returncode == 0, done.stderr
    same_trials(tmp_path / "out", tuned.out)


@pytest.mark.slow(seconds=8)
def test_a_worker_killed_in_the_middle_changes_no_trial(tmp_path: Path, tuned: Tuned) -> None:
    place = Place(tmp_path)
    with DaskCluster(tmp_path / "cluster-folder") as own:
        own.worker("victim")
        own.worker("other")
        command = place.fork(
            *TUNE, "--out", "out", "--bare", "--cluster", own.address, **settings_of(own.keys)
        )
        own.wait_until_busy()
        own.kill("victim")
        _, said = command.communicate(timeout=300)
        assert command.returncode == 0, said
    same_trials(tmp_path / "out", tuned.out)


@pytest.mark.slow(seconds=8)
def test_the_rows_of_a_dataset_are_those_of_one_machine(tmp_path: Path) -> None:
    place = Place(tmp_path)
    build = ("dataset", "build", "--rows", "600", "--cpu-rows", "0", "--bare",
             "--target", "vta-pynq", "--target", "vta-de10")  # fmt: skip
    for out, arguments in {"alone": (), "away": LOCAL}.items():
        done = place.run(*build, "--out", out, *arguments)
        assert done.returncode == 0, done.stderr
    files = [sorted(p.relative_to(tmp_path / out) for p in (tmp_path / out).rglob("*.parquet"))
             for out in ("alone", "away")]  # fmt: skip
    assert files[0] == files[1]
    assert len(files[0]) == 2
    for file in [*files[0], Path("dataset.json")]:
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "away" / file).read_bytes()


def _runs(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of a comparison without their times."""
    runs: list[dict[str, Any]] = json.loads((folder / "comparison.json").read_text())["runs"]
    return [{key: value for key, value in run.items() if "seconds" not in key} for run in runs]


@pytest.mark.slow(seconds=8)
def test_the_runs_of_a_comparison_are_those_of_one_machine(tmp_path: Path) -> None:
    place = Place(tmp_path)
    table = str(Path(__file__).parents[1] / "data" / "tvm-vta" / "C10.csv.gz")
    dense = ("--workloads", "dense:n=1,c=64,o=64")
    for number, of in enumerate((("--replay", table), dense, (*dense, "--live"))):
        for out, more in {"alone": ("--jobs", "1"), "away": LOCAL}.items():
            done = place.run(
                "compare", *of, "--tuners", "default,random", "--seeds", "0-1", "--trials", "16",
                "--no-mlflow", "--out", f"{out}{number}", *more,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        assert _runs(tmp_path / f"alone{number}") == _runs(tmp_path / f"away{number}")


@pytest.mark.slow(seconds=8)
def test_the_front_of_a_codesign_is_that_of_one_machine(tmp_path: Path) -> None:
    place = Place(tmp_path)
    search = ("codesign", "--networks", "digits_cnn", "--budget", "1", "--trials", "48", "--bare",
              "--bound", "log_block_in=4:4", "--bound", "log_block_out=4:4")  # fmt: skip
    for out, arguments in {"alone": (), "away": LOCAL}.items():
        done = place.run(*search, "--out", out, *arguments)
        assert done.returncode == 0, done.stderr
    fronts = [json.loads((tmp_path / out / "front.json").read_text()) for out in ("alone", "away")]
    assert fronts[0] == fronts[1]
    trials = [pd.read_parquet(tmp_path / out / "trials.parquet") for out in ("alone", "away")]
    pd.testing.assert_frame_equal(*trials)


@pytest.mark.slow(seconds=8)
def test_a_sweep_has_the_trials_of_one_machine(tmp_path: Path) -> None:
    place = Place(tmp_path)
    sweep = ("compare", "digits_cnn", "--layers", LAYERS[0], "--tuners", "random", "--seeds", "0",
             "--trials", "8", "--batch", "8", "--bare")  # fmt: skip
    for out, arguments in {"alone": (), "away": LOCAL}.items():
        done = place.run(*sweep, "--out", out, *arguments)
        assert done.returncode == 0, done.stderr
    (alone,) = (tmp_path / "alone").rglob("trials.parquet")
    (away,) = (tmp_path / "away").rglob("trials.parquet")
    same_trials(alone.parent, away.parent)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "tls://h:1", "workers": 2}, "leave one of the two out"),
        ({"cluster": "tcp://h:1"}, "--cluster tcp://h:1: write tls://HOST:PORT"),
        ({"cluster": "h:1"}, "the address of a Dask scheduler"),
        (
            {"target": "board:lab"},
            "the address of the cluster's scheduler: --cluster tls://HOST:PORT",
        ),
    ],
)
def test_what_cannot_work_together_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        check(TuningOptions.parse(model="digits_cnn", **options))
    assert message in str(caught.value)


def test_workers_are_short_for_a_local_cluster() -> None:
    assert TuningOptions.parse(workers=3).cluster == "local:3"
    assert TuningOptions.parse(workers=3, stop_gain=0.01).cluster == "local:3"
    assert TuningOptions.parse(workers=1).cluster == ""


def test_removed_commands_name_what_replaces_them(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for arguments, message in [
        (("cluster", "serve", "--port", "8786", "--slots", "2"), "start 'dask scheduler"),
        (("board", "serve", "lab", "--driver", "x", "--reset", "true"), "the address of a Dask"),
        (("compare", "--jobs", "2", "--cluster", "local:2", "--no-mlflow"), "leave one of the two"),
        (("dataset", "build", "--out", "x", "--cluster", "h:1"), "write tls://HOST:PORT"),
        (("codesign", "--networks", "digits_cnn", "--budget", "1", "--cluster", "h:1", "--bare"),
         "write tls://HOST:PORT"),
    ]:  # fmt: skip
        done = place.call(*arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
