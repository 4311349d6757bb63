"""Tests `tilewright dataset build` as a user runs it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tilewright.evaluation.datasets.folder import digest_of, read_table

pytestmark = pytest.mark.nightly(seconds=12)

BUILD = ("dataset", "build", "--rows", "640", "--cpu-rows", "0", "--seed", "3")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with a dataset in the folder `bare`, built without Prefect and MLflow."""
    place = Place(tmp_path_factory.mktemp("built"))
    done = place.run(*BUILD, "--out", "bare", "--bare")
    assert done.returncode == 0, done.stderr
    return place


def test_a_build_shows_in_prefect_and_equals_a_bare_one(guest: Place, bare: Place) -> None:
    done = guest.run(*BUILD, "--out", "watched")
    assert done.returncode == 0, done.stderr
    assert "640 rows" in done.stdout
    assert files(guest.folder / "watched") == files(bare.folder / "bare")
    table = read_table(guest.folder / "watched")
    assert len(table) == 640
    assert digest_of(guest.folder / "watched")[:16] in done.stdout
    other = bare.run("dataset", "build", "--rows", "650", "--out", "bare", "--bare")
    assert other.returncode == 2
    assert "other options" in other.stderr


def test_a_killed_build_goes_on_to_the_same_bytes(place: Place, bare: Place) -> None:
    """The 640 rows are in about forty files, one per accelerator. The kill comes after a few."""
    killed = place.fork(*BUILD, "--out", "killed", "--bare")
    folder = place.folder / "killed"
    deadline = time.monotonic() + 300
    while len(list(folder.glob("rows/*/*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert not (folder / "dataset.json").exists()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("rows/*/*.parquet")}
    again = place.run(*BUILD, "--out", "killed", "--bare")
    assert again.returncode == 0, again.stderr
    assert "rows kept" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert files(folder) == files(bare.folder / "bare")


def test_a_build_is_refused_where_it_cannot_be(place: Place) -> None:
    (place.folder / "file").write_text("")
    done = place.run(*BUILD, "--out", "file/below", "--bare")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (place.folder / "foreign").mkdir()
    (place.folder / "foreign" / "dataset.json").write_text(json.dumps({}))
    done = place.run(*BUILD, "--out", "foreign", "--bare")
    assert done.returncode == 2
    assert "built elsewhere" in done.stderr


def test_a_build_of_named_hardware_goes_on_and_equals_one_that_is_watched(guest: Place) -> None:
    named = ("--rows", "96", "--cpu-rows", "0", "--target", "vta-de10", "--target", "vta-pynq")
    for out, more in (("watched", ()), ("bare", ("--bare",))):
        done = guest.run("dataset", "build", *named, "--out", out, *more)
        assert done.returncode == 0, done.stderr
        assert "96 rows of 2 pieces of hardware" in done.stdout
    assert files(guest.folder / "watched") == files(guest.folder / "bare")
    table = read_table(guest.folder / "bare", hardware=["vta-pynq"])
    assert len(table) == 48
    for path in (guest.folder / "bare").glob("rows/*/*.parquet"):
        path.unlink()
        break
    again = guest.run("dataset", "build", *named, "--out", "bare", "--bare")
    assert "48 rows kept" in again.stderr
    assert files(guest.folder / "watched") == files(guest.folder / "bare")
    for more, hint in (
        (named[:-2], "other options"),
        (("--target", "vta-deten"), "did you mean vta-de10"),
        (("--target", "replay:table.csv"), "kind replay"),
    ):
        done = guest.run("dataset", "build", *more, "--out", "bare", "--bare")
        assert done.returncode == 2
        assert hint in done.stderr
