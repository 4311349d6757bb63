"""Checks that `tilewright tune --cluster` writes the files of one machine, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import TUNE, Place, Tuned
from tests.cluster.clusters import Cluster
from tests.trial_tables import frame
from tilewright.core.errors import TilewrightError
from tilewright.services.prefect_server import Login
from tilewright.tuning.options import parse_options
from tilewright.tuning.preflight import check

FILES = ("schedules.json", "trials.parquet")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers, one of which answers two calls at a time."""
    with Cluster(tmp_path_factory.mktemp("cluster"), "one", "two") as cluster:
        cluster.worker("one")
        cluster.worker("two", "--slots", "2")
        yield cluster


@pytest.mark.nightly(seconds=11)
def test_a_tracked_run_leaves_the_bytes_of_one_machine(
    tmp_path: Path, prefect_server: Login, cluster: Cluster, tuned: Tuned
) -> None:
    """Bare ones are compared below, and by the page's own commands."""
    place = Place(tmp_path, prefect_server)
    done = place.run(*TUNE, "--out", "out", "--cluster", cluster.address)
    assert done.returncode == 0, done.stderr
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (tuned.out / name).read_bytes(), name


@pytest.mark.slow(seconds=2)
def test_workloads_beside_each_other_leave_the_bytes_of_one_after_the_other(
    tmp_path: Path, tuned: Tuned
) -> None:
    done = Place(tmp_path).run(*TUNE, "--out", "out", "--bare", "--jobs", "3")
    assert done.returncode == 0, done.stderr
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (tuned.out / name).read_bytes(), name


@pytest.mark.slow(seconds=4)
def test_a_worker_killed_in_the_middle_changes_no_byte(tmp_path: Path, tuned: Tuned) -> None:
    place = Place(tmp_path)
    with Cluster(tmp_path, "victim", "other") as own:
        victim = own.worker("victim")
        own.worker("other")
        command = place.fork(*TUNE, "--out", "out", "--bare", "--cluster", own.address)
        end = time.monotonic() + 120
        while not len(frame(tmp_path / "out")):
            assert time.monotonic() < end
            assert command.poll() is None, command.communicate()
            time.sleep(0.01)
        victim.kill()
        _, said = command.communicate(timeout=300)
        assert command.returncode == 0, said
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (tuned.out / name).read_bytes(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "h:1", "workers": 2}, "leave one of the two out"),
        ({"cluster": "tcp://h:1"}, "--cluster tcp://h:1: write HOST:PORT"),
        ({"target": "board:lab"}, "say where, --cluster HOST:PORT"),
    ],
)
def test_what_cannot_work_together_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        check(parse_options(model="digits_cnn", **options))
    assert message in str(caught.value)
